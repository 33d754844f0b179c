# SPDX-License-Identifier: Apache-2.0
"""How a number depends on a size, from its values at small sizes."""

import math
from collections.abc import Sequence

SMALL = (64, 128, 256, 384)  # the first two give the law, the others must obey it
EXACT = 1e-9


def law(seen: Sequence[float], size: int) -> float | None:
    """The number at a large size, from those at the sizes of SMALL.

    It may grow evenly (or stay), as a logarithm, or as a power; None if it does none of these.
    """
    for scale, transformed in ((float, False), (math.log, False), (math.log, True)):
        if transformed and min(seen) <= 0:
            continue
        x = [scale(n) for n in SMALL]
        y = [math.log(value) for value in seen] if transformed else list(seen)
        slope = (y[1] - y[0]) / (x[1] - x[0])
        line = [y[0] + slope * (at - x[0]) for at in x]
        allowed = EXACT * max(map(abs, y))
        if all(abs(a - b) <= allowed for a, b in zip(line, y, strict=True)):
            end = y[0] + slope * (scale(size) - x[0])
            return math.exp(end) if transformed else end
    return None
