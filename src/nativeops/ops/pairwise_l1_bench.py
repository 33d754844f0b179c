# SPDX-License-Identifier: Apache-2.0
"""pairwise_l1 against its rivals."""

import subprocess
import sys
from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival, spread_rows
from nativeops.bench.forms import (
    jax_gradient,
    jax_rival,
    numpy_rival,
    ours_in,
    repeated,
    torch_gradient,
    torch_rival,
)
from nativeops.bench.limits import GRADIENT, SMALLER, vector_limit

# The table that this op once was asked for: few vectors, many numbers.
TABLE = [{"n": n, "m": n, "d": 512} for n in (32, 64, 128)]
HEADLINE = [
    {"n": 1000, "m": 1000, "d": 128},
    {"n": 4096, "m": 4096, "d": 256},
    {"n": 20000, "m": 20000, "d": 64},
]
TINY = [{"n": 4, "m": 4, "d": 8}]


def two_sets(random: np.random.Generator, n: int, m: int, d: int) -> tuple[NdArray, ...]:
    """Vectors of normally distributed numbers."""
    return (
        random.standard_normal((n, d), dtype=np.float32),
        random.standard_normal((m, d), dtype=np.float32),
    )


def with_d_out(random: np.random.Generator, n: int, m: int, d: int) -> tuple[NdArray, ...]:
    """The same, and what flows back."""
    return (*two_sets(random, n, m, d), random.standard_normal((n, m), dtype=np.float32))


def distances(x: NdArray, y: NdArray) -> list[Known]:
    """Some rows of the result."""
    wide = y.astype(np.float64)
    rows = spread_rows(len(x))
    return [Known(rows, np.stack([np.abs(x[i] - wide).sum(-1) for i in rows]))]


def distance_sums(x: NdArray, y: NdArray) -> list[Known]:
    """Some rows of the result's sum over `y`."""
    return [Known(index, values.sum(-1)) for index, values in distances(x, y)]


def gradients(x: NdArray, y: NdArray, d_out: NdArray) -> list[Known]:
    """Some rows of both gradients: sums of d_out with the signs of x - y."""

    def some(a: NdArray, b: NdArray, weights: NdArray) -> Known:
        rows = spread_rows(len(a))
        return Known(rows, np.stack([weights[i] @ np.sign(a[i] - b) for i in rows]))

    weights = d_out.astype(np.float64)
    return [some(x, y, weights), some(y, x, weights.T)]


def scipy(x: NdArray, y: NdArray) -> Any:
    """On one thread, in float64: it knows no other way."""
    from scipy.spatial.distance import cdist

    return cdist(x, y, "cityblock")


def sklearn(x: NdArray, y: NdArray) -> Any:
    """With its threads where they pay."""
    from sklearn.metrics import pairwise_distances

    # Its threads cost it 10 ms a call: with little work it is faster without.
    jobs = -1 if len(x) * len(y) * x.shape[1] > 3e7 else 1
    return pairwise_distances(x, y, metric="manhattan", n_jobs=jobs)


def torch_cdist(x: Any, y: Any) -> Any:
    """The op that PyTorch has for it."""
    import torch

    return torch.cdist(x, y, p=1)


def torch_broadcast(x: Any, y: Any) -> Any:
    """The formula, as one writes it first."""
    return (x[:, None] - y).abs().sum(-1)


def torch_loop(x: Any, y: Any) -> Any:
    """A row at a time, to need less memory."""
    import torch

    return torch.stack([(row - y).abs().sum(-1) for row in x])


def torch_pair_loop(x: Any, y: Any) -> Any:
    """A pair at a time, as the table's loop was: its time grew with n·m."""
    import torch

    return torch.stack([torch.stack([(row - other).abs().sum() for other in y]) for row in x])


def jax_broadcast(x: Any, y: Any) -> Any:
    """The formula; its compiler may fuse it."""
    return abs(x[:, None] - y).sum(-1)


def keops_row_sums(x: Any, y: Any) -> Any:
    """Lazy: the matrix is never there."""
    from pykeops.torch import LazyTensor

    return (LazyTensor(x[:, None]) - LazyTensor(y[None])).abs().sum(-1).sum(1)[:, 0]


def ours_row_sums(x: Any, y: Any) -> Any:
    """The whole matrix, then its sums."""
    return nativeops.pairwise_l1(x, y).sum(-1)


def twice(n: int, m: int, d: int) -> float:
    """Bytes of the broadcast difference and its absolute value."""
    return 2 * 4 * n * m * d


def loop(n: int, m: int, d: int) -> float:
    """Bytes of a difference per row: the results lie between them, so none is given back."""
    return 4 * n * m * d


def kept(n: int, m: int, d: int) -> float:
    """Bytes with a graph: the difference is kept, and its gradient needs two more."""
    return 3 * 4 * n * m * d


RIVALS = [
    *ours_in(nativeops.pairwise_l1, "numpy", "torch"),
    numpy_rival(scipy, "scipy"),
    numpy_rival(sklearn, "scikit-learn"),
    torch_rival(torch_cdist),
    torch_rival(torch_broadcast, memory=twice),
    torch_rival(torch_loop, memory=loop),
    jax_rival(jax_broadcast),
]

FORWARD = Bench(
    "forward",
    "from two sets of vectors to the matrix of distances",
    sizes=HEADLINE,
    inputs=two_sets,
    expected=distances,
    work=lambda n, m, d: SMALLER * n * m * d,
    limit=vector_limit(SMALLER),
    memory_sizes=HEADLINE,
    rivals=RIVALS,
)

FEW_LONG = Bench(
    "few long vectors",
    "the same for few vectors of many numbers, also by a loop over all pairs",
    sizes=TABLE,
    inputs=two_sets,
    expected=distances,
    work=lambda n, m, d: SMALLER * n * m * d,
    limit=vector_limit(SMALLER),
    rivals=[*RIVALS, torch_rival(torch_pair_loop)],
)

TRAINING = Bench(
    "gradient",
    "the distances, and from a gradient of them those of both sets",
    sizes=[*TABLE, *HEADLINE],
    inputs=with_d_out,
    expected=gradients,
    work=lambda n, m, d: (SMALLER + GRADIENT) * n * m * d,
    limit=vector_limit(SMALLER, GRADIENT),
    memory_sizes=HEADLINE,
    rivals=[
        *ours_in(nativeops.pairwise_l1, "numpy", "torch", gradient=True),
        torch_gradient(torch_cdist),
        torch_gradient(torch_broadcast, memory=kept),
        torch_gradient(torch_loop, memory=loop),
        jax_gradient(jax_broadcast, memory=kept),
    ],
)

ROW_SUMS = Bench(
    "row sums",
    "the sum of the distances per vector: the form in which KeOps can compute them",
    sizes=HEADLINE[:2],
    inputs=two_sets,
    expected=distance_sums,
    work=lambda n, m, d: SMALLER * n * m * d,
    limit=vector_limit(SMALLER),
    rivals=[
        *ours_in(ours_row_sums, "torch"),
        torch_rival(keops_row_sums, "pykeops"),
    ],
)

PORTABLE = Bench(
    "portable",
    "the portable kernel, with NATIVEOPS_ISA=portable",
    sizes=HEADLINE[:2],
    inputs=two_sets,
    expected=distances,
    environment={"NATIVEOPS_ISA": "portable"},
    work=lambda n, m, d: SMALLER * n * m * d,
    rivals=[
        *ours_in(nativeops.pairwise_l1, "numpy"),
        numpy_rival(scipy, "scipy"),
    ],
)

OVERHEAD = Bench(
    "overhead",
    "one call on arrays so small that only the call itself counts",
    sizes=TINY,
    inputs=two_sets,
    expected=distances,
    rivals=[
        repeated(rival, no_grad=rival.name.endswith("no_grad"))
        for rival in (
            numpy_rival(nativeops.pairwise_l1, OURS, name="ours, NumPy"),
            torch_rival(nativeops.pairwise_l1, OURS, name="ours, torch under no_grad"),
            torch_rival(nativeops.pairwise_l1, OURS, name="ours, torch"),
            torch_rival(
                nativeops.pairwise_l1, OURS, name="ours, torch, kept for a gradient",
                needs_gradient=True,
            ),
            numpy_rival(scipy, "scipy"),
            torch_rival(torch_cdist, name="torch_cdist under no_grad"),
            torch_rival(torch_cdist),
            torch_rival(torch_cdist, name="torch_cdist, kept for a gradient", needs_gradient=True),
        )
    ],
)  # fmt: skip

OVERHEAD_GRADIENT = Bench(
    "overhead with gradient",
    "the same, forward and backward",
    sizes=TINY,
    inputs=with_d_out,
    expected=gradients,
    rivals=[
        repeated(torch_gradient(nativeops.pairwise_l1, OURS, name="ours, torch")),
        repeated(torch_gradient(torch_cdist)),
    ],
)


def importing(statement: str, package: str) -> Rival:
    """A fresh interpreter that runs one import statement."""

    def prepare() -> Any:
        return lambda: subprocess.run([sys.executable, "-c", statement], check=True) and ()

    return Rival(f"`{statement}`", prepare, package, "numpy")


IMPORT = Bench(
    "import",
    "a fresh interpreter, started, importing, and ended",
    sizes=[{}],
    inputs=lambda random: (),
    rivals=[
        importing("import nativeops", OURS),
        importing("import numpy", "numpy"),
    ],
)

BENCHES = [FORWARD, FEW_LONG, TRAINING, ROW_SUMS, PORTABLE, OVERHEAD, OVERHEAD_GRADIENT, IMPORT]
