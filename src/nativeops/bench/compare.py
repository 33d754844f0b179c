# SPDX-License-Identifier: Apache-2.0
"""Ratios within a run, and beside them the same ratios in the run before.

Only ratios are compared between runs: the machines' own speed varies too much.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from nativeops.bench.history import Run
from nativeops.bench.measurement import Measurement


class Row(NamedTuple):
    """A measurement, and how many times our time it takes, now and in the run before."""

    figures: Measurement
    ratio: float | None
    ratio_before: float | None


def rows(
    run: Run, measurements: Iterable[Measurement], history: Sequence[dict[str, Any]] = ()
) -> list[Row]:
    """Each measurement with its ratios; `history` ends before this run."""
    last = _last_ratios(run, history)
    return [
        Row(figures, ratio, last.get((figures.case, _key(figures.size), figures.rival)))
        for _, group in groupby(measurements, key=lambda m: (m.case, _key(m.size)))
        for figures, ratio in _ratios(list(group))
    ]


def _ratios(group: list[Measurement]) -> list[tuple[Measurement, float | None]]:
    """Against ours in the same framework, or else against our first."""
    ours = [figures for figures in group if figures.ours and figures.counts]
    base = {figures.framework: figures.median for figures in reversed(ours)}
    first = ours[0].median if ours else None
    result: list[tuple[Measurement, float | None]] = []
    for figures in group:
        against = base.get(figures.framework, first)
        result.append((figures, figures.median / against if against and figures.counts else None))
    return result


def _last_ratios(run: Run, history: Sequence[dict[str, Any]]) -> dict[Any, float | None]:
    """The newest ratios with the same machine, device and threads, whichever run they are from."""
    same = [
        line
        for line in history
        if all(line[k] == getattr(run, k) for k in ("op", "device", "machine", "threads"))
    ]
    newest: dict[Any, float | None] = {}
    for _, lines in groupby(same, key=lambda line: (line["date"], line["case"], line["size"])):
        group = [_figures(line) for line in lines]
        for figures, ratio in _ratios(group):
            newest[figures.case, _key(figures.size), figures.rival] = ratio
    return newest


def _figures(line: dict[str, Any]) -> Measurement:
    return Measurement(**{k: v for k, v in line.items() if k in Measurement.__dataclass_fields__})


def _key(size: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(size.items())
