# SPDX-License-Identifier: Apache-2.0
"""The figures as bars: how long everybody takes, in a panel for each case and size."""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from nativeops.bench.case import size_text
from nativeops.bench.measurement import Measurement
from nativeops.bench.report import duration

INK, OURS, OTHERS = "#222222", "#1f6fb4", "#b8bec6"
COLUMNS = 3


def draw(path: Path, title: str, figures: Sequence[Measurement]) -> None:
    """Save the picture; its format is that of the file name's ending."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    timed = [each for each in figures if each.counts]
    panels = [list(some) for _, some in groupby(timed, key=lambda f: (f.case, f.size))]
    lines = [panels[i : i + COLUMNS] for i in range(0, len(panels), COLUMNS)]
    heights = [1.1 + 0.24 * max(map(len, line)) for line in lines]
    figure: Any = Figure(figsize=(5.2 * COLUMNS, sum(heights) + 0.6), layout="constrained")
    axes = figure.subplots(
        len(lines), COLUMNS, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    figure.suptitle(f"{title}\n(logarithmic; lines: quartiles; dashed: the limit)", color=INK)
    for line, row in zip(lines, axes, strict=True):
        for axis, some in zip(row, line, strict=False):
            bars(axis, f"{some[0].case}\n{size_text(some[0].size)}", some)
        for axis in row[len(line) :]:
            axis.set_visible(False)
    # Text as text, and the same file for the same figures.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "nativeops"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def bars(axis: Any, title: str, figures: Sequence[Measurement]) -> None:
    """One panel: bars are medians, whiskers the quartiles."""
    values = np.array([each.median for each in figures])
    low, high = (np.array([getattr(each, q) for each in figures]) for q in ("q1", "q3"))
    drawn = axis.barh(
        [each.rival for each in figures], values,
        color=[OURS if each.ours else OTHERS for each in figures],
        xerr=(values - low, high - values), error_kw={"ecolor": INK, "elinewidth": 1},
    )  # fmt: skip
    axis.bar_label(drawn, [duration(value) for value in values], padding=6, color=INK)
    limits = [each.limit for each in figures if each.limit]
    if limits:
        axis.axvline(limits[0], color=INK, linestyle="--", linewidth=1)
    axis.set_title(title, fontsize=10, color=INK)
    axis.set_xscale("log")
    least = min([values.min(), *limits])
    axis.set_xlim(least / 4, values.max() * 8)  # the same room for bars and numbers
    axis.xaxis.set_major_formatter(lambda value, _: re.sub(r"\.0+ ", " ", duration(value)))
    axis.minorticks_off()
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
