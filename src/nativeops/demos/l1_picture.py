# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: the medians, which digits are mistaken, and the times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nativeops.bench.measurement import Measurement
from nativeops.demos.digits import Digits
from nativeops.demos.l1_learn import Clusters, Labels

INK, OURS, OTHERS = "#222222", "#1f6fb4", "#b8bec6"


def draw(
    path: Path, digits: Digits, clusters: Clusters, found: Labels, speed: Sequence[Measurement]
) -> None:
    """Save the picture; its format is that of the file name's ending."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(12, 9), dpi=110)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.45, 1.0), hspace=0.04)
    left, right = top.subfigures(1, 2, wspace=0.04)
    _medians(left, digits, clusters)
    _confusion(right, digits, found)
    _times(bottom, speed)
    figure.savefig(path)


def accuracy(digits: Digits, found: Labels) -> float:
    """The share of held-out images that were told right."""
    return float(np.mean(found == digits.held_out_label))


def _medians(figure: Any, digits: Digits, clusters: Clusters) -> None:
    """Ordered by the digit they stand for."""
    right = accuracy(digits, clusters.found)
    title = f"{len(clusters.medians)} medians, found without labels: {right:.1%} right"
    figure.suptitle(title, color=INK)
    order = np.argsort(clusters.label, kind="stable")
    axes = figure.subplots(5, len(order) // 5).ravel()
    for axis, i in zip(axes, order, strict=True):
        axis.imshow(clusters.medians[i].reshape(8, 8), cmap="gray_r", interpolation="nearest")
        axis.set_title(str(clusters.label[i]), fontsize=9, color=INK, pad=2)
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set_color(OTHERS)


def _confusion(figure: Any, digits: Digits, found: Labels) -> None:
    from sklearn.metrics import ConfusionMatrixDisplay

    right = accuracy(digits, found)
    figure.suptitle(f"learned prototypes, held-out images: {right:.1%} right", color=INK)
    axis = figure.subplots()
    shown = ConfusionMatrixDisplay.from_predictions(
        digits.held_out_label, found, ax=axis, cmap="Blues", colorbar=False
    )
    for text in np.ravel(shown.text_):
        text.set_visible(text.get_text() != "0")
    axis.set(xlabel="found", ylabel="true")


def _times(figure: Any, speed: Sequence[Measurement]) -> None:
    """One panel per method; bars are medians, whiskers the quartiles."""
    figure.suptitle("milliseconds for the same work (logarithmic; lines: quartiles)", color=INK)
    cases = list(dict.fromkeys(figures.case for figures in speed))
    most = len({figures.rival for figures in speed})
    for axis, case in zip(figure.subplots(1, len(cases)), cases, strict=True):
        bars = [figures for figures in speed if figures.case == case and figures.counts]
        names = [figures.rival for figures in bars]
        values = np.array([1e3 * figures.median for figures in bars])
        low, high = (np.array([1e3 * getattr(b, q) for b in bars]) for q in ("q1", "q3"))
        drawn = axis.barh(
            names, values, color=[OURS if figures.ours else OTHERS for figures in bars],
            xerr=(values - low, high - values), error_kw={"ecolor": INK, "elinewidth": 1},
        )  # fmt: skip
        axis.bar_label(drawn, [f"{value:.3g}" for value in values], padding=6, color=INK)
        axis.set_title(f"{case}\n{_work(bars[0])}", fontsize=10, color=INK)
        axis.set_ylim(most - 0.5, -0.5)
        axis.set_xscale("log")
        axis.set_xlim(values.min() / 4, values.max() * 5)  # the same room for bars and numbers
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)


def _work(figures: Measurement) -> str:
    step = ", with gradient" if figures.case == "learned prototypes" else ""
    return f"{figures.size['n']} x {figures.size['m']} distances{step}"
