# SPDX-License-Identifier: Apache-2.0
"""The figures of all runs: one JSON line each, only ever added to."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nativeops.bench.measurement import Measurement


@dataclass(frozen=True)
class Run:
    """What the figures of one run share."""

    op: str
    device: str
    machine: str
    threads: int
    instructions: str
    compiler: str
    commit: str
    date: str


def append(path: Path, run: Run, measurements: Iterable[Measurement]) -> None:
    """Add every measurement that counts to a history file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for figures in measurements:
            if figures.counts:
                file.write(json.dumps(record(run, figures)) + "\n")


def record(run: Run, figures: Measurement) -> dict[str, Any]:
    """One line of the history."""
    kept = figures.as_json()
    del kept["skipped"], kept["error"]
    return {**asdict(run), **kept}


def read(path: Path) -> list[dict[str, Any]]:
    """All lines of a history file; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
