# SPDX-License-Identifier: Apache-2.0
"""Optional inputs in TensorFlow that are absent: see `absent`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_made: dict[Any, Any] = {}  # for eager calls, by rank and dtype


def nothing(rank: int, dtype: Any, arrays: Sequence[Any]) -> Any:
    """The empty tensor: a constant of the graph that is built, or one that is kept."""
    if not tf.executing_eagerly():
        return tf.zeros([0] * rank, dtype)
    key = rank, dtype
    if key not in _made:
        with tf.device("cpu:0"):
            _made[key] = tf.zeros([0] * rank, dtype)
    return _made[key]
