# SPDX-License-Identifier: Apache-2.0
"""Checks of an array that a caller gives for the result, alike in all frameworks that take one."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.errors import ArgumentError, DtypeError, ShapeError, message

# Of the ways in which two arrays might meet; the types of NumPy know only 0 and -1.
_MOST_TRIED: Any = 10_000


def check_out(
    op: Op[Any], word: str, found: tuple[str, Sequence[int]], wanted: tuple[str, Sequence[int]]
) -> None:
    """The array has the dtype and the shape of the result."""
    if found[0] != wanted[0]:
        raise DtypeError(message(op.name, f"`{word}` must be {wanted[0]}, but is {found[0]}."))
    if tuple(found[1]) != tuple(wanted[1]):
        text = f"`{word}` must have the shape {list(wanted[1])}, but has {list(found[1])}."
        raise ShapeError(message(op.name, text))


def check_apart(op: Op[Any], word: str, shape: Sequence[int], strides: Sequence[int]) -> None:
    """No two elements of the array share memory: a step along an axis is beyond all shorter ones.

    Strides like those of no slice or transposed array may be refused though nothing is shared.
    """
    reach = 0  # of the axes with shorter steps
    shares = False
    for step, size in sorted((abs(step), size) for size, step in zip(shape, strides, strict=True)):
        shares |= size > 1 and step <= reach
        reach += (size - 1) * step
    if shares and 0 not in shape:
        raise ArgumentError(message(op.name, f"`{word}` has elements that share memory."))


def check_disjoint(op: Op[Any], given: Sequence[Any]) -> None:
    """No two of the arrays share memory; None stands for one that was not given.

    They are anything that has `__array_interface__`; only where their elements lie is looked at.
    """
    places = [place for place, array in enumerate(given) if array is not None]
    for one, other in combinations(places, 2):
        verb = "share"
        try:
            if not np.shares_memory(given[one], given[other], max_work=_MOST_TRIED):
                continue
        except np.exceptions.TooHardError:
            verb = "may share"
        words = f"`{op.out_word(one)}` and `{op.out_word(other)}`"
        raise ArgumentError(message(op.name, f"{words} {verb} memory."))
