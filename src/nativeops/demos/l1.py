# SPDX-License-Identifier: Apache-2.0
"""L1 distances at work: handwritten digits, three methods, and what each library needs for them.

One progress bar while it works, one table, one picture.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from nativeops.bench.measure import QUICK, Effort
from nativeops.bench.measurement import Measurement
from nativeops.bench.report import duration, megabytes
from nativeops.bench.run import Plan, run
from nativeops.demos.digits import digits
from nativeops.demos.l1_learn import k_medians, learned_prototypes, nearest_neighbours
from nativeops.demos.l1_picture import accuracy, draw

SPEED = "nativeops.demos.l1_speed"
LEARNING = 0.1  # share of the time, roughly

Progress = Callable[[str, float], None]


class Outcome(NamedTuple):
    """What the demo found: per method the share of held-out images that it gets right."""

    accuracy: dict[str, float]
    speed: list[Measurement]


def demo(output: Path, *, quick: bool, progress: Progress) -> Outcome:
    """Learn, measure, draw.

    Args:
        output: Where the picture goes.
        quick: Few rounds, and no peak memory.
        progress: Hears what is being done, and the share that is done.
    """
    data = digits()
    progress("nearest neighbours", 0.0)
    found = {"nearest neighbours": nearest_neighbours(data)}
    progress("k-medians", 0.01)
    clusters = k_medians(data)
    found["k-medians"] = clusters.found
    progress("learned prototypes", 0.02)
    found["learned prototypes"] = learned_prototypes(data)

    threads = len(os.sched_getaffinity(0))
    plan = Plan(SPEED, threads, QUICK if quick else Effort(seconds=4.0), memory=not quick)
    speed = list(run(plan, lambda text, share: progress(text, LEARNING + (1 - LEARNING) * share)))
    draw(output, data, clusters, found["learned prototypes"], speed)
    return Outcome({name: accuracy(data, each) for name, each in found.items()}, speed)


def table(outcome: Outcome) -> Table:
    """Methods down, libraries across."""
    libraries = list(dict.fromkeys(figures.rival for figures in outcome.speed))
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("method", no_wrap=True)
    result.add_column("held-out\naccuracy", justify="right", no_wrap=True)
    for library in libraries:
        result.add_column(library.replace(" ", "\n"), justify="right", no_wrap=True)
    for method, right in outcome.accuracy.items():
        mine = {f.rival: f for f in outcome.speed if f.case == method}
        cells = [_cell(mine.get(library)) for library in libraries]
        result.add_row(f"{method}\n{_work(list(mine.values()))}", f"{right:.1%}", *cells)
        result.add_section()
    return result


def _work(figures: Sequence[Measurement]) -> str:
    size = figures[0].size
    step = ", with gradient" if figures[0].case == "learned prototypes" else ""
    return f"  {size['n']} x {size['m']}{step}"


def _cell(figures: Measurement | None) -> str:
    if figures is None:
        return "-\n"
    if not figures.counts:
        return f"{figures.error or figures.skipped}\n"
    return f"{duration(figures.median)}\n{megabytes(figures.memory)}"
