# SPDX-License-Identifier: Apache-2.0
"""The gradient of any op in TensorFlow.

A tape records an op with what its gradient rule asks for, and knows which gradients are wanted. In
a graph without a tape, as when a `tf.function` is differentiated from outside, TensorFlow asks for
the gradient of a node.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import forwardprop

from nativeops.call import Op
from nativeops.errors import GradientError
from nativeops.frameworks.absent import without_absent
from nativeops.frameworks.rule import apart, check_fit, check_gradients
from nativeops.frameworks.tensorflow_handle import set_shapes
from nativeops.frameworks.tensorflow_kept import Kept
from nativeops.frameworks.tensorflow_sums import like_of, shape_of, summed, summed_if_there
from nativeops.signature import VARIABLES

if TYPE_CHECKING:
    from nativeops.frameworks.tensorflow_handle import Handle

_FLOATS = VARIABLES["Float"]
_watched = pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop
_handles: dict[str, "Handle"] = {}  # by the name of the nodes; the last one declared


class Gradient:
    """How an op is differentiated; what does not depend on the values is worked out here."""

    def __init__(self, op: Op[Any]) -> None:
        self.op, signature, asked = op, op.signature, op.gradient_names
        self.inputs = [spec.name for spec in signature.inputs]
        self.outputs = [spec.name for spec in signature.outputs]
        self.floats = [i for i, s in enumerate(signature.inputs) if s.dtypes[0] in _FLOATS]
        self.saved_inputs = [i for i, name in enumerate(self.inputs) if name in asked]
        self.saved_outputs = [i for i, name in enumerate(self.outputs) if name in asked]
        floats = [i for i, s in enumerate(signature.outputs) if s.dtypes[0] in _FLOATS]
        self.kept = Kept(op, floats)
        self.differentiable = [i for i in floats if i not in self.kept.specs]
        # The outputs that must be made where a gradient may be asked for.
        self.mask = sum(
            1 << bit
            for bit, spec in enumerate(signature.outputs)
            if spec.kept or spec.name in asked or f"d_{spec.name}" in asked
        )

    def record(
        self, inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> None:
        """Let all tapes on this thread know how to go back."""
        saved = {self.inputs[i]: inputs[i] for i in self.saved_inputs}
        saved |= {self.outputs[i]: outputs[i] for i in self.saved_outputs}
        needs = [i for i in self.floats if _watched([inputs[i]])]
        likes = {i: like_of(inputs[i]) for i in needs}
        dtypes = [tensor.dtype for tensor in inputs]
        shown = self.differentiable

        def backward(*d_outputs: Any) -> list[Any]:
            arrived = {f"d_{self.outputs[i]}": d for i, d in zip(shown, d_outputs, strict=True)}
            return self.apply({**saved, **attributes, **arrived}, likes, dtypes)

        def forward(*_: Any) -> None:
            raise GradientError(self.op.no_forward_mode)

        if shown:
            pywrap_tfe.TFE_Py_TapeSetRecordOperation(
                self.op.name, [outputs[i] for i in shown], list(inputs), backward, forward
            )
        self.kept.record(inputs, outputs)

    def of_node(self, handle: "Handle", node: Any, d_outputs: Sequence[Any]) -> list[Any]:
        """The gradients for a node of a graph, which may have been built without what they need."""
        call = handle.read(node)
        mask = call.mask | self.mask
        if mask != call.mask:
            node._set_attr("want", attr_value_pb2.AttrValue(i=mask))
            set_shapes(node.outputs, handle.shapes(node.inputs, call), mask)
        known = {**dict(zip(self.inputs, node.inputs, strict=True)), **call.attributes}
        known |= dict(zip(self.outputs, node.outputs, strict=True))
        known |= {f"d_{name}": d for name, d in zip(self.outputs, d_outputs, strict=True)}
        dtypes = [tensor.dtype for tensor in node.inputs]
        return self.apply(known, {i: node.inputs[i] for i in self.floats}, dtypes)

    def apply(
        self, known: Mapping[str, Any], likes: Mapping[int, Any], dtypes: Sequence[Any]
    ) -> list[Any]:
        """One gradient, or None, per input; `likes` has the shape of each that is needed."""
        dense = {
            name: tf.convert_to_tensor(value) if isinstance(value, tf.IndexedSlices) else value
            for name, value in known.items()
        }
        likes = {i: like for i, like in likes.items() if not self._is_absent(i, like)}
        needs = tuple(f"d_{self.inputs[i]}" for i in likes)
        dense = without_absent(self.op, dense | self.kept.stopped(dense), _sizes)
        found = self.op.differentiate({**dense, "needs": needs})
        check_gradients(self.op.name, found, len(self.floats))
        gradients: list[Any] = [None] * len(self.inputs)
        for i, gradient in zip(self.floats, found, strict=True):
            if i in likes and gradient is not None:
                same = gradient.dtype is dtypes[i] and gradient.shape == shape_of(likes[i])
                if not same:  # mostly it is, and this tells it in less time
                    gave = gradient.dtype.name, _known(gradient)
                    check_fit(self.op.name, gave, (dtypes[i].name, _known(likes[i])))
                may_lack = self.op.signature.inputs[i].optional
                gradients[i] = (summed_if_there if may_lack else summed)(gradient, likes[i])
        # One that is the gradient of two sources of a tape is never freed by TensorFlow.
        return apart(gradients, tf.identity)

    def _is_absent(self, place: int, like: Any) -> bool:
        return self.op.signature.inputs[place].is_absent(_sizes(like))


def connect_gradient(handle: "Handle") -> None:
    """Let TensorFlow find the gradient of a node, and no derivative in forward mode."""
    name = handle.name
    if name in _handles:
        _handles[name] = handle
        return

    def gradient(node: Any, *d_outputs: Any) -> list[Any]:
        latest = _handles[name]
        return latest.gradient.of_node(latest, node, d_outputs)

    def refuse(*_: Any) -> None:
        raise GradientError(_handles[name].op.no_forward_mode)

    forwardprop._SPECIAL_CASES[name] = refuse
    tf.RegisterGradient(name)(gradient)
    _handles[name] = handle  # last: if it is interrupted, the next call begins anew


def _known(like: Any) -> list[Any] | None:
    """Its sizes, as far as they are known; None if not even the number of axes is."""
    shape = tf.TensorShape(shape_of(like))
    return None if shape.rank is None else shape.as_list()


def _sizes(like: Any) -> tuple[Any, ...]:
    """The same; no axes where their number is not known."""
    return tuple(_known(like) or ())
