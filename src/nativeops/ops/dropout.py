# SPDX-License-Identifier: Apache-2.0
"""Dropout whose mask follows from a seed."""

from typing import Annotated, Any

import numpy as np

from nativeops.declare import Array, AtLeast, AtMost, Float, Int, op


@op(kernel="dropout.h", autocast="keep")
def dropout(
    x: Float[Array, "t b h"],
    seed: Int[Array, "1"],
    *,
    p: Annotated[float, AtLeast(0), AtMost(1)] = 0.5,
    stream: Annotated[int, AtLeast(0)] = 0,
) -> Float[Array, "t b h"]:
    """Inverted dropout: numbers are set to 0 with probability ``p``, the others grow.

    ``out[e] = x[e] / (1 - p)`` where ``bits[e] ≥ ⌊p·2^32⌋``, else 0. ``bits[e]`` is word ``e mod
    4`` of Philox 4x32-10 with the counter ``(⌊e/4⌋, stream)`` and the key ``seed``, each in two
    words, the low one first; ``e`` counts the elements, the last axis fastest.

    Args:
        x: The numbers.
        seed: Any integer. The same seed gives the same mask, in all dtypes, frameworks and devices.
        p: The probability of 0. All is 0 where it is 1.
        stream: One seed has an independent mask for each.

    NaN: stays where it is, or is set to 0.
    Gradient: for ``x``: the same op with the same seed. Nothing is kept but the seed.
    Cost: O(t·b·h) time; no memory beyond the result.
    Same as: ``torch.nn.functional.dropout(x, p)``, which draws other masks.
    Source: Srivastava et al. 2014, Dropout: a simple way to prevent neural networks from
        overfitting; Salmon, Moraes, Dror & Shaw 2011, Parallel random numbers: as easy as 1, 2, 3.

    >>> dropout(np.ones((1, 1, 8)), np.array([7]), p=0.5).ravel()
    array([2., 2., 0., 0., 0., 2., 0., 2.])
    """
    key = int(seed[0]) % 2**64
    index = np.arange(-(-x.size // 4), dtype=np.uint64)
    words = philox((index, index >> np.uint64(32), stream, stream >> 32), (key, key >> 32))
    bits = np.stack(words, 1).ravel()[: x.size].reshape(x.shape)
    kept: Any = np.where(bits >= np.floor(p * 2.0**32), x / (1 - p) if p < 1 else x, 0)
    return kept


def philox(counter: tuple[Any, ...], key: tuple[int, int]) -> tuple[Any, ...]:
    """The four words of Philox 4x32-10, of which `counter` and `key` have the low 32 bits."""
    mask, half = np.uint64(2**32 - 1), np.uint64(32)
    a, b, c, d = (np.asarray(word, np.uint64) & mask for word in counter)
    for turn in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        low, high = (
            np.uint64((word + turn * step) % 2**32)
            for word, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
        )
        a, b, c, d = (
            (second >> half) ^ b ^ low,
            second & mask,
            (first >> half) ^ d ^ high,
            first & mask,
        )
    return a, b, c, d


@dropout.gradient
def _(seed, d_out, p, stream):  # type: ignore[no-untyped-def]
    return dropout(d_out, seed, p=p, stream=stream)
