# SPDX-License-Identifier: Apache-2.0
"""One rival's figures at one size."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

TIMES = ("min", "q1", "median", "q3")


@dataclass(frozen=True)
class Measurement:
    """Times in seconds, or why there are none."""

    case: str
    size: dict[str, int]
    dtype: str
    framework: str
    rival: str
    package: str
    version: str
    ours: bool = False
    n: int = 0
    min: float = math.nan
    q1: float = math.nan
    median: float = math.nan
    q3: float = math.nan
    limit: float | None = None  # seconds that the work takes at the machine's limit
    fraction: float | None = None  # limit / median
    memory: int | None = None  # bytes at the peak beyond the inputs, the result included
    skipped: str = ""
    error: str = ""

    @property
    def counts(self) -> bool:
        """Whether there is a time, of a right result."""
        return not (self.skipped or self.error)

    def with_samples(self, samples: Sequence[float], limit: float | None) -> "Measurement":
        """With the summary of what was timed."""
        q1, median, q3 = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
        return replace(
            self,
            n=len(samples),
            min=float(min(samples)),
            q1=q1,
            median=median,
            q3=q3,
            limit=limit,
            fraction=limit / median if limit else None,
        )

    def as_json(self) -> dict[str, Any]:
        """As a JSON object; ``null`` where there is no time."""
        return {k: None if v != v else v for k, v in asdict(self).items()}


def from_json(fields: dict[str, Any]) -> Measurement:
    """The measurement that `Measurement.as_json` wrote."""
    times = {k: math.nan for k in TIMES if fields[k] is None}
    return Measurement(**{**fields, **times})
