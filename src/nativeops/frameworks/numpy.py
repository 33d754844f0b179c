# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays. Calls that fit are served by the extension at once; the rest comes here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nativeops.call import Op, given
from nativeops.errors import KernelError, message
from nativeops.frameworks.dlpack import as_numpy
from nativeops.frameworks.failures import failure, no_memory
from nativeops.frameworks.numpy_out import check_array, needs_aside, steppable
from nativeops.frameworks.out import check_disjoint
from nativeops.library import DTYPES, define, extension
from nativeops.lists import are_replaceable, as_arrays

# NumPy itself has no bfloat16: ml_dtypes adds one, whose bits travel as uint16.
_OWN = {d: np.dtype(d) for d in DTYPES if d != "bfloat16"}


class NumPy:
    """The adapter; see `frameworks.base.Framework`."""

    name = "numpy"

    def __init__(self) -> None:
        # The extension takes exact `numpy.ndarray`s that fit, and calls `call` for all else.
        core = extension()
        core.connect_numpy(np.ndarray, np.empty, tuple(_OWN.get(d) for d in DTYPES), call)
        self.run = core.fast

    def describe(self, array: Any) -> tuple[str, tuple[Any, ...], str]:
        """See `frameworks.base.Framework`."""
        order = "" if array.dtype.isnative else "byte-swapped "
        return order + array.dtype.name, array.shape, "cpu"

    @staticmethod
    def integers(values: Sequence[Any], dtype: Any, like: Any) -> Any:
        """See `frameworks.base.Framework`."""
        return np.asarray(values, dtype)


def call(op: Op[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """One call with all that the fast path leaves out: errors, `out=`, `want=`, rare dtypes."""
    if are_replaceable(op.signature, args, kwargs, "numpy"):
        return framework.run(op, *as_arrays(op.signature, args, kwargs))
    declared, out, want = op.split(kwargs, kept=True)
    arrays, attributes = op.bind(args, declared)
    arrays = as_numpy(op, arrays)
    described = given(op, framework, arrays)
    solution = op.check(described, ["cpu"] * len(arrays), attributes)
    define(op)
    mask = op.wanted(want)
    outs: list[Any] = [None] * len(op.signature.outputs) if out is None else op.spread(out)
    outs = [array if mask >> bit & 1 else None for bit, array in enumerate(outs)]
    outputs = _outputs(op, solution, mask, outs)
    aside = [
        place
        for place, array in enumerate(outs)
        if array is not None and needs_aside(op, place, array, arrays)
    ]
    made = [
        np.empty_like(array, order="C", subok=False) if place in aside else array
        for place, array in enumerate(outputs)
    ]
    inputs = tuple(
        None if a is None else _readable(a, g.dtype) for a, g in zip(arrays, described, strict=True)
    )
    places = tuple(
        None if o is None else _readable(o, op.signature.output_dtype(s, solution))
        for o, s in zip(made, op.signature.outputs, strict=True)
    )
    if text := extension().run(op.id, inputs, places, tuple(attributes.values())):
        said = message(op.name, text)
        raise failure(op, solution, said) or KernelError(said)
    for place in aside:
        np.asarray(outs[place])[...] = made[place]  # past what a subclass does with it
    return op.collect(outputs, kept=True)


def _readable(array: Any, dtype: str) -> tuple[Any, int]:
    """The array in a form that has a buffer, and what its bits mean."""
    array = np.asarray(array)
    if dtype == "bfloat16":
        # The extension sees half-precision items and is told which kind.
        array = array.view(np.float16)
    return array if steppable(array) else array.copy(), DTYPES.index(dtype)


def _outputs(op: Op[Any], solution: Any, mask: int, outs: list[Any]) -> list[Any]:
    made: list[Any] = []
    for bit, spec in enumerate(op.signature.outputs):
        shape = op.signature.output_shape(spec, solution)
        dtype = op.signature.output_dtype(spec, solution)
        if not mask >> bit & 1:
            made.append(None)
        elif outs[bit] is None:
            made.append(_empty(op, shape, dtype))
        else:
            made.append(check_array(op, bit, outs[bit], shape, dtype))
    check_disjoint(op, outs)
    return made


def _empty(op: Op[Any], shape: tuple[int, ...], dtype: str) -> Any:
    own = _numpy_dtype(dtype)
    try:
        return np.ndarray(shape, own, extension().memory(own.itemsize * math.prod(shape)))
    except (MemoryError, OverflowError, ValueError):
        raise no_memory(op, shape, dtype) from None


def _numpy_dtype(dtype: str) -> Any:
    if dtype != "bfloat16":
        return _OWN[dtype]
    import ml_dtypes  # whoever has an array of this dtype has the package

    return np.dtype(ml_dtypes.bfloat16)


framework = NumPy()
