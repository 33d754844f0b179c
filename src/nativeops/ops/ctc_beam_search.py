# SPDX-License-Identifier: Apache-2.0
"""CTC prefix beam search: the most probable label sequences of CTC outputs."""

from typing import Annotated, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, AtMost, Float, Int32, Lengths, op
from nativeops.ops import _prefixes


class CtcPrefixes(NamedTuple, Generic[Array]):
    """The best label sequences of `ctc_prefixes`, the best one first."""

    tokens: Int32[Array, "b n_best t"]
    lengths: Int32[Array, "b n_best"]
    scores: Float[Array, "b n_best"]
    frames: Int32[Array, "b n_best t"]


@op(kernel="ctc_beam_search.h", devices="cpu", caller="ctc_beam_search")
def ctc_prefixes(
    logits: Float[Array, "t b c"],
    lengths: Lengths[Array, "b"] | None = None,
    *,
    beam_width: Annotated[int, AtLeast(1), AtMost(2**31 - 1)] = 16,
    n_best: Annotated[int, AtLeast(1)] = 1,
    blank: Annotated[int, AtLeast(-1)] = 0,
    normalized: bool = False,
    token_threshold: Annotated[float, AtLeast(0), AtMost(1)] = 0.0,
    insertion_bonus: Annotated[float, AtLeast(-1e6), AtMost(1e6)] = 0.0,
) -> CtcPrefixes[Array]:
    """The label sequences of highest probability under CTC, by prefix beam search.

    ``b'[p] = (b[p] + l[p])·y[blank]``, ``l'[p] = l[p]·y[last] + x·y[last]``: after each frame, of
    all paths that give a prefix ``p``, ``b[p]`` is the probability of those that end in a blank,
    and ``l[p]`` of those that end in its last label. ``y`` are the frame's probabilities, and
    ``x = b[q] + l[q]`` of the prefix ``q`` before, only ``b[q]`` if ``q`` ends in the same label.
    The ``beam_width`` prefixes of best score stay after each frame.

    Args:
        logits: The outputs of each frame, not normalised.
        lengths: The frames of each sequence, from 0 to ``t``; ``t`` if left away.
        beam_width: How many prefixes stay. With as many as there are, the result is exact.
        n_best: How many sequences to return, at most ``beam_width``.
        blank: The blank among the ``c`` symbols; -1 is the last one.
        normalized: ``logits`` are log-probabilities already, and taken as they are.
        token_threshold: A label with a smaller probability in a frame extends no prefix there.
        insertion_bonus: Added to the score for each label.

    Returns: ``tokens``, -1 behind the ``lengths`` of each; ``scores``, the log-probabilities and
        bonuses; ``frames``, where each label begins on the best path of its sequence. Where there
        are fewer sequences than ``n_best``: length 0, score -inf. Of equal scores a prefix that was
        there before comes first, then the extension of a better prefix, then by a more probable
        label, then by that of smaller index.
    Raises: ``RangeError`` for a length, a blank or ``n_best`` outside its range.
    NaN: and +inf in a sequence's frames give it no tokens and the score NaN, and no other.
    Gradient: none: which sequences are best changes in jumps.
    Cost: O(t·b·(c + beam_width²)) time and O(t·beam_width) memory for each thread; the sequences of
        a batch are spread over threads. On the CPU only: elsewhere it says so.
    Same as: no equivalent in PyTorch; ``torchaudio.models.decoder.ctc_decoder`` keeps best paths.
    Source: Graves & Jaitly 2014, Towards end-to-end speech recognition with recurrent neural
        networks, algorithm 1; Hannun et al. 2014, First-pass large vocabulary continuous speech
        recognition using bi-directional recurrent DNNs.

    >>> found = ctc_prefixes(np.log([[[0.6, 0.4]], [[0.6, 0.4]]]), n_best=2)
    >>> found.tokens[0, :, 0], np.exp(found.scores).round(2)
    (array([ 1, -1], dtype=int32), array([[0.64, 0.36]]))
    """
    options = _prefixes.Options(beam_width, blank, token_threshold, insertion_bonus)
    return CtcPrefixes(*_prefixes.search_batch(logits, lengths, n_best, normalized, options))


@ctc_prefixes.example
def _(random, given):  # type: ignore[no-untyped-def]
    t, b, c = (given[name] for name in "tbc")
    return {
        "logits": random.standard_normal((t, b, c)),
        "lengths": random.integers(0, t + 1, b).astype(np.int32),
    }
