# SPDX-License-Identifier: Apache-2.0
"""The process that measures: ``python -m nativeops.bench.worker JOB``, JSON lines out.

A process of its own per case, so that its threads, its environment and its memory are its own.
"""

import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

import numpy as np

from nativeops.bench.case import Bench, Size
from nativeops.bench.measure import Effort, measure
from nativeops.bench.memory import peak_growth
from nativeops.bench.parent import end_with
from nativeops.bench.place import Place


@dataclass(frozen=True)
class Job:
    """What a worker is to do: time a case, or find the peak memory of one of its rivals."""

    module: str
    case: str
    sizes: list[dict[str, int]]
    effort: Effort
    threads: int
    memory_of: str = ""
    folder: str = ""
    device: str = "cpu"
    parent: int = field(default_factory=os.getpid)  # the process that made the job

    def as_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def main(argument: str) -> None:
    """Do one job; every line of the result is a JSON object."""
    fields = json.loads(argument)
    job = Job(**{**fields, "effort": Effort(**fields["effort"])})
    end_with(job.parent)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    results, place = _private_stdout(), Place(job.device)
    place.begin()
    bench = next(each for each in benches(job.module, job.folder) if each.name == job.case)
    if job.memory_of:
        _say(results, memory=peak_growth(bench, job.memory_of, job.sizes[0]))
        return
    sizes: list[Size] = list(job.sizes)
    _warm_memory()

    def progress(text: str, share: float) -> None:
        _say(results, doing=text, share=share)

    for figures in measure(bench, sizes, job.effort, progress, place):
        _say(results, measurement=figures.as_json())


def benches(module: str, folder: str) -> list[Bench]:
    """The cases of a ``_bench.py`` module; a user's lies in a folder that is not on the path."""
    if folder and folder not in sys.path:
        sys.path.append(folder)
    found: list[Bench] = importlib.import_module(module).BENCHES
    return found


def _warm_memory() -> None:
    """Free a block of nearly 32 MB, as any program has sooner or later.

    From then on glibc keeps blocks up to that size for the next to ask. Before, it may give each
    back to the system and take it again, page by page, which took more time than some rivals do:
    those whom chance let meet it.
    """
    np.empty(31 << 20, np.uint8)


def _private_stdout() -> TextIO:
    """The real standard output; whatever else prints goes to standard error from now on."""
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return private


def _say(results: TextIO, **what: Any) -> None:
    print(json.dumps(what), file=results, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
