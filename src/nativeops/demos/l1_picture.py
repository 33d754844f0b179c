# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: the medians, which digits are mistaken, and the times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nativeops.bench.measurement import Measurement
from nativeops.bench.picture import INK, OTHERS, bars
from nativeops.demos.digits import Digits
from nativeops.demos.l1_learn import Clusters, Labels


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
    """One panel per method."""
    figure.suptitle("time for the same work (logarithmic; lines: quartiles)", color=INK)
    cases = list(dict.fromkeys(figures.case for figures in speed))
    most = len({figures.rival for figures in speed})
    for axis, case in zip(figure.subplots(1, len(cases)), cases, strict=True):
        some = [figures for figures in speed if figures.case == case and figures.counts]
        bars(axis, f"{case}\n{_work(some[0])}", some)
        axis.set_ylim(most - 0.5, -0.5)


def _work(figures: Measurement) -> str:
    step = ", with gradient" if figures.case == "learned prototypes" else ""
    return f"{figures.size['n']} x {figures.size['m']} distances{step}"
