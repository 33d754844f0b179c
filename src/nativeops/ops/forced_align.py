# SPDX-License-Identifier: Apache-2.0
"""Forced alignment: the best path of a CTC lattice, for whole batches."""

from typing import Annotated, Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, Float, Int, Lengths, op


class ForcedAlign(NamedTuple, Generic[Array]):
    """The best alignment per frame, and the span of frames of each token."""

    labels: Int[Array, "t b"]
    scores: Float[Array, "t b"]
    starts: Int[Array, "b s"]
    ends: Int[Array, "b s"]
    confidence: Float[Array, "b s"]


@op(kernel="forced_align.h", independent="b")
def forced_align(
    log_probs: Float[Array, "t b c"],
    targets: Int[Array, "b s"],
    input_lengths: Lengths[Array, "b"] | None = None,
    target_lengths: Lengths[Array, "b"] | None = None,
    *,
    blank: Annotated[int, AtLeast(0)] = 0,
    label_loop: bool = True,
) -> ForcedAlign[Array]:
    """The most probable CTC path of each sequence through its own targets.

    ``max_path Σ_t log_probs[t, b, path[t]]``. A path says one label a frame: blanks, and the
    targets in their order, each for one frame or more. Between two equal targets there is a blank.

    Args:
        log_probs: Log-probability of each class in each frame; any other score does as well.
        targets: The labels of each sequence, none of them ``blank``.
        input_lengths: The number of frames of each sequence, from 0 to ``t``; ``t`` if left away.
        target_lengths: The number of targets of each, from 0 to ``s``; ``s`` if left away.
        blank: The class that stands for no label.
        label_loop: Whether a target may last longer than a frame. Without it, each takes exactly
            one and equal ones need no blank between them (the RNA topology).

    Returns: ``labels`` and ``scores``, what the path says in each frame and how probable it is;
        beyond the end -1 and 0, so that the sum over time is the path's log-probability. Then
        the tokens: target ``i`` takes the frames ``starts[b, i]`` to ``ends[b, i] - 1``, and its
        ``confidence`` is the mean probability of these; beyond the targets -1, -1 and 0.
        Where a sequence has no path at all, its labels are -1, its scores -∞ and its spans -1.
        Of equally good paths, that is taken which, seen from the end, ends in a target, stays in
        its state, and then rather comes from a blank than from a target.
    NaN: among the scores of blank or targets in any frame of a sequence makes all its scores NaN,
        and labels -1; so does +∞ where no path can be.
    Range: a score beyond ±6.9e10 that is not infinite counts as that. Scores are added in float64.
    Gradient: none.
    Cost: O(t·b·s) time; 3 bits of workspace (with AVX2 6) for each frame and target of the
        sequences in work and 4 MB, or 36·s doubles a thread where that is more; on other devices
        than the tuned ones t·b·(s + 1) bytes.
    Same as: ``torchaudio.functional.forced_align`` and ``merge_tokens``, for one sequence.
    Source: Graves et al. 2006, Connectionist temporal classification, section 4; Viterbi 1967.

    >>> p = np.log(np.array([[[0.1, 0.9]], [[0.6, 0.4]], [[0.8, 0.2]]]))
    >>> aligned = forced_align(p, np.array([[1]]))
    >>> aligned.labels.ravel(), aligned.ends.ravel(), aligned.confidence.round(2).ravel()
    (array([1, 0, 0]), array([1]), array([0.9]))
    """
    (steps, batch, _), width = log_probs.shape, targets.shape[1]
    labels: Any = np.full((steps, batch), -1)
    scores: Any = np.zeros((steps, batch))
    spans: Any = np.full((2, batch, width), -1)
    confidence: Any = np.zeros((batch, width))
    for b in range(batch):
        frames = steps if input_lengths is None else int(input_lengths[b])
        own = targets[b, : None if target_lengths is None else int(target_lengths[b])]
        path = _best_path(log_probs[:frames, b], own, blank, label_loop)
        if path is None:
            scores[:frames, b] = -np.inf
            continue
        said = np.append(own, blank)[path]
        labels[:frames, b] = said
        scores[:frames, b] = log_probs[np.arange(frames), b, said]
        for i in range(len(own)):
            [where] = np.nonzero(path == i)
            spans[:, b, i] = where[0], where[-1] + 1
            confidence[b, i] = np.exp(scores[where, b]).mean()
    return ForcedAlign(labels, scores, spans[0], spans[1], confidence)


def _best_path(scores: Any, targets: Any, blank: int, label_loop: bool) -> Any:
    """For each frame the position of its target, or of none behind the last; None if impossible."""
    n = len(targets)
    label = np.full(2 * n + 1, blank)
    label[1::2] = targets
    # A state may be entered from itself, the one before, or, between targets, the one before that.
    penalty = np.full((3, 2 * n + 1), -np.inf)
    penalty[0, :: 1 if label_loop else 2] = 0
    penalty[1, 1:] = 0
    penalty[2, 3::2][(targets[1:] != targets[:-1]) if label_loop else slice(None)] = 0
    best = np.where(np.arange(2 * n + 1) == 0, 0.0, -np.inf)
    came = np.zeros((len(scores), 2 * n + 1), int)
    for t, frame in enumerate(scores):
        before = np.stack(
            [np.concatenate([np.full(k, -np.inf), best])[: 2 * n + 1] for k in (0, 1, 2)]
        )
        before += penalty
        came[t] = before.argmax(0)
        best = before.max(0) + frame[label]
    state = 2 * n - 1 if n and best[2 * n - 1] >= best[2 * n] else 2 * n
    if best[state] == -np.inf:
        return None
    path = np.zeros(len(scores), int)
    for t in reversed(range(len(scores))):
        path[t] = state // 2 if state % 2 else n
        state -= came[t, state]
    return path


@forced_align.example
def _(random, given):  # type: ignore[no-untyped-def]
    # Sums of such numbers are exact in float32, so that equal paths are equal everywhere.
    t, b, s, c, blank = (given[name] for name in ("t", "b", "s", "c", "blank"))
    scores = -np.round(random.exponential(2.0, (t, b, c)) * 64) / 64
    others = np.delete(np.arange(c), [blank] if blank < c else [])
    width = s if len(others) else 0
    return {
        "log_probs": scores,
        "targets": random.choice(others, (b, s)) if width else np.zeros((b, s), int),
        "input_lengths": random.integers(0, t + 1, b) if c else np.zeros(b, int),
        "target_lengths": random.integers(0, min(width, max(t // 2, 1)) + 1, b),
    }
