# SPDX-License-Identifier: Apache-2.0
"""`out=` with NumPy arrays: the result in an array that the caller has, perhaps an input."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nativeops.arrays import check_unmasked
from nativeops.call import Op
from nativeops.errors import ArgumentError, message
from nativeops.frameworks.out import check_apart, check_out


def needs_aside(op: Op[Any], place: int, out: Any, arrays: Sequence[Any]) -> bool:
    """Whether an output cannot be written to `out` while the inputs are read."""
    reuse = op.signature.outputs[place].reuse
    pairs = zip(op.signature.inputs, arrays, strict=True)
    read = [a for s, a in pairs if a is not None and not (s.name == reuse and _is_same(a, out))]
    return not steppable(out) or any(np.may_share_memory(out, a) for a in read)


def _is_same(a: Any, b: Any) -> bool:
    """Whether two arrays are the same elements in the same memory."""
    one, other = (x.__array_interface__["data"][0] for x in (a, b))
    return bool(one == other and a.shape == b.shape and a.strides == b.strides)


def steppable(array: Any) -> bool:
    """Whether a kernel can step from element to element; not in fields of a packed record."""
    return bool(array.flags.aligned) and not any(s % array.itemsize for s in array.strides)


def check_array(op: Op[Any], place: int, out: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """The array, if the output in this place can be written to it."""
    word = op.out_word(place)
    if not isinstance(out, np.ndarray):
        text = f"`{word}` must be a NumPy array, but is {type(out).__name__}."
        raise ArgumentError(message(op.name, text))
    # Not `filled`, which is a copy.
    check_unmasked(op.name, word, out, f"give the array without its mask, `{word}.data`.")
    name = out.dtype.name if out.dtype.isnative else str(out.dtype)
    check_out(op, word, (name, out.shape), (dtype, shape))
    if not out.flags.writeable:
        text = f"`{word}` is read-only."
        raise ArgumentError(message(op.name, text, hint="give a writable array."))
    check_apart(op, word, shape, out.strides)
    return out
