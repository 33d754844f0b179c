# SPDX-License-Identifier: Apache-2.0
"""segment_sum against what each framework has for it."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from segment_sum import segment_sum

from nativeops.bench.case import Bench, Known, NdArray, Rival
from nativeops.bench.forms import jax_rival, numpy_rival, ours_in, tensorflow_rival, torch_rival
from nativeops.bench.machine import package_version

# Messages of 64 numbers to the nodes of a graph; long rows; few messages to each of many nodes;
# short rows; a few of these for each segment.
SIZES = [
    {"n": 100_000, "d": 64, "count": 1_000},
    {"n": 1_000_000, "d": 64, "count": 10_000},
    {"n": 100_000, "d": 512, "count": 5_000},
    {"n": 1_000_000, "d": 64, "count": 200_000},
    {"n": 1_000_000, "d": 16, "count": 200_000},
    {"n": 3_000_000, "d": 4, "count": 1_000},
    {"n": 3_000_000, "d": 4, "count": 1_000_000},
]


def rows(random: np.random.Generator, n: int, d: int, count: int) -> tuple[NdArray, ...]:
    """Rows and their segments, the last of which is used."""
    segment = random.integers(0, count, n)
    segment[0] = count - 1
    return random.standard_normal((n, d), dtype=np.float32), segment


def sums(x: NdArray, segment: NdArray) -> list[Known]:
    """Some columns."""
    count, columns = segment.max() + 1, slice(None, None, max(1, x.shape[1] - 1))
    total = [np.bincount(segment, each, count) for each in x.T[columns].astype(np.float64)]
    return [Known((slice(None), columns), np.stack(total, -1))]


def read_limit(n: int, d: int, **_: int) -> Callable[[], float]:
    """Numbers a second that PyTorch's sum of all of them reads, from two copies in turn."""
    copies: list[Any] = []

    def limit() -> float:
        if package_version("torch") is None:
            return 0.0
        import torch

        if not copies:
            copies.extend(torch.randn(n * d) for _ in range(2))
        copies.reverse()
        started = time.perf_counter()
        copies[0].sum()
        return n * d / (time.perf_counter() - started)

    return limit


def add_at(x: NdArray, segment: NdArray, count: int) -> Any:
    """NumPy's way."""
    total = np.zeros((count, x.shape[1]), x.dtype)
    np.add.at(total, segment, x)
    return total


def index_add(x: Any, segment: Any, count: int) -> Any:
    """PyTorch's op."""
    return x.new_zeros(count, x.shape[1]).index_add_(0, segment, x)


def scatter_add(x: Any, segment: Any, count: int) -> Any:
    """PyTorch's other op, which sorts where that pays."""
    index = segment[:, None].expand(-1, x.shape[1])
    return x.new_zeros(count, x.shape[1]).scatter_add_(0, index, x)


def jax_segment_sum(x: Any, segment: Any, count: int) -> Any:
    """JAX's op, compiled."""
    import jax

    return jax.ops.segment_sum(x, segment, count)


def unsorted_segment_sum(x: Any, segment: Any, count: int) -> Any:
    """TensorFlow's op."""
    import tensorflow as tf

    return tf.math.unsorted_segment_sum(x, segment, count)


def rivals(count: int) -> list[Rival]:
    """For one number of segments, which is no array."""
    ours = partial(segment_sum, count=count)
    return [
        *ours_in(ours, "numpy"),
        numpy_rival(partial(add_at, count=count), "numpy", name="add_at"),
        *ours_in(ours, "torch"),
        torch_rival(partial(index_add, count=count), name="index_add"),
        torch_rival(partial(scatter_add, count=count), name="scatter_add"),
        *ours_in(ours, "jax"),
        jax_rival(partial(jax_segment_sum, count=count), name="jax_segment_sum"),
        *ours_in(ours, "tensorflow"),
        tensorflow_rival(partial(unsorted_segment_sum, count=count), name="unsorted_segment_sum"),
    ]


BENCHES = [
    Bench(
        f"{size['n']} rows of {size['d']} to {size['count']}",
        "the sum of the rows of each segment; the limit reads as many numbers in order",
        sizes=[size],
        inputs=rows,
        expected=sums,
        work=lambda n, d, count: n * d,
        limit=read_limit(**size),
        rivals=rivals(size["count"]),
    )
    for size in SIZES
]
