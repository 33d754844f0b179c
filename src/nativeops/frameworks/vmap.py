# SPDX-License-Identifier: Apache-2.0
"""Where an op without leading axes has room for a mapped one: an axis whose parts are independent.

The items' parts along such an axis, one behind the other, are as good as the parts of one item.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from nativeops.signature import ArraySpec


def shared_axis(
    independent: Iterable[str],
    items: Sequence[tuple[ArraySpec, Sequence[Any]]],
    made: Sequence[ArraySpec],
) -> str:
    """The axis in which the items may lie one behind the other; empty if there is none.

    Every mapped input must have it, or it would be another one for each part; and every result,
    or it would be the sum over all items.

    Args:
        independent: The op's axes whose parts may be computed apart.
        items: The mapped inputs, with the shape that one item has.
        made: The results that are wanted.
    """
    if any(spec.is_absent(shape) for spec, shape in items):
        return ""
    specs = [*(spec for spec, _ in items), *made]
    fits = (name for name in independent if all(place_of(name, spec) for spec in specs))
    return next(fits, "")


def place_of(name: str, spec: ArraySpec) -> int:
    """Which axis of an array has this name, counted from the end as -1, -2, ..; 0 for none."""
    names = [axis.name for axis in spec.axes]
    return names.index(name) - len(names) if name in names else 0
