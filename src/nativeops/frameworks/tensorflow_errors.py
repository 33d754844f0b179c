# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow refuses, in the op's own words."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import core

from nativeops.call import Op, given
from nativeops.errors import ArgumentError, Given, NativeOpsError, message
from nativeops.frameworks import Framework
from nativeops.frameworks.failures import check_results, failure
from nativeops.signature import ArraySpec

# How tensors of other kinds become plain ones.
_WAYS = {
    tf.RaggedTensor: "{0}.to_tensor()",
    tf.SparseTensor: "tf.sparse.to_dense({0})",
    tf.IndexedSlices: "tf.convert_to_tensor({0})",
}


class Unknown(int):
    """Stands for an unknown size: a number that fits, and that a text calls None."""

    def __repr__(self) -> str:
        return "None"

    __str__ = __repr__


def check_dense(op: Op[Any], arrays: Sequence[Any]) -> None:
    """Refuse tensors that are no plain block of numbers."""
    for array, spec in zip(arrays, op.signature.inputs, strict=True):
        for kind, way in _WAYS.items():
            if isinstance(array, kind):
                text = f"`{spec.name}` must be a dense tensor, but is {kind.__name__}."
                hint = f"convert it with `{way.format(spec.name)}`."
                raise ArgumentError(message(op.name, text, hint=hint))


def explain(
    op: Op[Any],
    framework: Framework,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> Exception:
    """The error that says in the op's own words what TensorFlow refused."""
    if isinstance(error, NativeOpsError):
        return error
    if isinstance(error, core._NotOkStatusException):
        error = core._status_to_exception(error)
    arrays, attributes = op.bind(args, op.split(kwargs)[0])
    check_dense(op, arrays)
    described = given(op, framework, arrays)
    if absent := op.handles["tensorflow"].absent:
        arrays = absent.fill(arrays)
    shapes = [tf.TensorShape(array.shape) for array in arrays]
    if not all(shape.is_fully_defined() for shape in shapes):
        op.check(_filled(op, described, shapes), ["cpu"] * len(arrays), attributes)
        return error
    devices = [framework.describe(array)[2] for array in arrays]
    return failure(op, op.check(described, devices, attributes), error) or error


def unfit(op: Op[Any], arrays: Sequence[tuple[str, tuple[int, ...]]], values: Sequence[Any]) -> str:
    """Why the core refuses arrays of these dtypes and shapes; it asks while a graph runs."""
    described = [
        spec.given(dtype, shape)
        for spec, (dtype, shape) in zip(op.signature.inputs, arrays, strict=True)
    ]
    names = [spec.name for spec in op.signature.attributes]
    try:
        attributes = dict(zip(names, values, strict=True))
        check_results(op, op.check(described, ["cpu"] * len(arrays), attributes))
    except NativeOpsError as error:
        return str(error)
    return ""


def _filled(op: Op[Any], described: Sequence[Given], shapes: Sequence[Any]) -> list[Given]:
    """The arrays with numbers for unknown sizes, such that only what is known can clash."""
    specs = op.signature.inputs
    own = [
        [None] * len(spec.axes) if shape.rank is None else shape.as_list()
        for spec, shape in zip(specs, shapes, strict=True)
    ]
    sizes: dict[str, int] = {}
    for spec, shape in zip(specs, own, strict=True):
        if spec.is_absent(shape):
            continue
        for axis, size in zip(reversed(spec.axes), reversed(shape), strict=False):
            if axis.name is not None and size is not None:
                sizes.setdefault(axis.name, size)
    return [
        given._replace(shape=_numbers(spec, shape, sizes))
        for given, spec, shape in zip(described, specs, own, strict=True)
    ]


def _numbers(spec: ArraySpec, shape: Sequence[int | None], known: Mapping[str, int]) -> Any:
    if spec.is_absent(shape):
        return tuple(shape)
    lead = len(shape) - len(spec.axes)
    numbers = [Unknown(1) if size is None else size for size in shape]
    for place, axis in enumerate(spec.axes, lead):
        if place < 0 or (axis.name is not None and shape[place] is not None):
            continue
        if shape[place] is None or not axis.names() <= known.keys():
            guess = {name: known.get(name, 1) for name in axis.names()}
            with suppress(ZeroDivisionError):  # which is told of when all sizes are known
                numbers[place] = Unknown(axis.evaluate(guess))
    return tuple(numbers)
