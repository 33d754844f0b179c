# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at most, measured in the same run as what is held against it."""

import time
from collections.abc import Callable
from typing import Any

from nativeops.bench.machine import package_version
from nativeops.bench.measure import settle
from nativeops.library import extension

MULTIPLY_ADD = 1
SMALLER = 2  # choose the smaller, add: |x - y| = x + y - 2 min(x, y)
DISTANCE = 3  # subtract, clear the sign, add
GRADIENT = 4  # subtract, sign, add twice


def vector_rate(mix: int) -> tuple[float, int]:
    """Vector instructions a second, in one of the mixes above, and float32 numbers in a vector.

    They run on all threads and on registers alone, in enough independent chains to hide every
    latency. Both are 0 where the kernels in use have no vectors of their own.
    """
    rate, lanes = extension().vector_rate(mix)
    return rate, lanes


def vector_limit(*mixes: int) -> Callable[[], float]:
    """Operations on float32 numbers a second, one mix after the other: for `Bench.limit`.

    It is 0 where that is not known.
    """

    def limit() -> float:
        rates = [rate * lanes for rate, lanes in map(vector_rate, mixes)]
        if not all(rates):
            return 0.0
        return sum(mixes) / sum(mix / rate for mix, rate in zip(mixes, rates, strict=True))

    return limit


WAKING = 0.03  # seconds in which threads that slept have come back, each to a CPU
PRODUCT = 2048  # rows and columns; larger products are no faster (2 CPUs, 2026-11)


def product_limit(dtype: str) -> Callable[[], float]:
    """Operations a second of products of large matrices: for `Bench.limit`.

    Those of PyTorch's, or of float32 numbers multiplied and added in registers alone where these
    are more: some libraries of PyTorch's use half of the vectors of some processors. It is 0 where
    neither is known.
    """
    matrices: list[Any] = []

    def in_registers() -> float:
        if dtype != "float32":
            return 0.0
        best, end = 0.0, time.perf_counter() + WAKING
        while time.perf_counter() < end:
            rate, lanes = vector_rate(MULTIPLY_ADD)
            best = max(best, 2.0 * rate * lanes)
        return best

    def limit() -> float:
        if package_version("torch") is None:
            return in_registers()
        import torch

        if not matrices:
            kind = getattr(torch, dtype)
            matrices.extend(torch.randn(PRODUCT, PRODUCT).to(kind) for _ in range(2))
        started = time.perf_counter()
        torch.mm(*matrices)
        product = 2.0 * PRODUCT**3 / (time.perf_counter() - started)
        settle()
        return max(product, in_registers())

    return limit
