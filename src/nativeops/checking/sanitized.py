# SPDX-License-Identifier: Apache-2.0
"""Cases under sanitizers: memory on the CPU, races on the device whose blocks are real threads.

These run in a child process that the sanitizer's library was loaded into first. It writes to a file
that is read after every case, or after the process died.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nativeops.call import Op
from nativeops.checking import invoke, reports, source
from nativeops.checking.finding import Case, Finding, Steps, found
from nativeops.checking.source import Place
from nativeops.identity import kernel_files
from nativeops.testing import Case as OpCase
from nativeops.testing import cases, installed
from nativeops.testing.claims import wrong_reuse
from nativeops.testing.draw import fits, free_names
from nativeops.testing.tolerance import is_same

MEMORY = "address,undefined"
RACES = "thread"
THREADS_OF_A_BLOCK = 64  # on the debug device
# Sizes of all axes: fewer than a block has threads, as many, and more than two blocks of them.
RACE_SIZES = (2, THREADS_OF_A_BLOCK, 2 * THREADS_OF_A_BLOCK + 6)
FEW = 3
LONG = 10 * THREADS_OF_A_BLOCK + 6
MOST_WORK = 3_000_000  # of all sizes multiplied: threads under a sanitizer are slow


def memory_steps(op: Op[Any]) -> Steps:
    """Arrays of exactly their size, which AddressSanitizer watches the ends of."""
    invoke.use(op, "cpu", MEMORY)
    for case in cases(op):
        usable = "bfloat16" not in case.dtypes.values() or installed("ml_dtypes")
        if not usable or case.layout not in ("contiguous", "transposed", "backwards"):
            continue
        yield Case(str(case))  # before it runs: the process may not live on
        if said := invoke.run(case, compare=False):
            yield found(op.name, "the kernel fails", f"{said} ({case})", source.kernel(op))
            return


class Log:
    """The file of a sanitizer that goes on: each report is read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new(self) -> str:
        """What was reported since the last call."""
        text = self._path.read_text() if self._path.exists() else ""
        new, self._read = text[self._read :], len(text)
        return new


def race_steps(op: Op[Any], log: Log) -> Steps:
    """Each block as real threads: races, barriers, and values that depend on the block's size."""
    invoke.use(op, "cpu-threads", RACES)
    own, default = source.own_files(op), source.kernel(op)
    for case in race_cases(op):
        yield Case(str(case))
        said = invoke.run(case)
        reported = log.new()
        problem = reports.barrier(said, op.name, own, default)
        problem = problem or reports.race(reported, op.name, own, default)
        problem = problem or reports.memory(reported, op.name, own, default)
        if said and not problem:
            bug = "wrong where a block has many threads"
            problem = found(op.name, bug, f"{said} ({case})", default)
        if not problem:  # the large ones take long, and those of a group have as many threads
            further = race_over_inputs if case.group else race_in_one_block
            problem = further(case, log)
        if problem:
            yield problem
            return
    for case in long_cases(op):
        yield Case(str(case))
        if problem := depends_on_order(case):
            yield problem
            return


def race_in_one_block(case: OpCase, log: Log) -> Finding | None:
    """The same case in a grid of one block, which does all the work if the kernel is written so."""
    with patch.dict(os.environ, NATIVEOPS_MOST_BLOCKS="1"):
        said = invoke.run(case, compare=False)  # what else is wrong then is the other blocks' work
    own, default = source.own_files(case.op), source.kernel(case.op)
    problem = reports.barrier(said, case.op.name, own, default)
    return problem or reports.race(log.new(), case.op.name, own, default)


def depends_on_order(case: OpCase) -> Finding | None:
    """Other bits where blocks come in the other order, as of floats that atomics sum up."""
    said, first = invoke.results(case)
    if said:
        return found(case.op.name, "the kernel fails", f"{said} ({case})", source.kernel(case.op))
    with patch.dict(os.environ, NATIVEOPS_BLOCKS_BACKWARDS="1"):
        _, again = invoke.results(case)
    if all(map(is_same, again, first)):
        return None
    text = f"other bits if the last block is the first ({case}): give floats an order, as "
    text += "`sum_rows` does, instead of adding them by atomics."
    bug = "results depend on the order of blocks"
    return found(case.op.name, bug, text, source.kernel(case.op))


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
    """A few cases: every choice of attributes, then sizes around that of a block."""
    plain = [case for case in cases(op) if case.layout == "contiguous"]
    narrow = [case for case in plain if case.dtypes == plain[0].dtypes]
    yield from (case for case in narrow if case.group in ("layout", "attributes", "absent"))
    for size in RACE_SIZES:
        yield from of_sizes(narrow[0], sizes_of(op, size))


def long_cases(op: Op[Any]) -> Iterator[OpCase]:
    """Each axis in turn long enough for several blocks, whose order matters only from three on.

    And only to a kernel with atomics: all else that two blocks share is a race.
    """
    if not any("atomic" in path.read_text() for path in kernel_files(op.kernel)):
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
