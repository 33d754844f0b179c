# SPDX-License-Identifier: Apache-2.0
"""One op as TensorFlow knows it; its kernel and its shape function are functions in C.

A node has the op's attributes as text, ``name=value``, and a mask of the outputs that it makes; an
output that it does not make has the shape [0].
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_library, ops
from tensorflow.python.ops import control_flow_util

from nativeops.call import Op
from nativeops.errors import DeviceError, message
from nativeops.frameworks.absent import absent
from nativeops.frameworks.tensorflow_absent import nothing
from nativeops.frameworks.tensorflow_call import Call, key_of, sums_of, text_of, value_of
from nativeops.library import define, extension

if TYPE_CHECKING:
    from nativeops.frameworks.tensorflow_gradient import Gradient

_no_tape = pywrap_tfe.TFE_Py_TapeSetIsEmpty
_possible_gradients = pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes
_MOST_CALLS = 256  # ways of writing the attributes that are remembered


class Handle:
    """The registration of an op, and what a call needs of its declaration."""

    def __init__(self, op: Op[Any], gradient: "Gradient") -> None:
        define(op)
        self.op, self.gradient = op, gradient
        signature = op.signature
        self.name = "Nativeops_" + op.key.replace(".", "_")
        self.n_inputs = len(signature.inputs)
        self.absent = absent(op, nothing)
        self.single = op.result is None
        self.always = op.wanted(None)
        self.shown = [not spec.kept for spec in signature.outputs]
        # The shape function in C knows neither attributes nor the mask: then we tell the shapes.
        sizes = any(spec.type in (int, bool) for spec in signature.attributes)
        self.sized = sizes or signature.selective
        self.calls: dict[str, Call] = {}
        self.sums = sums_of(signature)
        extension().implement_tensorflow(op.id, self.name)

    def arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Call]:
        """The arrays in order, and the rest."""
        key = None
        if self.absent:
            args, kwargs = self.absent.take(args, kwargs)
        if len(args) == self.n_inputs:
            key = key_of(kwargs)
            known = None if key is None else self.calls.get(key)
            if known is not None:
                return args, known
        declared, want = self.op.split_want(kwargs)
        arrays, attributes = self.op.bind(args, declared)
        call = self.call(attributes, self.op.wanted(want))
        if key is None:  # arrays by keyword, numbers of NumPy: their kernels count as well
            key = repr((call.texts, call.mask))
        if key not in self.calls:
            if len(self.calls) >= _MOST_CALLS:
                self.calls.clear()
                context.context().clear_kernel_cache()  # which has a kernel for each, without end
            self.calls[key] = call
        return self.absent.fill(arrays) if self.absent else arrays, call

    def call(self, attributes: Mapping[str, Any], mask: int) -> Call:
        """A call with these attributes that makes these outputs."""
        texts = tuple(f"{name}={text_of(value)}" for name, value in attributes.items())
        return Call(attributes, texts, mask, self.words(texts, mask))

    def words(self, texts: tuple[str, ...], mask: int) -> tuple[Any, ...]:
        """Names and values of a node's attributes that are not the default."""
        given = ("attributes", list(texts)) if texts else ()
        return given if mask == self.always else (*given, "want", mask)

    def read(self, node: Any) -> Call:
        """The call that a node in a graph stands for."""
        texts = [text.decode() for text in node.get_attr("attributes")]
        found = dict(text.split("=", 1) for text in texts)
        attributes = {
            spec.name: value_of(spec.type, found[spec.name]) if spec.name in found else spec.default
            for spec in self.op.signature.attributes
        }
        return self.call(attributes, int(node.get_attr("want")))

    def build_recorded(self, inputs: Sequence[Any], call: Call) -> tuple[Any, int]:
        """A new node in the graph, which tapes know of, and the mask of the outputs it makes."""
        recorded = not _no_tape() and _possible_gradients(inputs)
        mask = call.mask | self.gradient.mask if recorded else call.mask
        node = self.build(inputs, call, mask)
        if recorded:
            self.gradient.record(node.inputs, node.outputs, call.attributes)
        return node, mask

    def build(self, inputs: Sequence[Any], call: Call, mask: int) -> Any:
        """A new node in the graph."""
        if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
            text = "cannot be compiled by XLA in TensorFlow (`jit_compile=True`)."
            hint = "leave `jit_compile` away, or set it to False."
            raise DeviceError(message(self.op.name, text, hint=hint))
        shapes = self.shapes(inputs, call) if self.sized else None
        named = {f"x{i}": tensor for i, tensor in enumerate(inputs)}
        sums = self.sums(inputs)
        named.update(zip(sums[::2], sums[1::2], strict=True))
        given: Any = op_def_library._apply_op_helper(
            self.name, attributes=list(call.texts), want=mask, **named
        )
        node = given[2]
        if shapes:
            set_shapes(node.outputs, shapes, mask)
        return node

    def shapes(self, inputs: Sequence[Any], call: Call) -> Sequence[Any]:
        """What is known of the outputs' shapes."""
        known = [tf.TensorShape(tensor.shape) for tensor in inputs]
        given = tuple(None if s.rank is None else tuple(s.as_list()) for s in known)
        values = tuple(call.attributes.values())
        shapes: Any = extension().infer_tensorflow(self.op.id, given, values)
        if shapes is None:
            raise ValueError(f"{self.op.name}: the arguments do not fit")
        return tuple(shapes)

    def collect(self, outputs: Any, call: Call) -> Any:
        """What the caller gets; outputs that were not made have arrived as empty tensors."""
        several: Any = self.op.result
        made = outputs if isinstance(outputs, list) else [outputs]
        return several(
            *(
                one if shown and call.mask >> bit & 1 else None
                for bit, (one, shown) in enumerate(zip(made, self.shown, strict=True))
            )
        )


def set_shapes(outputs: Sequence[Any], shapes: Sequence[Any], mask: int) -> None:
    """Tell the graph the shapes of the outputs that are made; others may be made later."""
    for bit, (output, shape) in enumerate(zip(outputs, shapes, strict=True)):
        if mask >> bit & 1:
            output.set_shape(shape)
