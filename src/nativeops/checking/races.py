# SPDX-License-Identifier: Apache-2.0
"""Races: cases on the device whose blocks are real threads, under ThreadSanitizer.

These run in a child process that the sanitizer's library was loaded into first. It writes to a file
that is read after every case.

A block of 256 threads takes a fifth of a second there, so that a grid of hundreds of blocks would
take minutes. Blocks come one after another, and no race is between two of them: a grid is cut to a
few blocks. Where a kernel is then wrong, as one is whose threads have an element each, it gets more
of them, up to all.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nativeops.call import Op
from nativeops.checking import invoke, reports, source
from nativeops.checking.finding import Case, Finding, Step, Steps, Unchecked, found
from nativeops.checking.source import Place
from nativeops.identity import kernel_files
from nativeops.testing import Case as OpCase
from nativeops.testing import cases
from nativeops.testing.claims import wrong_reuse
from nativeops.testing.draw import fits, free_names
from nativeops.testing.tolerance import is_same

RACES = "thread"
THREADS_OF_A_BLOCK = 64  # of the loop shapes, on the debug device
# Sizes of all axes: fewer than a block has threads, as many, and more than two blocks of them.
RACE_SIZES = (2, THREADS_OF_A_BLOCK, 2 * THREADS_OF_A_BLOCK + 6)
FEW = 3
LONG = 10 * THREADS_OF_A_BLOCK + 6
MOST_WORK = 3_000_000  # of all sizes multiplied: threads under a sanitizer are slow
LARGER = 4  # times as many blocks, where fewer are wrong
ALL = 1 << 30  # blocks
GROWS = 1.5  # times as long is more than what a clock says of the same blocks
LONGEST = 100.0  # seconds that a run may be expected to take; job.py stops a silent one after 300
ENOUGH = 40.0  # seconds for the cases of an op, and half as many for those of its blocks' order


class Log:
    """The file of a sanitizer that goes on: each report is read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> str:
        """What was reported since the last call."""
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        new, self._read = text[self._read :], len(text)
        return new


def race_steps(op: Op[Any], log: Log) -> Steps:
    """Each block as real threads: races, barriers, and values that depend on the block's size."""
    invoke.use(op, "cpu-threads", RACES)
    grid = Grid(log)
    looks = ((race_cases, grid.problem, ENOUGH), (long_cases, grid.depends_on_order, ENOUGH / 2))
    for chosen, problem, enough in looks:
        for step in in_time(op, chosen(op), problem, enough):
            yield step
            if isinstance(step, Finding):
                return


def in_time(
    op: Op[Any], chosen: Iterable[OpCase], problem: Callable[[OpCase], Step | None], enough: float
) -> Steps:
    """Look at one case after another until one has a bug or the time is over."""
    waiting, start = list(chosen), time.perf_counter()
    for number, case in enumerate(waiting):
        seconds = time.perf_counter() - start
        if seconds > enough:
            left = f"{len(waiting) - number} of {len(waiting)} cases of {op.name}"
            yield Unchecked(f"{left}, which take {seconds / number:.0f} s each")
            return
        yield Case(str(case))
        if step := problem(case):
            yield step
            return


class Grid:
    """How many blocks along an axis the kernel of an op needs to be right, as far as is known."""

    def __init__(self, log: Log) -> None:
        self.log, self.most = log, FEW

    def problem(self, case: OpCase) -> Step | None:
        """What is wrong with a case, if anything is."""
        if step := self.run(case):
            return step
        # The large ones take long, and those of a group have as many threads.
        further = race_over_inputs if case.group else race_in_one_block
        with few_blocks(self.most):
            return further(case, self.log)

    def run(self, case: OpCase) -> Step | None:
        """What is wrong with a case in as many blocks as it takes."""
        op, before, _ = case.op, 0.0, (case.reference, case.placed)  # what takes time, too
        own, default = source.own_files(op), source.kernel(op)
        while True:
            start = time.perf_counter()
            with few_blocks(self.most):
                said = invoke.run(case)
            seconds = time.perf_counter() - start
            if wrong := reported(said, self.log.new(), op.name, own, default):
                return wrong
            if not said:
                return None
            if self.most == ALL:
                bug = "wrong where a block has many threads"
                return found(op.name, bug, f"{said} ({case})", default)
            growth = seconds / before if before else LARGER
            if max(LARGER, growth) * seconds > LONGEST and growth > GROWS:
                why = f"{op.name} in more than {self.most} blocks, which would take minutes"
                return Unchecked(f"{why} ({case})")
            self.most = self.most * LARGER if growth > GROWS else ALL
            before = seconds

    def depends_on_order(self, case: OpCase) -> Step | None:
        """Other bits where blocks come in the other order, as of floats that atomics sum up."""
        if step := self.run(case):
            return step
        # The sums of few blocks may be the same in both orders by chance.
        with few_blocks(max(self.most, LARGER * FEW)):
            _, first = invoke.results(case)
            with patch.dict(os.environ, NATIVEOPS_BLOCKS_BACKWARDS="1"):
                _, again = invoke.results(case)
        if all(map(is_same, again, first)):
            return None
        text = f"other bits if the last block is the first ({case}): give floats an order, as "
        text += "`sum_rows` does, instead of adding them by atomics."
        bug = "results depend on the order of blocks"
        return found(case.op.name, bug, text, source.kernel(case.op))


def few_blocks(most: int) -> AbstractContextManager[Any]:
    """No more blocks than these along each axis of a grid."""
    return patch.dict(os.environ, NATIVEOPS_MOST_BLOCKS=str(most))


def reported(said: str, report: str, op: str, own: Sequence[str], default: Place) -> Finding | None:
    """The bug that the device or the sanitizer tells of."""
    problem = reports.barrier(said, op, own, default) or reports.race(report, op, own, default)
    return problem or reports.memory(report, op, own, default)


def race_in_one_block(case: OpCase, log: Log) -> Finding | None:
    """The same case in a grid of one block, which does all the work if the kernel is written so."""
    with few_blocks(1):
        said, _ = invoke.results(case)  # what else is wrong then is the other blocks' work
    own, default = source.own_files(case.op), source.kernel(case.op)
    return reported(said, log.new(), case.op.name, own, default)


def race_over_inputs(case: OpCase, log: Log) -> Finding | None:
    """The same case where results take over the memory of inputs, as the op's `reuse` says."""
    over = invoke.may_reuse(case)
    if not over:
        return None
    said = invoke.run(case, over=over)
    own, default = source.own_files(case.op), source.declaration(case.op)
    race = reports.race(log.new(), case.op.name, own, default)
    if not said and not race:
        return None
    text = f"a thread reads it at line {race.line} while another writes it" if race else said
    error = wrong_reuse(over, f"{text} ({case})")
    place = Place(race.file, race.line) if race else default
    return found(case.op.name, error.claim, error.text, place)


def race_cases(op: Op[Any]) -> Iterator[OpCase]:
    """A few cases: sizes around that of a block, then every choice of attributes."""
    plain = [case for case in cases(op) if case.layout == "contiguous"]
    narrow = [case for case in plain if case.dtypes == plain[0].dtypes]
    yield from (case for case in narrow if case.group == "layout")
    for size in RACE_SIZES:
        yield from of_sizes(narrow[0], sizes_of(op, size))
    yield from (case for case in narrow if case.group in ("attributes", "absent"))


def long_cases(op: Op[Any]) -> Iterator[OpCase]:
    """Each axis in turn long enough for several blocks, whose order matters only from three on.

    And only to a kernel with atomics: all else that two blocks share is a race.
    """
    if not any(b"atomic" in path.read_bytes() for path in kernel_files(op.kernel)):
        return
    names = [name for name in free_names(op) if name != op.carries]
    sizes = ({**dict.fromkeys(free_names(op), FEW), name: LONG} for name in names)
    yield from of_sizes(next(iter(cases(op))), sizes)


def of_sizes(case: OpCase, chosen: Iterable[dict[str, int]]) -> Iterator[OpCase]:
    """The case with these sizes, as far as they fit."""
    for sizes in chosen:
        if fits(case.op, sizes, case.attributes):
            given = (case.leads, case.attributes)
            yield OpCase(case.op, "numpy", "cpu", case.dtypes, sizes, *given)


def sizes_of(op: Op[Any], size: int) -> Iterator[dict[str, int]]:
    """All axes of that size, or each in turn if that were too much work.

    Steps that carry a result are alike, and all threads meet in each: a few are enough.
    """
    names = free_names(op)
    steps = {op.carries: min(size, FEW)} if op.carries else {}
    if size ** len(names) <= MOST_WORK:
        yield {**dict.fromkeys(names, size), **steps}
        return
    for large in names:
        yield {**{name: size if name == large else FEW for name in names}, **steps}
