# SPDX-License-Identifier: Apache-2.0
"""Time rivals on the same inputs, round after round: A B C A B C ..."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import get_native_id
from timeit import Timer
from typing import Any

import numpy as np

from nativeops.bench.aside import process_ids, version_aside
from nativeops.bench.case import Bench, Known, Rival, Size, size_text
from nativeops.bench.check import ResultError, check_result
from nativeops.bench.machine import package_version
from nativeops.bench.measurement import Measurement
from nativeops.bench.place import CPU, Place

MEMORY_MOST = 12e9  # bytes; a rival that would need more is left out
CALL_MOST = 10.0  # seconds; a rival whose single call would take longer is left out

Progress = Callable[[str, float], None]
"""Hears what is being done, and the share of it that is done."""


@dataclass(frozen=True)
class Effort:
    """How long to measure at one size: rounds until `seconds` have passed, within bounds."""

    seconds: float = 6.0
    fewest: int = 5
    most: int = 40
    patience: float = 40.0  # seconds after which three rounds are enough
    sample: float = 0.005  # seconds; a shorter call is repeated until it takes that long


THOROUGH = Effort()
QUICK = Effort(seconds=0.5, fewest=3, most=10, sample=0.001)


def settle(longest: float = 0.05) -> None:
    """Wait until the threads that a library leaves behind no longer spin, `longest` seconds.

    OpenMP's of PyTorch wait for their next work in that way for 8 ms, on the CPUs of whoever is
    measured next. So do those of a program that runs aside.
    """
    end = time.perf_counter() + longest
    while _others_run() and time.perf_counter() < end:
        time.sleep(0.0005)


def _others_run() -> bool:
    """Whether another thread of ours is on a CPU or waits for one."""
    own = str(get_native_id())
    folders = (Path(f"/proc/{process}/task") for process in ("self", *process_ids()))
    for state in chain.from_iterable(folder.glob("[0-9]*/stat") for folder in folders):
        try:
            running = state.read_text().rpartition(")")[2].split()[0] == "R"
        except OSError:  # it ended in the meantime
            continue
        if running and state.parent.name != own:
            return True
    return False


@dataclass
class Runner:
    """A rival that gave the right result, ready to be timed."""

    rival: Rival
    call: Callable[[], Any]
    once: float  # seconds of one call, roughly
    place: Place = CPU
    samples: list[float] = field(default_factory=list)

    def sample(self, shortest: float) -> None:
        """Take one sample by itself; a short call is repeated, after warming up half as long."""
        settle()
        repeat = max(1, math.ceil(shortest / max(self.once, 1e-9)))
        if self.once < 20 * shortest:
            _seconds(self.call, self.place, max(1, repeat // 2))
        self.samples.append(_seconds(self.call, self.place, repeat) / repeat / self.rival.calls)


def _seconds(call: Callable[[], Any], place: Place, repeat: int) -> float:
    """Of some calls, until the last one's work is done."""
    calls = Timer(call).timeit(repeat)
    started = time.perf_counter()
    place.finish()
    return calls + time.perf_counter() - started


def measure(
    bench: Bench,
    sizes: Sequence[Size],
    effort: Effort = THOROUGH,
    progress: Progress = lambda text, share: None,
    place: Place = CPU,
) -> Iterator[Measurement]:
    """All rivals at all sizes; a rival's speed at one says whether the next takes too long."""
    effort = replace(effort, seconds=min(effort.seconds, bench.seconds))
    speed: dict[str, float] = {}  # seconds per unit of work, at the last size
    for size in sizes:
        work = bench.work(**size) if bench.work else math.nan
        predicted = {name: seconds * work for name, seconds in speed.items()}
        for figures in _measure_size(bench, size, effort, predicted, progress, place):
            if figures.counts:
                speed[figures.rival] = figures.median / work
            yield figures


def _measure_size(
    bench: Bench,
    size: Size,
    effort: Effort,
    predicted: dict[str, float],
    progress: Progress,
    place: Place,
) -> Iterator[Measurement]:
    work = bench.work(**size) if bench.work else math.nan
    arrays = bench.arrays(size)
    expected = bench.expected(*arrays) if bench.expected else ()
    figures: dict[str, Measurement] = {}
    runners: list[Runner] = []
    for rival in filter(place.takes, bench.rivals):
        progress(f"{size_text(size)}: {rival.name} is checked", 0.0)
        blank = _blank(bench, size, rival)
        if skipped := reason_to_skip(rival, size, predicted.get(rival.name, math.nan)):
            figures[rival.name] = replace(blank, skipped=skipped)
            continue
        try:
            runner = _checked(rival, arrays, expected, bench.tolerance_of(rival), place)
            figures[rival.name] = replace(blank, memory=_gpu_memory(bench, size, runner))
            runners.append(runner)
        except Exception as problem:  # a rival may fail in any way; the others go on
            figures[rival.name] = replace(blank, error=_one_line(problem))
    rates = _rounds(
        bench,
        runners,
        effort,
        lambda done, share: progress(f"{size_text(size)}: round {done}", share),
    )
    limit = work / float(np.median(rates)) if rates and all(rates) else None
    for runner in runners:
        name = runner.rival.name
        figures[name] = figures[name].with_samples(runner.samples, limit)
    yield from figures.values()


def _rounds(
    bench: Bench, runners: Sequence[Runner], effort: Effort, progress: Callable[[int, float], None]
) -> list[float]:
    """Sample every runner in turn, and the limit with them, whose rates are returned."""
    rates: list[float] = []
    started = time.perf_counter()
    for done in range(effort.most if runners else 0):
        passed = time.perf_counter() - started
        fewest = 3 if passed >= effort.patience else effort.fewest
        if done >= fewest and passed >= effort.seconds:
            break
        share = min(passed / effort.seconds, done / fewest, 1.0)
        progress(done + 1, max(done / effort.most, share))
        if bench.limit and not runners[0].place.on_gpu:
            settle()
            bench.limit()
            rates.append(bench.limit())
        for runner in runners:
            runner.sample(effort.sample)
    return rates


def _blank(bench: Bench, size: Size, rival: Rival) -> Measurement:
    return Measurement(
        case=bench.name,
        size=dict(size),
        dtype=bench.dtype,
        framework=rival.framework,
        rival=rival.name,
        package=rival.package,
        version=_version(rival) or "",
        ours=rival.ours,
    )


def reason_to_skip(rival: Rival, size: Size, predicted: float) -> str:
    """Why a rival is left out at this size; empty if it is not."""
    if rival.aside and not _version(rival):
        return f"{rival.package} has no environment of its own here (`make rivals`)"
    own = [] if rival.ours or rival.aside else [rival.package]
    for package in (*own, rival.framework):
        if package_version(package) is None:
            return f"{package} is not installed (`pip install {package}`)"
    if rival.declines and (why := rival.declines(**size)):
        return why
    needed = rival.memory(**size) if rival.memory else 0.0
    if needed > MEMORY_MOST:
        return f"would need {needed / 1e9:.0f} GB of memory (at most {MEMORY_MOST / 1e9:.0f})"
    if predicted > CALL_MOST:
        return f"one call would take about {predicted:.0f} s (at most {CALL_MOST:.0f})"
    return ""


def _version(rival: Rival) -> str | None:
    return (version_aside if rival.aside else package_version)(rival.package)


def _checked(
    rival: Rival, arrays: Sequence[Any], expected: Sequence[Known], tolerance: float, place: Place
) -> Runner:
    """Run a rival, compare what it gives, and find out roughly how long it takes.

    That is seen from a second call: the first one may compile an op.
    """
    call = place.prepare(rival, arrays)
    check_result(call(), expected, tolerance)
    return Runner(rival, call, _seconds(call, place, 1), place)


def _gpu_memory(bench: Bench, size: Size, runner: Runner) -> int | None:
    """PyTorch counts its memory on a GPU; that of the CPU is measured in a process of its own."""
    if not runner.place.on_gpu or runner.rival.framework != "torch":
        return None
    return runner.place.peak_growth(runner.call) if size in bench.memory_sizes else None


def _one_line(problem: Exception) -> str:
    text = str(problem).strip().partition("\n")[0]
    if isinstance(problem, ResultError):
        return text
    return f"{type(problem).__name__}: {text}"
