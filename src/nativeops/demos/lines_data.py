# SPDX-License-Identifier: Apache-2.0
"""Lines of handwriting: real images of digits side by side, at uneven heights and distances."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nativeops.demos.digits import digits

HEIGHT = 12  # pixels of a line; a digit has 8
DIGITS = (5, 12)  # of a line, fewest and most
GAPS = (0, 3)  # columns before, between and behind them
INK = 0.3  # of learning: pixels to the power of exp(INK * normal), one of each image
BLANK, CLASSES = 0, 11  # class 1 + d says digit d

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class Lines(NamedTuple):
    """Lines of pixel columns ``[t, b, HEIGHT]`` from 0 to 1, and the classes that they show."""

    pixels: Floats
    lengths: Ints
    targets: Ints
    target_lengths: Ints

    def part(self, chosen: Any) -> "Lines":
        """Some of the lines; none is cut, and the padding stays."""
        return Lines(
            self.pixels[:, chosen], self.lengths[chosen],
            self.targets[chosen], self.target_lengths[chosen],
        )  # fmt: skip

    def labels(self) -> list[list[int]]:
        """The classes of each line."""
        pairs = zip(self.targets, self.target_lengths, strict=True)
        return [row[:n].tolist() for row, n in pairs]


def training_lines(seed: int, step: int, count: int) -> Lines:
    """The lines of one step, from images to learn from: the same ones whenever it is asked for.

    Ink is thinner or thicker than it was, so that fewer images are learnt by heart.
    """
    data = digits()
    return compose(np.random.default_rng([seed, step]), data.train, data.train_label, count, INK)


def held_out_lines(seed: int, count: int) -> Lines:
    """Lines from images that no training line has."""
    data = digits()
    return compose(np.random.default_rng([seed]), data.held_out, data.held_out_label, count)


def compose(
    random: np.random.Generator, images: Floats, labels: Any, count: int, ink: float = 0.0
) -> Lines:
    """Lines from some images, which are rows of 64 numbers from 0 to 16."""
    chosen = [random.integers(len(images), size=n) for n in _between(random, DIGITS, count)]
    shown = [images[each].reshape(-1, 8, 8) / 16 for each in chosen]
    if ink:
        shown = [each ** np.exp(random.normal(0, ink, (len(each), 1, 1))) for each in shown]
    drawn = [_line(random, each) for each in shown]
    return Lines(
        padded([line.T for line in drawn]).swapaxes(0, 1).copy(),
        np.array([line.shape[1] for line in drawn], np.int32),
        padded([1 + labels[each].astype(np.int32) for each in chosen]),
        np.array([len(each) for each in chosen], np.int32),
    )


def _line(random: np.random.Generator, images: Floats) -> Floats:
    """``[HEIGHT, columns]``."""
    gaps = _between(random, GAPS, len(images) + 1)
    tops = _between(random, (0, HEIGHT - 8), len(images))
    line = np.zeros((HEIGHT, int(gaps.sum()) + 8 * len(images)), np.float32)
    lefts = np.cumsum(gaps[:-1]) + 8 * np.arange(len(images))
    for image, top, left in zip(images, tops, lefts, strict=True):
        line[top : top + 8, left : left + 8] = image
    return line


def _between(random: np.random.Generator, bounds: tuple[int, int], count: int) -> NDArray[np.int64]:
    return random.integers(bounds[0], bounds[1] + 1, size=count)


def padded(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One array of all, with zeros behind the shorter ones."""
    result = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), rows[0].dtype)
    for place, row in zip(result, rows, strict=True):
        place[: len(row)] = row
    return result


def text(labels: Sequence[int]) -> str:
    """What classes say."""
    return "".join(str(each - 1) for each in labels)
