# SPDX-License-Identifier: Apache-2.0
"""Checks of an array that a caller gives for the result, alike in all frameworks that take one."""

from collections.abc import Sequence
from typing import Any

from nativeops.call import Op
from nativeops.errors import ArgumentError, DtypeError, ShapeError, message


def check_out(
    op: Op[Any], found: tuple[str, Sequence[int]], wanted: tuple[str, Sequence[int]]
) -> None:
    """The array has the dtype and the shape of the result."""
    if found[0] != wanted[0]:
        raise DtypeError(message(op.name, f"`out` must be {wanted[0]}, but is {found[0]}."))
    if tuple(found[1]) != tuple(wanted[1]):
        text = f"`out` must have the shape {list(wanted[1])}, but has {list(found[1])}."
        raise ShapeError(message(op.name, text))


def check_apart(op: Op[Any], shape: Sequence[int], strides: Sequence[int]) -> None:
    """No two elements of the array share memory."""
    if any(step == 0 and size > 1 for size, step in zip(shape, strides, strict=True)):
        raise ArgumentError(message(op.name, "`out` has elements that share memory."))
