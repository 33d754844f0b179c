# SPDX-License-Identifier: Apache-2.0
"""pairwise_lp against its rivals."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import Bench, Known, NdArray, spread_rows
from nativeops.bench.forms import numpy_rival, ours_in, torch_gradient, torch_rival
from nativeops.bench.limits import DISTANCE, product_limit, vector_limit
from nativeops.ops.pairwise_l1_bench import with_d_out

SIZES = [{"n": 1000, "m": 1000, "d": 128}, {"n": 4096, "m": 4096, "d": 256}]
ONE = [
    {"n": 1, "m": 1000, "d": 128},
    {"n": 1, "m": 100_000, "d": 128},
]  # the neighbours of one vector

# Operations for each pair of numbers, and what bounds them.
LIMITS = {
    2.0: (2, product_limit("float32")),  # xy, add: as a product of matrices
    np.inf: (3, vector_limit(DISTANCE)),  # subtract, clear the sign, choose the larger
}


def distances(x: NdArray, y: NdArray, p: float) -> list[Known]:
    """Some rows of the result."""
    wide = y.astype(np.float64)
    rows = spread_rows(len(x))
    return [Known(rows, np.stack([np.linalg.norm(x[i] - wide, p, axis=-1) for i in rows]))]


def gradients(x: NdArray, y: NdArray, d_out: NdArray, p: float) -> list[Known]:
    """Some rows of both gradients, for p below infinity."""

    def some(a: NdArray, b: NdArray, weights: NdArray) -> Known:
        rows = spread_rows(len(a))
        values = []
        for i in rows:
            difference = a[i] - b.astype(np.float64)
            scale = np.linalg.norm(difference, p, axis=-1)[:, None]
            slope = np.sign(difference) * (np.abs(difference) / scale) ** (p - 1)
            values.append(weights[i] @ slope)
        return Known(rows, np.stack(values))

    return [some(x, y, d_out), some(y, x, d_out.T)]


def scipy(x: NdArray, y: NdArray, p: float) -> Any:
    """The special metric where there is one: it is faster than minkowski."""
    from scipy.spatial.distance import cdist

    if p == 2:
        return cdist(x, y, "euclidean")
    return cdist(x, y, "chebyshev") if np.isinf(p) else cdist(x, y, "minkowski", p=p)


def torch_cdist(x: Any, y: Any, p: float) -> Any:
    """For p = 2 by its definition, as ours: the way over a matrix product cancels."""
    import torch

    return torch.cdist(x, y, p=p, compute_mode="donot_use_mm_for_euclid_dist")


def torch_product(x: Any, y: Any, p: float) -> Any:
    """For p = 2 only: x·x - 2 x·y + y·y, fast, and wrong where two vectors are close."""
    import torch

    return torch.cdist(x, y, p=p, compute_mode="use_mm_for_euclid_dist")


def forward(p: float, sizes: list[dict[str, int]] = SIZES, of: str = "") -> Bench:
    """The distances for one power."""
    operations, limit = LIMITS.get(p, (1, None))
    ours: Callable[..., Any] = partial(nativeops.pairwise_lp, p=p)
    rivals = [
        *ours_in(ours, "numpy", "torch"),
        numpy_rival(partial(scipy, p=p), "scipy", name="scipy"),
        torch_rival(partial(torch_cdist, p=p), name="torch_cdist"),
    ]
    if p == 2:
        rivals.append(torch_rival(partial(torch_product, p=p), name="torch_product"))
    return Bench(
        f"p={p:g}{of}",
        "from two sets of vectors to the matrix of distances",
        sizes=sizes,
        memory_sizes=SIZES if p == 2 and not of else (),
        inputs=lambda random, **size: with_d_out(random, **size)[:2],
        expected=partial(distances, p=p),
        work=lambda n, m, d: operations * n * m * d,
        limit=None if of else limit,  # one vector: the others are read, and that is all
        rivals=rivals,
    )


def gradient(p: float) -> Bench:
    """The distances and the gradients for one power."""
    return Bench(
        f"p={p:g} gradient",
        "the distances, and from a gradient of them those of both sets",
        sizes=SIZES,
        inputs=with_d_out,
        expected=partial(gradients, p=p),
        work=lambda n, m, d: n * m * d,
        rivals=[
            *ours_in(partial(nativeops.pairwise_lp, p=p), "torch", gradient=True),
            torch_gradient(partial(torch_cdist, p=p), name="torch_cdist"),
        ],
    )


BENCHES = [
    forward(2.0),
    forward(np.inf),
    forward(3.0),
    forward(2.0, ONE, " from one vector"),
    gradient(2.0),
    gradient(3.0),
]
