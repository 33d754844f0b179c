# SPDX-License-Identifier: Apache-2.0
"""The 1797 handwritten digits that come with scikit-learn, split once and for all."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CLASSES = 10


class Digits(NamedTuple):
    """Images of 8 x 8 pixels from 0 to 16, as rows of 64 numbers, and which digit they show."""

    train: NDArray[np.float32]
    train_label: NDArray[Any]
    held_out: NDArray[np.float32]
    held_out_label: NDArray[Any]


@cache
def digits() -> Digits:
    """Three quarters to learn from, one quarter held out."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, held_out, train_label, held_out_label = train_test_split(
        images.astype(np.float32), labels, test_size=0.25, random_state=0, stratify=labels
    )
    return Digits(train, train_label, held_out, held_out_label)
