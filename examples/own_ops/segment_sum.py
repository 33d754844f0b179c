# SPDX-License-Identifier: Apache-2.0
"""Sums of rows by segment, as of messages to the nodes of a graph, and the way back."""

from typing import Annotated, Any

import numpy as np

from nativeops.declare import Array, AtLeast, Float, Int, op


@op(kernel="segment_sum.h")
def segment_sum(
    x: Float[Array, "n d"], segment: Int[Array, "n"], *, count: Annotated[int, AtLeast(0)]
) -> Float[Array, "count d"]:
    """``out[s] = Σ x[i]`` over all rows with ``segment[i] = s``.

    A row whose segment is not one of 0 .. ``count`` - 1 takes no part. The result is the same every
    time: rows are added in the order of ``i``; on the CPU in 2, 4 or 8 parts where segments have 4
    (of less than 64 bytes: 1), 64 or 128 rows each on average and the caches hold the sums of all
    parts. Its gradient is that of the sum: `segment_spread`.

    Cost: O(n·d) time; a workspace of 2 n + 3 count integers, on a GPU of up to 9 n + 3 count, or of
    up to as many results as parts.
    Same as: ``jax.ops.segment_sum(x, segment, count)``.

    >>> segment_sum(np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 1]), count=2)
    array([[2.],
           [5.]])
    """
    inside = (segment >= 0) & (segment < count)
    total = np.zeros((count, x.shape[1]))
    np.add.at(total, segment[inside], x[inside])
    return total


@op(kernel="segment_sum.h")
def segment_spread(x: Float[Array, "m d"], segment: Int[Array, "n"]) -> Float[Array, "n d"]:
    """``out[i] = x[segment[i]]``; 0 where there is no such row."""
    inside = (segment >= 0) & (segment < len(x))
    padded = np.concatenate([x, np.zeros((1, x.shape[1]))])
    return padded[np.where(inside, segment, len(x))]


@segment_sum.gradient
def _(segment, d_out):
    return segment_spread(d_out, segment)


@segment_spread.gradient  # both are linear, and each is the other's transpose
def _(x, segment, d_out):
    return segment_sum(d_out, segment, count=x.shape[0])


def _example(random: np.random.Generator, rows: int, d: int, n: int, m: int) -> dict[str, Any]:
    """Segments to both sides of what is allowed, and some of them often."""
    return {"x": random.standard_normal((rows, d)), "segment": random.integers(-1, m + 1, n)}


@segment_sum.example
def _(random, given):
    return _example(random, given["n"], given["d"], given["n"], given["count"])


@segment_spread.example
def _(random, given):
    return _example(random, given["m"], given["d"], given["n"], given["m"])
