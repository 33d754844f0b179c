# SPDX-License-Identifier: Apache-2.0
"""One job of a check, in a process of its own: ``python -m nativeops.checking.child JOB``.

JOB is JSON: the file, the aspect, the ops, and what the aspect needs. Every step is a line of JSON
on standard output, so that the lines tell how far a process came that died.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from nativeops.bench.parent import end_with
from nativeops.call import Op
from nativeops.checking import cuda, gradient, large, races, sanitized, source, values
from nativeops.checking.faults import fault
from nativeops.checking.finding import Finding, Steps, Unchecked
from nativeops.testing import cases


@cache
def log_of(path: str) -> races.Log:
    """The file that this process's sanitizer writes to."""
    return races.Log(Path(f"{path}.{os.getpid()}"))


ASPECTS: dict[str, Callable[[Op[Any], dict[str, Any]], Steps]] = {
    "gradient": lambda op, job: gradient.steps(op),
    "values": lambda op, job: values.steps(op, "numpy"),
    "threads": lambda op, job: values.thread_steps(op),
    "frameworks": lambda op, job: values.steps(op, job["framework"]),
    "memory": lambda op, job: sanitized.memory_steps(op),
    "races": lambda op, job: races.race_steps(op, log_of(job["log"])),
    "large": lambda op, job: large.steps(op),
    "below": lambda op, job: large.steps_below(op, job["case"]),
    "cuda": lambda op, job: cuda.steps(op),
}

NEEDS_NO_CASE = ("cuda",)  # the aspects where nothing is called
SAFE = ("gradient", "cuda")  # where no wrong kernel ran, so that the next op can be trusted


def steps_of(op: Op[Any], job: dict[str, Any]) -> Steps:
    """The steps of the job's aspect; why there are none for an op that nobody here can call."""
    if job["aspect"] not in NEEDS_NO_CASE and next(cases(op), None) is None:
        return iter([Unchecked(f"{op.name}: no size that was tried fits its declaration")])
    return ASPECTS[job["aspect"]](op, job)


def main() -> None:
    """Run the job that the command line gives."""
    job = json.loads(sys.argv[1])
    end_with(job["parent"])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a framework prints is not ours

    def say(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")

    declared = source.ops_of(job["file"])
    for name in job["ops"]:
        op = declared[name]
        say(op=name)
        wrong = False
        try:
            for step in steps_of(op, job):
                say(**{type(step).__name__: asdict(step)})
                wrong |= isinstance(step, Finding)
        except Exception as error:
            device = "CUDA" if job["aspect"] == "cuda" else ""
            problem = fault(op, error, device=device)
            if problem is None:
                raise
            say(Finding=asdict(problem))
        if wrong and job["aspect"] not in SAFE:
            say(leave=True)  # a wrong kernel may have written into what the next op uses
            out.flush()
            os._exit(0)
    say(end=True)


if __name__ == "__main__":
    main()
