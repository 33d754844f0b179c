# SPDX-License-Identifier: Apache-2.0
"""What a ``_bench.py`` file is made of: a `Bench`, its sizes and limit, and its `Rival`s."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NdArray = NDArray[Any]
Size = Mapping[str, int]

OURS = "nativeops"


class Known(NamedTuple):
    """Right values of one result: those at `index`, computed in float64."""

    index: Any
    values: NdArray


class Later:
    """A result that becomes a NumPy array when it is compared, which is not timed."""

    def __init__(self, value: Any, convert: Callable[[Any], Any]) -> None:
        self.value = value
        self.convert = convert

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NdArray:
        return np.asarray(self.convert(self.value), dtype)


@dataclass(frozen=True)
class Rival:
    """One way to compute the same.

    Args:
        name: What the report calls it.
        prepare: From the input arrays to the call that is timed. What it does itself (converting
            the arrays, compiling) is not timed.
        package: The installed package whose version is recorded; missing means skipped.
        framework: Whose arrays it is called with.
        memory: Bytes it needs beyond its inputs, from the sizes, where that can be too much.
        calls: How often the call runs the computation; its time is divided by that.
        aside: Whether it runs in an environment of its own, see `nativeops.bench.aside`.
        declines: Why it is left out, from the sizes; empty if it is not.
    """

    name: str
    prepare: Callable[..., Callable[[], Any]]
    package: str
    framework: str
    memory: Callable[..., float] | None = None
    calls: int = 1
    aside: bool = False
    declines: Callable[..., str] | None = None

    @property
    def ours(self) -> bool:
        """Whether this is the package under measurement."""
        return self.package == OURS


@dataclass(frozen=True)
class Bench:
    """One question: how long does this work take, whoever does it.

    Args:
        name: Short and unique within the op, for example ``forward``.
        about: One line for the report: what is timed.
        sizes: The sizes, smallest work first.
        inputs: From a random generator and the sizes to the arrays every rival gets.
        rivals: Who is measured, in the order of the rounds.
        expected: From the arrays to known values of each result; a rival that misses them by
            more than `tolerance` times the largest is wrong, and its time does not count.
        work: The work in the limit's unit, from the sizes.
        limit: Units of work a second that the machine can do at most, measured when called; 0
            where it is not known.
        memory_sizes: The sizes at which peak memory is measured, too.
        environment: Variables to set in the process that measures.
        dtype: Of the arrays.
        peer_tolerance: Instead of `tolerance` for the results of others, where those that are fast
            are less exact than ours.
        seconds: How long a size is measured at most, beyond the fewest rounds; by default as long
            as for all cases.
    """

    name: str
    about: str
    sizes: Sequence[Size]
    inputs: Callable[..., tuple[NdArray, ...]]
    rivals: Sequence[Rival]
    expected: Callable[..., Sequence[Known]] | None = None
    work: Callable[..., float] | None = None
    limit: Callable[[], float] | None = None
    memory_sizes: Sequence[Size] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    tolerance: float = 1e-5
    peer_tolerance: float | None = None
    seconds: float = math.inf

    def arrays(self, size: Size) -> tuple[NdArray, ...]:
        """The inputs at one size: the same numbers in every process."""
        return self.inputs(np.random.default_rng(0), **size)

    def tolerance_of(self, rival: Rival) -> float:
        """By how much its results may be wrong."""
        given = None if rival.ours else self.peer_tolerance
        return self.tolerance if given is None else given

    def rival(self, name: str) -> Rival:
        """The rival of that name."""
        return next(rival for rival in self.rivals if rival.name == name)


def size_text(size: Size) -> str:
    """``n=1000 m=1000 d=128``."""
    return " ".join(f"{axis}={length}" for axis, length in size.items())


def spread_rows(n: int, most: int = 256) -> NdArray:
    """At most that many of `n` row numbers, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
