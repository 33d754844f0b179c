# SPDX-License-Identifier: Apache-2.0
"""How far a result may lie from the reference in float64, from the arithmetic alone.

With u the unit roundoff of a dtype (half the distance from 1 to the next larger number):

    |result - reference| <= u_result |reference| + (L + 4) u_sum max(order, largest |reference|)

The result is rounded once to its own dtype. Before that, L numbers are added one after another in
float32 (float64 for float64), each rounding at most by u of the sum so far; 4 is for the few
operations that make a number, or that follow the sum. L is the product of the axes that the result
lacks, or the longest axis that it has, since some ops also sum along that. Arguments are of the
order of 1, so that sums on the way are no larger than the largest result; where logarithms are
added up along an axis, its size is the order of the sums.

An op may say that products of float32 round more where an attribute has a certain value: that is
then u_sum.

A definition may make much of little: exp(10 x) is off by 10 x u of itself where x is off by u.
Where a result of a user's op is beyond the bound, it may also be off by 4 times what one
rounding of the floating point arguments in u_sum changes in the reference. A jump is no such
change: that a kernel compares with `<` instead of `<=` is told.

Where results are carried from step to step in their own dtype, what was rounded spreads: u_result
then counts four times the largest reference instead of each. Such an op's examples keep errors from
growing from step to step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.signature import ArraySpec

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LARGEST = {"float32": 2.0**128 - 2.0**104, "float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}
# The numbers next to 0 are this far apart, halved.
SMALLEST = {"float64": 0.0, "float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}
MOVES = 4  # arguments that are rounded otherwise
JUMP = 2.0**-10  # of a number or of 1: no rounding changes as much


def terms(op: Op[Any], kept: ArraySpec, known: Mapping[str, int], lead: int) -> int:
    """How many numbers are summed at most for one element of an array.

    Args:
        op: The op.
        kept: The array; it may be an output, or an input whose gradient is meant.
        known: The sizes of all names.
        lead: The number of items along all leading axes.
    """
    names = {n for spec in op.signature.inputs for axis in spec.axes for n in axis.names()}
    names |= {n for spec in op.signature.outputs for axis in spec.axes for n in axis.names()}
    own = {axis.name for axis in kept.axes}
    lacking = 1 if kept.batch else max(1, lead)
    for name in names - own:
        lacking *= max(1, known[name])
    return max([lacking, *(known[name] for name in names)])


def tolerance(
    reference: Any,
    dtype: str,
    n_terms: int,
    carried: bool = False,
    order: float = 1.0,
    coarse: float = 0.0,
) -> Any:
    """The bound above, for each element; `coarse`: of products of float32, if they round more."""
    if dtype not in UNIT:
        return np.zeros(np.shape(reference))
    size = np.where(np.isfinite(reference), np.abs(reference), 0.0)
    scale = max(1.0, order, float(size.max(initial=0.0)))
    u_sum = UNIT["float64" if dtype == "float64" else "float32"]
    if dtype == "float32":
        u_sum = max(u_sum, coarse)
    rounded = np.full_like(size, 4 * scale) if carried else size
    return UNIT[dtype] * rounded + (n_terms + 4) * u_sum * scale + SMALLEST[dtype]


def moved(values: Any, dtype: str, turn: int) -> Any:
    """Floats off by one rounding of what they are computed in: all up, or each up or down."""
    # In float64 half of this would be rounded away.
    unit = 2 * UNIT["float64"] if dtype == "float64" else UNIT["float32"]
    signs = np.random.default_rng(turn).integers(0, 2, np.shape(values)) * 2 - 1 if turn else 1
    return np.asarray(values) * (1 + unit * signs)


def carried_over(reference: Any, others: Sequence[Any]) -> Any:
    """What roundings of arguments may add to the bound, from the references of moved ones."""
    with np.errstate(invalid="ignore"):
        change = np.max([np.abs(np.subtract(other, reference)) for other in others], axis=0)
        smooth = change <= JUMP * np.maximum(1.0, np.abs(reference))
    return np.where(smooth, 4 * change, 0.0)


def assert_close(found: Any, reference: Any, allowed: Any, what: str) -> None:
    """Fail, saying where, unless shapes are equal and each number is as near as allowed."""
    found, reference = np.asarray(found), np.asarray(reference)
    if found.shape != reference.shape:
        raise AssertionError(f"{what}: has the shape {found.shape} instead of {reference.shape}")
    exact = np.asarray(found, np.float64), np.asarray(reference, np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(exact[0] - exact[1]) <= allowed
        # What the dtype cannot hold is infinite.
        beyond = np.abs(exact[1]) + allowed > LARGEST.get(found.dtype.name, np.inf)
        near |= beyond & (exact[0] == np.copysign(np.inf, exact[1]))
    bad = ~(near | (exact[0] == exact[1]) | (np.isnan(exact[0]) & np.isnan(exact[1])))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        bound = float(np.broadcast_to(allowed, bad.shape)[place])
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.size} elements are wrong; at {place} it is "
            f"{exact[0][place]} instead of {exact[1][place]}, allowed is {bound:.3g}"
        )


def is_same(found: Any, expected: Any) -> bool:
    """Whether two arrays have the same bits, apart from the bits of a NaN."""
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nan = np.isnan(np.asarray(a, np.float64)) & np.isnan(np.asarray(b, np.float64))
    bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b)]
    differ = (bits[0] != bits[1]).reshape(a.size, -1).any(-1) if a.size else np.zeros(0, bool)
    return not (differ & ~nan.reshape(-1)).any()


def assert_same(found: Any, expected: Any, what: str) -> None:
    """Fail unless two arrays have the same bits, apart from the bits of a NaN."""
    if not is_same(found, expected):
        raise AssertionError(f"{what}: differs")
