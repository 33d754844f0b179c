# SPDX-License-Identifier: Apache-2.0
"""What the text of a CUDA kernel costs on the CPU."""

import numpy as np
from cuda_style import softsign_each, softsign_range, softsign_raw, total_raw, total_team

from nativeops.bench.case import OURS, Bench, Known, NdArray
from nativeops.bench.forms import numpy_rival

# In the second cache, and in memory.
SIZES = [{"n": 100_000}, {"n": 16_777_216}]


def numbers(random: np.random.Generator, n: int) -> tuple[NdArray, ...]:
    """Positive, so that sums do not cancel."""
    return (random.random(n, dtype=np.float32),)


def softsign(x: NdArray) -> NdArray:
    """NumPy's way, in three passes."""
    return x / (1 + np.abs(x))


MAP = Bench(
    "map",
    "x / (1 + |x|)",
    sizes=SIZES,
    inputs=numbers,
    expected=lambda x: [Known(slice(1000), softsign(x[:1000].astype(np.float64)))],
    work=lambda n: n,
    rivals=[
        numpy_rival(softsign_each, OURS, name="for_each"),
        numpy_rival(softsign_range, OURS, name="launch and range"),
        numpy_rival(softsign_raw, OURS, name="launch and a stride"),
        numpy_rival(softsign, "numpy", name="NumPy"),
    ],
)

SUM = Bench(
    "sum",
    "the sum of all numbers",
    sizes=SIZES,
    inputs=numbers,
    expected=lambda x: [Known(..., x.sum(dtype=np.float64))],
    work=lambda n: n,
    rivals=[
        numpy_rival(total_team, OURS, name="teams"),
        numpy_rival(total_raw, OURS, name="launch, shuffles and an atomic sum"),
        numpy_rival(np.sum, "numpy", name="NumPy"),
    ],
)

BENCHES = [MAP, SUM]
