# SPDX-License-Identifier: Apache-2.0
"""Arrays of more than 2^31 elements that take no memory, and what the results must then be.

The pages of such an array are all the same few megabytes, mapped again and again (see `ring.py`).
Inputs have one value everywhere, so that a result follows a law in the size, which is found on the
reference at small sizes (see `law.py`).
"""

import math
import os
import resource
import time
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.checking import invoke, source
from nativeops.checking.finding import Case, Finding, Steps, Unchecked, found
from nativeops.checking.law import SMALL, law
from nativeops.checking.narrowing import overflow
from nativeops.checking.ring import Ring, clear, untouched
from nativeops.signature import ArraySpec, Solution
from nativeops.testing.arrays import numpy_dtype
from nativeops.testing.draw import (
    arguments,
    defaults,
    fits,
    free_names,
    lead_name,
    numbers,
)
from nativeops.testing.matrix import dtype_choices
from nativeops.testing.returned import FLOATS, results_of

ONE, TWO = (1 << 31) + 5, 46349  # of one axis; of each of two, whose product is above 2^31
LIMIT = 1 << 31
BEYOND = 4  # from the last size below a limit to one that is above it
VALUE = 0.75  # of all floating point inputs that may have any
NEAR = 1e-6
COMMON = 0.75  # of the places, at the smallest size
GROWTH = tuple(8**k for k in range(4, 10))  # elements for which the time is measured before
NOTICEABLE = 0.02  # seconds
APART = 1 << 26  # numbers of results that there is memory for
LONGEST = 25.0  # seconds that a run may be expected to take; job.py stops a silent one after 300
MOST_BYTES = 7 << 34  # of an array: a process has 65530 mappings, of 4 MB here, for both rings
SHARE = 4  # a quarter of the memory is for workspaces
NO_MEMORY = "no memory for a workspace"  # what a kernel says
LEAD = "*"  # stands for the leading axes among the names of axes


def steps(op: Op[Any]) -> Steps:
    """Each axis beyond the limit, and two axes of one array whose product is."""
    invoke.use(op, "cpu", "")  # under a sanitizer it would take minutes
    limit_memory()
    for names in scalings(op):
        run = Large(op, names)
        if not run.possible():
            continue
        if run.n_bytes(run.largest) > MOST_BYTES:
            yield Unchecked(f"{op.name} along {run.axes()} (no process has room for such arrays)")
            continue
        expected = run.expected()
        if expected > LONGEST:
            yield Unchecked(f"{op.name} along {run.axes()} (about {expected:.0f} s)")
            continue
        yield Case(f"{run.axes()} of {run.largest}")  # before it runs: the process may not live on
        wrong = run.check(run.largest)
        if NO_MEMORY in wrong:
            yield Unchecked(f"{op.name} along {run.axes()} (its workspace does not fit in memory)")
        elif wrong and run.reads_results():
            yield Unchecked(
                f"{op.name} along {run.axes()} (it reads results, which share memory here)"
            )
        elif wrong:
            yield from explain(run, wrong)
            return


def steps_below(op: Op[Any], case: str) -> Steps:
    """Smaller sizes, after a kernel left its arrays and ended the process with this case."""
    invoke.use(op, "cpu", "")
    limit_memory()
    runs = (Large(op, names) for names in scalings(op))
    run = next(run for run in runs if case.startswith(f"{run.axes()} of "))
    yield from explain(run, "the kernel left its arrays")


def explain(run: "Large", wrong: str) -> Steps:
    """Where that begins which is wrong beyond the limit: at the limit if it is an overflow."""
    right = 0
    for n in run.below():
        yield Case(f"{run.axes()} of {n}", blame(run, "the kernel left its arrays", n, right))
        said = run.check(n)
        if said and NO_MEMORY not in said:
            yield blame(run, said, n, right)
            return
        right = right if said else n
    yield blame(run, wrong, run.largest, right)


def blame(run: "Large", wrong: str, n: int, right: int) -> Finding:
    """The finding for a size, where a smaller one was the last that was right."""
    text = f"{wrong}, with {run.axes()} of {n}. "
    text += f"It is right with {right}." if right else "No smaller size was tried."
    if unit := run.limits().get(right):
        return overflow(run.op, unit, text)
    return found(run.op.name, "wrong at large sizes", text, source.kernel(run.op))


def limit_memory() -> None:
    """Refuse a workspace as large as the arrays seem: filling it would stall the machine."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_DATA, (memory // SHARE, most))


def scalings(op: Op[Any]) -> Iterator[tuple[str, ...]]:
    """The axes that grow together."""
    names = [*free_names(op), *([LEAD] if lead_name(op) else [])]
    yield from ((name,) for name in names)
    for spec in (*op.signature.inputs, *op.signature.outputs):
        lead = [LEAD] if spec.batch else []
        own = [*(axis.name for axis in spec.axes if axis.name in names), *lead]
        if len(own) > 1:
            yield (str(own[0]), str(own[1]))
            return


@cache
def rings(n_bytes: int) -> tuple[Ring, Ring]:
    """Memory for all inputs and for all results; made once for a size, since that takes seconds."""
    return Ring(n_bytes), Ring(n_bytes)


class Large:
    """An op with some axes of a size that grows, and all others of size 1."""

    def __init__(self, op: Op[Any], names: tuple[str, ...]) -> None:
        self.op, self.names = op, names
        self.largest = ONE if len(names) == 1 else TWO
        wide = {"Float": "float64", "Int": "int64"}
        self.dtypes = {variable: wide[variable] for variable in dtype_choices(op)[0]}
        self.attributes = defaults(op)
        one = dict.fromkeys(free_names(op), 1)
        drawn = fits(op, one, self.attributes)  # else there is no such array to take a value from
        given = arguments(op, np.random.default_rng(3), one, None, self.attributes) if drawn else {}
        self.arrays = (*op.signature.inputs, *op.signature.outputs)
        self.values = {s.name: self.value(s, given.get(s.name)) for s in op.signature.inputs}

    def value(self, spec: ArraySpec, drawn: Any) -> Any:
        """The one value of an input; None if it has no element even where all axes have one."""
        if drawn is None:
            return None
        if spec.kind in FLOATS and self.op.make_example is None:
            return VALUE
        return next(iter(np.asarray(drawn).reshape(-1)), None)

    def known(self, n: int) -> dict[str, int]:
        """The sizes of all names."""
        sizes = {name: n if name in self.names else 1 for name in free_names(self.op)}
        return {**sizes, **numbers(self.attributes)}

    def lead(self, n: int) -> tuple[int, ...]:
        """The leading axes."""
        return ((n,) if LEAD in self.names else (1,)) if lead_name(self.op) else ()

    def possible(self) -> bool:
        """Whether such arguments exist, small and large."""
        filled = all(value is not None for value in self.values.values())
        sizes = (*SMALL, self.largest)
        if not filled or not all(fits(self.op, self.known(n), self.attributes) for n in sizes):
            return False
        made = self.op.signature.outputs
        return all(0 not in self.shape(spec, n) for spec in made for n in sizes)

    def shape(self, spec: ArraySpec, n: int) -> tuple[int, ...]:
        """The shape of an array."""
        solution = Solution(self.known(n), self.lead(n), self.dtypes)
        shape: tuple[int, ...] = self.op.signature.output_shape(spec, solution)
        return shape

    def count(self, spec: ArraySpec, n: int) -> int:
        """The elements of an array."""
        return math.prod(self.shape(spec, n))

    def dtype(self, spec: ArraySpec) -> str:
        """The widest dtype that the array may have."""
        return spec.dtype(self.dtypes)

    def axes(self) -> str:
        """The axes that grow, for a sentence."""
        return " and ".join("the leading axes" if n == LEAD else f"`{n}`" for n in self.names)

    def limits(self) -> dict[int, str]:
        """The last sizes below what 32 bits can count, and what that is."""
        counts = {"2^31 bytes": self.n_bytes, "2^31": self.n_elements}
        sizes = range(self.largest)
        last = {bisect_left(sizes, LIMIT, key=of) - 1: (unit, of) for unit, of in counts.items()}
        return {n: unit for n, (unit, of) in last.items() if of(n + 1) >= LIMIT}

    def below(self) -> list[int]:
        """Sizes below the one that matters: some small ones, and both sides of each limit."""
        small = [round(elements ** (1 / len(self.names))) for elements in GROWTH]
        sides = [n + step for n in self.limits() for step in (0, BEYOND)]
        return sorted(n for n in {*small, *sides} if 0 < n < self.largest)

    def n_bytes(self, n: int) -> int:
        """The bytes of the largest array."""
        sizes = {s: numpy_dtype(self.dtype(s)).itemsize for s in self.arrays}
        return max(self.count(s, n) * int(size) for s, size in sizes.items())

    def n_elements(self, n: int) -> int:
        """The elements of the largest array, or what the growing axes multiply to."""
        return max(math.prod([n] * len(self.names)), *(self.count(s, n) for s in self.arrays))

    def rings(self, n: int) -> tuple[Ring, Ring]:
        """Room for arrays of a size: several times the usual one where they have an axis `2*h`."""
        usual = (max(ONE, TWO * TWO) + 64) * 8
        return rings(-(-self.n_bytes(n) // usual) * usual)

    def reads_results(self) -> bool:
        """Whether the first size that is wrong is right where each number has its own place."""
        wrong = (n for n in self.below() if (said := self.check(n)) and NO_MEMORY not in said)
        n = next(wrong, self.largest)
        numbers = sum(self.count(spec, n) for spec in self.op.signature.outputs)
        return numbers <= APART and not self.check(n, apart=True)

    def check(self, n: int, apart: bool = False) -> str:
        """Run with a size, and compare with the law; what is wrong, if anything is."""
        laws = self.laws(n)
        said, places = self.run(n, apart)
        for spec, at in zip(self.op.signature.outputs, places, strict=True):
            if wrong := compare(at, laws[spec.name]):
                said = said or f"`{spec.name}` {wrong}"
        return said

    def expected(self) -> float:
        """How many seconds the run will take, from the times of small ones."""
        self.rings(1)  # makes them, once
        before, expected = 0.0, 0.0
        total = float(self.largest) ** len(self.names)
        for elements in GROWTH:
            start = time.perf_counter()
            self.run(round(elements ** (1 / len(self.names))))
            taken = time.perf_counter() - start
            power = math.log(taken / before, 8) if before > NOTICEABLE else 1.0
            expected = taken * (total / elements) ** (power if power > 1.4 else 1.0)
            if taken > NOTICEABLE and expected > 4 * LONGEST:
                break
            before = taken
        return expected

    def run(self, n: int, apart: bool = False) -> tuple[str, list[Any]]:
        """Call the kernel; what it says if it fails, and the places of its results.

        Many numbers of a result share a place, unless all are to lie `apart`.
        """
        given, made = self.rings(n)
        inputs, outputs, places = [], [], []
        for spec in self.op.signature.inputs:
            shape, dtype = self.shape(spec, n), self.dtype(spec)
            if dtype == "float64" and self.values[spec.name] == VALUE:
                given.places(shape, dtype)[...] = VALUE
                inputs.append((given.array(shape, dtype), dtype))
            else:
                one = np.full(1, self.values[spec.name], numpy_dtype(dtype))
                inputs.append((repeated(one, shape), dtype))
        for number, spec in enumerate(self.op.signature.outputs):
            shape, dtype = self.shape(spec, n), self.dtype(spec)
            if apart:
                at = np.empty(math.prod(shape), numpy_dtype(dtype))
                array = at.reshape(shape)
            elif number:
                at = np.empty(1, numpy_dtype(dtype))
                array = repeated(at, shape)
            else:
                at, array = made.places(shape, dtype), made.array(shape, dtype)
            clear(at)
            outputs.append((array, dtype))
            places.append(at)
        attributes = [self.attributes[spec.name] for spec in self.op.signature.attributes]
        return invoke.call(self.op, inputs, outputs, attributes), places

    def laws(self, size: int) -> dict[str, float | None]:
        """What each result must be with a size; None where no law was found."""
        seen = [self.middle(n) for n in SMALL]
        return {name: law([each[name] for each in seen], size) for name in seen[0]}

    def middle(self, n: int) -> dict[str, float]:
        """The middle element of each result of the reference; NaN if few others are like it."""
        specs = self.op.signature.inputs
        given = {s.name: np.full(self.shape(s, n), self.values[s.name]) for s in specs}
        outputs = self.op.signature.outputs
        shapes = [self.shape(spec, n) for spec in outputs]
        results = results_of(self.op, {**given, **self.attributes}, shapes)
        return {spec.name: common(each) for spec, each in zip(outputs, results, strict=True)}


def common(result: Any) -> float:
    """The number that nearly all places of a result have, as they do beyond borders; else NaN."""
    result = np.asarray(result, np.float64)
    middle = result[tuple(size // 2 for size in result.shape)]
    alike = np.abs(result - middle) <= NEAR * max(1.0, abs(middle))
    return float(middle) if alike.mean() >= COMMON else math.nan


def repeated(one: Any, shape: tuple[int, ...]) -> Any:
    """The first element in every place: all strides are 0."""
    return np.lib.stride_tricks.as_strided(one, shape, (0,) * len(shape))


def compare(places: Any, expected: float | None) -> str:
    """What is wrong with a result, if anything is."""
    if missing := untouched(places):
        return f"was not written everywhere (of {places.size} places, {missing} were not)"
    if expected is None or not np.isfinite(expected):
        return ""
    middle = float(np.median(places.astype(np.float64)))
    if abs(middle - expected) > NEAR * max(1.0, abs(expected)):
        return f"is {middle:.9g} instead of {expected:.9g}"
    return ""
