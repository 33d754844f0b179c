# SPDX-License-Identifier: Apache-2.0
"""ctc_greedy_decode against its rivals."""

from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import Bench, Known, NdArray
from nativeops.bench.forms import ours_in, tensorflow_rival, torch_rival

SIZES = [
    {"t": 400, "b": 32, "c": 80},
    {"t": 1000, "b": 8, "c": 1000},
    {"t": 1500, "b": 16, "c": 5000},
]


def logits(random: np.random.Generator, t: int, b: int, c: int) -> tuple[NdArray, ...]:
    """Normally distributed, with the blank first in every other frame."""
    x = random.standard_normal((t, b, c), dtype=np.float32)
    x[::2, :, 0] += 8
    return (x,)


def lengths(x: NdArray) -> list[Known]:
    """How many labels each sequence says."""
    ways = x.argmax(-1)
    new = np.concatenate([np.ones_like(ways[:1], bool), ways[1:] != ways[:-1]])
    return [Known(slice(None), (new & (ways != 0)).sum(0))]


def ours(x: Any) -> Any:
    """Labels, their number and their score; of these the number."""
    return nativeops.ctc_greedy_decode(x).lengths


def torch_argmax(x: Any) -> Any:
    """The same three by PyTorch's operations on the whole batch."""
    import torch

    best, ways = x.log_softmax(-1).max(-1)
    new = torch.ones_like(ways, dtype=torch.bool)
    new[1:] = ways[1:] != ways[:-1]
    said = new & (ways != 0)
    place = said.cumsum(0) - 1
    labels = torch.full_like(ways.T, -1)
    t, b = said.nonzero(as_tuple=True)
    labels[b, place[t, b]] = ways[t, b]
    best.sum(0)
    return said.sum(0)


def tensorflow_decoder(x: Any) -> Any:
    """TensorFlow's decoder, whose score has no softmax."""
    import tensorflow as tf

    frames = tf.fill([x.shape[1]], x.shape[0])
    (found,), _ = tf.nn.ctc_greedy_decoder(x, frames, blank_index=0)
    return tf.math.bincount(tf.cast(found.indices[:, 0], tf.int32), minlength=x.shape[1])


BENCHES = [
    Bench(
        "greedy",
        "the best class of each frame, repeats and blanks removed, and its score",
        sizes=SIZES,
        inputs=logits,
        expected=lengths,
        seconds=3,
        rivals=[
            *ours_in(ours, "numpy", "torch", "tensorflow"),
            torch_rival(torch_argmax),
            tensorflow_rival(tensorflow_decoder),
        ],
    ),
]
