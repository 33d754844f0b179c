# SPDX-License-Identifier: Apache-2.0
"""CTC's best path: what the most probable class of each frame says."""

from typing import Annotated, Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, Float, Int32, Lengths, op
from nativeops.ops import _ctc


class CtcBestPath(NamedTuple, Generic[Array]):
    """The labels of each sequence, their number, and how probable the way is that says them."""

    labels: Int32[Array, "b t"]
    lengths: Int32[Array, "b"]
    scores: Float[Array, "b"]


@op(kernel="ctc_best_path.h", independent="b", caller="ctc_greedy_decode")
def ctc_best_path(
    logits: Float[Array, "t b c"],
    input_lengths: Lengths[Array, "b"] | None = None,
    *,
    blank: Annotated[int, AtLeast(0)] = 0,
    label_loop: bool = True,
) -> CtcBestPath[Array]:
    """Greedy decoding: the best class of each frame, repeats merged, blanks removed.

    ``w[t] = argmax_c logits[t, b, c]``, the first of equals; ``labels[b]`` is what ``w`` says, and
    ``scores[b] = Σ_t log softmax(logits[t, b])[w[t]]``.

    Args:
        logits: Un-normalised, or logarithms of probabilities; in any strides without a copy.
        input_lengths: The number of frames of each sequence, from 0 to ``t``; ``t`` if left away.
        blank: The class that says nothing.
        label_loop: Whether repeats are merged. Without, each frame with a label says one.

    Returns: ``labels``, -1 behind the ``lengths`` first; ``scores``, at most 0.
    NaN: makes the score of its own sequence NaN; its frame says nothing.
    Gradient: none.
    Cost: O(t·b·c) time; a workspace of 2·t·b numbers.
    Same as: ``tf.nn.ctc_greedy_decoder``, whose score is the negative sum of the largest logits.
    Source: Graves et al. 2006, Connectionist temporal classification, section 3.2.

    >>> ways = np.eye(3)[[1, 1, 0, 1, 2]][:, None]  # the classes 1 1 0 1 2
    >>> ctc_best_path(ways).labels
    array([[ 1,  1,  2, -1, -1]], dtype=int32)
    """
    steps, batch = logits.shape[:2]
    labels: Any = np.full((batch, steps), -1, np.int32)
    lengths: Any = np.zeros(batch, np.int32)
    scores: Any = np.zeros(batch)
    wide = logits.astype(np.float64)
    sums = sum(_ctc.log_sums(wide))
    for b in range(batch):
        before = blank
        for t in range(steps if input_lengths is None else int(input_lengths[b])):
            most = wide[t, b].max(initial=-np.inf)
            bad = np.isnan(most) or not wide.shape[2]
            way = blank if bad else int(wide[t, b].argmax())
            scores[b] += most - sums[t, b]
            if way != blank and not (label_loop and way == before):
                labels[b, lengths[b]] = way
                lengths[b] += 1
            before = way
    return CtcBestPath(labels, lengths, scores)


@ctc_best_path.example
def _(random, given):  # type: ignore[no-untyped-def]
    t, b, c = (given[name] for name in "tbc")
    logits = np.round(16 * random.standard_normal((t, b, c))) / 16  # the same in every dtype
    return {"logits": logits, "input_lengths": random.integers(0, t + 1, b).astype(np.int32)}
