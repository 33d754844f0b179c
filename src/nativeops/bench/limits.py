# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at most, measured in the same run as what is held against it."""

from collections.abc import Callable

from nativeops.library import extension, get_num_threads


def vector_rate(operations: int) -> float:
    """Vector instructions a second on all threads in use.

    Args:
        operations: Length of the instruction mix: 2 sub and max, 3 sub, and, add, and so on. The
            mix runs on registers alone, with enough independent chains to hide every latency.
    """
    rate: float = extension().vector_rate(get_num_threads(), operations)
    return rate


def vector_lanes(dtype: str = "float32") -> int:
    """How many numbers one vector instruction takes, at the instruction set in use."""
    lanes: int = extension().vector_lanes()
    return lanes // 2 if dtype == "float64" else lanes


def vector_limit(operations: int, dtype: str = "float32") -> Callable[[], float]:
    """The limit of work counted in operations on single numbers, for `Bench.limit`."""
    return lambda: vector_rate(operations) * vector_lanes(dtype)
