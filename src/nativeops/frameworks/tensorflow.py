# SPDX-License-Identifier: Apache-2.0
"""TensorFlow tensors: what a call does. `tensorflow_handle` tells how an op is registered.

Importing this file registers all built-in ops, so that saved programs that contain them load.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, core
from tensorflow.python.framework import ops as graphs

from nativeops.call import Op, given
from nativeops.frameworks.tensorflow_call import Call
from nativeops.frameworks.tensorflow_errors import check_dense, explain, unfit
from nativeops.frameworks.tensorflow_gradient import Gradient, connect_gradient
from nativeops.frameworks.tensorflow_handle import Handle
from nativeops.frameworks.tensorflow_pfor import connect_pfor
from nativeops.library import extension, lock_over_forks
from nativeops.registry import ops

_registering = lock_over_forks()
_BY_ID: dict[int, Op[Any]] = {}
_FAILURES = (
    core._NotOkStatusException,
    core._FallbackException,
    tf.errors.OpError,
    TypeError,
    ValueError,
)

# Names of this file, because looking them up in their modules would cost as much as asking them.
_EagerTensor = graphs.EagerTensor
_execute = pywrap_tfe.TFE_Py_FastPathExecute
_no_tape = pywrap_tfe.TFE_Py_TapeSetIsEmpty
_possible_gradients = pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes


class TensorFlow:
    """The adapter; see `frameworks.base.Framework`."""

    name = "tensorflow"

    def __init__(self) -> None:
        library = f"{tf.sysconfig.get_lib()}/libtensorflow_framework.so.2"
        extension().connect_tensorflow(library, _unfit)

    def describe(self, array: Any) -> tuple[str, tuple[Any, ...], str]:
        """See `frameworks.base.Framework`. An unknown size is None."""
        shape = tf.TensorShape(array.shape)
        device = getattr(array, "device", "") or ""
        kind, _, number = device.rpartition("device:")[2].lower().partition(":")
        place = "cpu" if kind in ("", "cpu") else f"{'cuda' if kind == 'gpu' else kind}:{number}"
        sizes = () if shape.rank is None else tuple(shape.as_list())
        return tf.as_dtype(array.dtype).name, sizes, place

    @staticmethod
    def integers(values: Sequence[Any], dtype: Any, like: Any) -> Any:
        """See `frameworks.base.Framework`."""
        return tf.constant(values, dtype)

    @staticmethod
    def transpose(array: Any) -> Any:
        """The array with its last two axes swapped."""
        return tf.linalg.matrix_transpose(array)

    @staticmethod
    def run(op: Op[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `frameworks.base.Framework`."""
        handle = op.handles.get("tensorflow") or connect(op)
        try:
            inputs, call = handle.arrange(args, kwargs)
            for one in inputs:
                if type(one) is not _EagerTensor:
                    inputs = _tensors(op, inputs)
                    break
            here = context._context or context.context()
            if not here._thread_local_data.is_eager:
                made = handle.build_recorded(inputs, call)[0].outputs
                outputs = made if len(made) > 1 else made[0]
            elif _no_tape() or not _possible_gradients(inputs):
                sums = handle.sums(inputs)
                outputs = _execute(here, handle.name, None, *inputs, *call.words, *sums)
            else:
                outputs = _execute_recorded(here, handle, inputs, call)
        except _FAILURES as error:
            raise explain(op, framework, args, kwargs, error) from None
        return outputs if handle.single else handle.collect(outputs, call)


def _tensors(op: Op[Any], arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays as tensors; what a variable holds, for example."""
    check_dense(op, arrays)
    given(op, framework, arrays)
    return [tf.convert_to_tensor(array) for array in arrays]


def _execute_recorded(here: Any, handle: Handle, inputs: Sequence[Any], call: Call) -> Any:
    """The outputs, recorded by us: TensorFlow would keep all inputs and outputs."""
    words = handle.words(call.texts, call.mask | handle.gradient.mask)
    pywrap_tfe.TFE_Py_TapeSetStopOnThread()
    try:
        outputs = _execute(here, handle.name, None, *inputs, *words, *handle.sums(inputs))
    finally:
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    made = outputs if isinstance(outputs, list) else [outputs]
    handle.gradient.record(inputs, made, call.attributes)
    return outputs


def connect(op: Op[Any]) -> Handle:
    """Register an op with TensorFlow; once per op."""
    with _registering:
        if "tensorflow" not in op.handles:
            handle = Handle(op, Gradient(op))
            _BY_ID[op.id] = op
            connect_gradient(handle)
            connect_pfor(handle)
            op.handles["tensorflow"] = handle
        found: Handle = op.handles["tensorflow"]
        return found


def _unfit(op_id: int, *arguments: Any) -> str:
    return unfit(_BY_ID[op_id], *arguments)


framework = TensorFlow()
for _op in ops():
    if _op.built_in:
        connect(_op)
