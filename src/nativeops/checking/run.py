# SPDX-License-Identifier: Apache-2.0
"""The whole check of a file: its jobs side by side, the slowest first."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from nativeops.call import Op
from nativeops.checking.job import Job
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import installed

# In the order in which they start: what takes longest, first. Each with what it means.
ASPECTS = {
    "large": "more than 2^31 elements",
    "memory": "reads and writes inside of all arrays (AddressSanitizer)",
    "races": "no race, no divergent barrier, right for many threads (ThreadSanitizer)",
    "cuda": "compiles for CUDA (nvcc)",
    "values": "equals the reference: dtypes, strides, sizes; wrong arguments are explained",
    "frameworks": "the same in every framework, with gradients",
    "threads": "the same bits for any number of threads",
    "gradient": "the rule is the slope of the reference (float64)",
}


def jobs(
    file: Path, ops: dict[str, Op[Any]], only: Sequence[str], frameworks: Sequence[str]
) -> list[Job]:
    """The jobs of a check."""
    chosen = []
    for aspect in ASPECTS:
        if only and aspect not in only:
            continue
        if aspect == "frameworks":
            chosen += [Job(aspect, ops, file, name) for name in frameworks if name != "numpy"]
        else:
            chosen.append(Job(aspect, one_per_header(ops) if aspect == "cuda" else ops, file))
    return chosen


def one_per_header(ops: dict[str, Op[Any]]) -> dict[str, Op[Any]]:
    """The first op of each kernel header that has a kernel for CUDA, if there is one."""
    first: dict[Path, Op[Any]] = {}
    for op in sorted(ops.values(), key=lambda op: "cuda" not in op.devices):
        first.setdefault(op.kernel, op)
    return {op.name: op for op in first.values()}


def present() -> list[str]:
    """The frameworks that are installed."""
    return [name for name in FRAMEWORKS if installed(name)]


def run(planned: Sequence[Job], progress: Callable[[str, float], None]) -> None:
    """Run all jobs, as many at a time as there are CPUs."""
    done = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        tasks = [
            pool.submit(job.run, lambda text: progress(text, done / len(planned)))
            for job in planned
        ]
        try:
            for task in as_completed(tasks):
                task.result()
                done += 1
                progress("", done / len(planned))
        except BaseException:  # Ctrl-C, above all
            pool.shutdown(wait=False, cancel_futures=True)
            for job in planned:
                job.stop()
            raise
