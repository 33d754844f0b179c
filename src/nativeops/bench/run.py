# SPDX-License-Identifier: Apache-2.0
"""Measure all cases of an op, each in a fresh process, and then the memory of each rival."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from nativeops.bench.case import Bench, Size, size_text
from nativeops.bench.measure import THOROUGH, Effort
from nativeops.bench.measurement import Measurement, from_json
from nativeops.bench.worker import Job, benches

Progress = Callable[[str, float], None]


class WorkerError(RuntimeError):
    """A measuring process ended without a result."""


@dataclass(frozen=True)
class Plan:
    """What to measure of one op.

    Args:
        module: The ``_bench.py`` module.
        threads: CPUs that everybody gets.
        cases: Names of the cases; empty for all.
        sizes: Instead of the sizes that the cases name; a case without these axes is left out.
        smallest: Only the first size of each case.
        memory: Whether to measure peak memory, too.
        folder: Where the module is imported from, if it is on no path.
        device: `cpu` or `cuda`.
    """

    module: str
    threads: int
    effort: Effort = THOROUGH
    cases: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()
    smallest: bool = False
    memory: bool = True
    folder: str = ""
    device: str = "cpu"

    def jobs(self) -> Iterator[tuple[Bench, list[Size]]]:
        """The cases, each with its sizes."""
        for bench in benches(self.module, self.folder):
            sizes = list(bench.sizes)[: 1 if self.smallest else None]
            if self.sizes:
                sizes = [each for each in self.sizes if sizes and set(each) == set(sizes[0])]
            if sizes and (not self.cases or bench.name in self.cases):
                yield bench, sizes


def bench_module(op_module: str) -> str | None:
    """The benchmark beside an op's file, if there is one."""
    module = f"{op_module}_bench"
    return module if find_spec(module) else None


def run(plan: Plan, progress: Progress = lambda text, share: None) -> Iterator[Measurement]:
    """Measure as planned; `progress` hears the share of the whole that is done."""
    jobs = list(plan.jobs())
    for number, (bench, sizes) in enumerate(jobs):

        def within(text: str, share: float, bench: Bench = bench, number: int = number) -> None:
            progress(f"{bench.name}: {text}", (number + share) / len(jobs))

        yield from _run_case(plan, bench, sizes, within)


def _run_case(
    plan: Plan, bench: Bench, sizes: Sequence[Size], progress: Progress
) -> Iterator[Measurement]:
    """Times first, of all rivals in one process; then each rival's memory in its own."""
    timed: list[Measurement] = []
    for line in _worker(plan, bench, sizes):
        if "measurement" in line:
            timed.append(from_json(line["measurement"]))
        else:
            done = len(timed) / len(bench.rivals) + line["share"]
            progress(line["doing"], 0.7 * done / len(sizes))
    for number, figures in enumerate(timed):
        wanted = figures.counts and _wants_memory(plan, bench, figures)
        if wanted:
            text = f"{size_text(figures.size)}: memory of {figures.rival}"
            progress(text, 0.7 + 0.3 * number / len(timed))
            (line,) = _worker(plan, bench, [figures.size], memory_of=figures.rival)
            figures = replace(figures, memory=line["memory"])  # noqa: PLW2901
        yield figures


def _wants_memory(plan: Plan, bench: Bench, figures: Measurement) -> bool:
    if not plan.memory or plan.device != "cpu":  # a GPU's is counted beside the times
        return False
    if bench.rival(figures.rival).aside:  # whose memory is not this process's
        return False
    return figures.size in bench.memory_sizes or bool(plan.sizes and bench.memory_sizes)


def _worker(
    plan: Plan, bench: Bench, sizes: Sequence[Size], memory_of: str = ""
) -> Iterator[dict[str, Any]]:
    """The lines that a fresh process answers to one job."""
    own = [dict(size) for size in sizes]
    job = Job(
        plan.module, bench.name, own, plan.effort, plan.threads, memory_of, plan.folder, plan.device
    )
    command = [sys.executable, "-m", "nativeops.bench.worker", job.as_json()]
    counts = dict.fromkeys(("OMP_NUM_THREADS", "NATIVEOPS_NUM_THREADS"), str(plan.threads))
    # A process that is killed leaves its files to us.
    with tempfile.TemporaryFile("w+") as complaints, tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **counts, "TMPDIR": folder, **bench.environment}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            try:
                yield from (json.loads(line) for line in process.stdout)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            complaints.seek(0)
            last = complaints.read().strip().rpartition("\n")[2]
            text = f"{bench.name}: exit status {process.returncode}"
            raise WorkerError(f"{text}: {last}" if last else text)
