# SPDX-License-Identifier: Apache-2.0
"""The picture of the recogniser: a line with all that is known about it, others, the training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nativeops.demos.lines_data import Lines, text
from nativeops.demos.lines_model import STRIDE, Spans, frames

INK, OURS, OTHERS, WRONG = "#222222", "#1f6fb4", "#b8bec6", "#b42318"
NAMES = ["blank", *map(str, range(10))]


def figure(
    lines: Lines,
    probability: NDArray[Any],
    found: Sequence[Sequence[int]],
    aligned: Sequence[Spans],
    chosen: Sequence[int],
    losses: Sequence[float],
) -> Any:
    """A matplotlib figure.

    Args:
        lines: Held-out lines.
        probability: Of each class in each frame, ``[t, b, c]``.
        found: What was read of each.
        aligned: Where each label of these lies.
        chosen: Which lines are shown: the first one in full.
        losses: Of the steps of the training.
    """
    from matplotlib.figure import Figure

    drawn: Any = Figure(figsize=(12, 9.5), dpi=110)
    drawn.set_layout_engine("constrained", w_pad=0.08, h_pad=0.05)
    top, bottom = drawn.subfigures(2, 1, height_ratios=(1.25, 1.0), hspace=0.03)
    _in_full(top, lines, probability, found, aligned, chosen[0])
    left, right = bottom.subfigures(1, 2, width_ratios=(1.7, 1.0), wspace=0.03)
    _others(left, lines, found, chosen[1:])
    _training(right, losses)
    return drawn


def _in_full(
    part: Any,
    lines: Lines,
    probability: NDArray[Any],
    found: Sequence[Sequence[int]],
    aligned: Sequence[Spans],
    i: int,
) -> None:
    n = int(lines.lengths[i])
    part.suptitle(_said(lines, found, i), color=_colour(lines, found, i), family="monospace")
    image, spans, posterior = part.subplots(3, 1, sharex=True, height_ratios=(1.6, 0.8, 2.2))
    _show(image, lines, i)
    image.set_ylabel("pixels")
    _spans(spans, found[i], aligned[i])
    grey = posterior.imshow(
        probability[: frames(n), i].T, cmap="Blues", aspect="auto", interpolation="nearest",
        vmin=0, vmax=1, extent=(*_columns(0, frames(n)), len(NAMES) - 0.5, -0.5),
    )  # fmt: skip
    posterior.set_yticks(range(len(NAMES)), NAMES, fontsize=8)
    posterior.set(xlabel="column of pixels", ylabel="class", xlim=(-0.5, n - 0.5))
    part.colorbar(grey, ax=posterior, label="probability", pad=0.01)
    for axis in (image, spans):  # the same room as the colour bar takes below
        part.colorbar(grey, ax=axis, pad=0.01).ax.set_visible(False)
    for start, end, _ in aligned[i]:
        image.axvspan(*_columns(start, end), color=OURS, alpha=0.2, lw=0)


def _columns(start: int, end: int) -> tuple[float, float]:
    """Where frames [start, end) begin and end; the first looks at column 0."""
    return (start - 0.5) * STRIDE, (end - 0.5) * STRIDE


def _spans(axis: Any, labels: Sequence[int], aligned: Spans) -> None:
    """Where forced alignment puts each digit, and how sure it is."""
    for label, (start, end, sure) in zip(labels, aligned, strict=True):
        axis.axvspan(*_columns(start, end), color=OURS, alpha=0.2 + 0.6 * sure, lw=0)
        middle = sum(_columns(start, end)) / 2
        axis.text(middle, 0.68, text([label]), ha="center", va="center", color=INK, fontsize=13)
        axis.text(middle, 0.22, f"{sure:.2f}", ha="center", va="center", color=INK, fontsize=7)
    axis.set(yticks=[], ylim=(0, 1), ylabel="aligned")
    axis.tick_params(axis="x", length=0)


def _others(part: Any, lines: Lines, found: Sequence[Sequence[int]], chosen: Sequence[int]) -> None:
    part.suptitle("the held-out lines with most mistakes", color=INK)
    for axis, i in zip(part.subplots(len(chosen), 1), chosen, strict=True):
        _show(axis, lines, i)
        axis.set_title(
            _said(lines, found, i), fontsize=9, color=_colour(lines, found, i), family="monospace"
        )


def _show(axis: Any, lines: Lines, i: int) -> None:
    image = lines.pixels[: lines.lengths[i], i].T
    axis.imshow(image, cmap="gray_r", aspect="auto", interpolation="nearest", vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[])


def _said(lines: Lines, found: Sequence[Sequence[int]], i: int) -> str:
    return f"read {text(found[i])}   written {text(lines.labels()[i])}"


def _colour(lines: Lines, found: Sequence[Sequence[int]], i: int) -> str:
    return INK if found[i] == lines.labels()[i] else WRONG


def _training(part: Any, losses: Sequence[float]) -> None:
    part.suptitle("loss of each step, nats a digit (logarithmic)", color=INK)
    axis = part.subplots()
    axis.plot(np.arange(1, len(losses) + 1), losses, color=OTHERS, lw=0.8)
    width = max(1, len(losses) // 20)
    smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
    axis.plot(np.arange(len(smooth)) + (width + 1) / 2, smooth, color=OURS, lw=2)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("step")
    axis.spines[["top", "right"]].set_visible(False)
