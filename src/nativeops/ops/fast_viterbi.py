# SPDX-License-Identifier: Apache-2.0
"""Viterbi over a batch of automata: the best path of each."""

from typing import Annotated, Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, AtMost, Float, Int32, Lengths, op
from nativeops.ops import _paths


class FastViterbi(NamedTuple, Generic[Array]):
    """The classes of the best paths, and their scores, of `fast_viterbi`."""

    alignment: Int32[Array, "t b"]
    scores: Float[Array, "b"]


@op(kernel="fast_viterbi.h")
def fast_viterbi(
    am_scores: Float[Array, "t b c"],
    edges: Int32[Array, "4 e"],
    weights: Float[Array, "e"],
    start_end_states: Int32[Array, "2 b"],
    lengths: Lengths[Array, "b"] | None = None,
    end_states: Int32[Array, "2 m"] | None = None,
    end_weights: Float[Array, "m"] | None = None,
    *,
    mask_idx: Annotated[int, AtLeast(-(2**31)), AtMost(2**31 - 1)] = -1,
) -> FastViterbi[Array]:
    """The best path of each sequence through its automaton.

    ``max_path Σ_t am_scores[t, b, class(edge)] - weights[edge]``, over paths from the start state
    to an end state, an edge in each frame.

    Args:
        am_scores: Scores of the classes: log-probabilities, or any other.
        edges: The edges of all automata, as in `fast_baum_welch`.
        weights: The cost of each edge, as in `fast_baum_welch`: subtracted; one of +∞ is no edge.
        start_end_states: The start state and the end state of each sequence.
        lengths: The number of frames of each sequence, from 0 to ``t``; ``t`` if left away.
        end_states: Several end states, as in `fast_baum_welch`.
        end_weights: The cost of ending in each of ``end_states``, without which it counts for
            nothing; 0 if left away.
        mask_idx: What the alignment says beyond a sequence's end, and where it has no path.

    Returns: ``alignment``, the class of each frame, and ``scores``, -∞ where there is no path.
        Of equally good edges to a state the first in the list is taken, of equally good end states
        the first in theirs.
    NaN: or +∞ as the score of a class that the automaton has, or NaN or -∞ as a weight, makes the
        score of its sequence NaN and masks its alignment.
    Range: a score or a weight beyond ±6.9e10 that is not infinite counts as that. They are added in
        float64.
    Gradient: none; pick the scores of the alignment for one.
    Cost: O(t·e) time; 2·√t·(e + 3·b) double numbers of memory, or t·(e + 3·b) where these are few,
        and 41·(e + 3·b) integers of 4 bytes. Where n threads share a long sequence, 32·n more rows
        of numbers.
    Same as: RETURNN's ``fast_viterbi``, whose weights have the other sign.
    Source: Viterbi 1967, Error bounds for convolutional codes; Rabiner 1989, section III.

    >>> edges = np.array([[0, 0], [0, 1], [0, 1], [0, 0]], "int32")
    >>> found = fast_viterbi(np.zeros((2, 1, 2)), edges, np.zeros(2), np.array([[0], [1]], "int32"))
    >>> found.alignment.ravel()
    array([0, 1], dtype=int32)
    """
    (steps, batch, _), automata = am_scores.shape, (edges, weights, start_end_states)
    alignment: Any = np.full((steps, batch), mask_idx, np.int32)
    scores: Any = np.full(batch, -np.inf)
    for b in range(batch):
        n = steps if lengths is None else int(lengths[b])
        path, scores[b] = _best(am_scores[:n, b], b, *automata, end_states, end_weights)
        if scores[b] > -np.inf:
            alignment[:n, b] = edges[2, path]
    return FastViterbi(alignment, scores)


def _best(scores: Any, b: int, edges: Any, weights: Any, *ends: Any) -> tuple[list[int], float]:
    """The edges of the best path of one sequence, and its score."""
    own, _, start, finals = _paths.select(b, edges, weights, *ends, best=True)
    best: dict[int, float] = {start: 0.0}
    came: list[dict[int, int]] = []
    for frame in scores:
        after: dict[int, float] = {}
        came.append({})
        for e in own:
            before, to = int(edges[0, e]), int(edges[1, e])
            if before in best:
                score = best[before] + frame[edges[2, e]] - weights[e]
                if score > after.get(to, -np.inf):
                    after[to], came[-1][to] = score, int(e)
        best = after
    ending = [(best[state] - cost, -i) for i, (state, cost) in enumerate(finals) if state in best]
    if not ending or max(ending)[0] == -np.inf:
        return [], -np.inf
    score, i = max(ending)
    state, path = finals[-i][0], []
    for step in reversed(came):
        path.append(step[state])
        state = int(edges[0, path[-1]])
    return path[::-1], score


@fast_viterbi.example
def _(random, given):  # type: ignore[no-untyped-def]
    # Sums of such numbers are exact in any dtype, so that equal paths are equal everywhere.
    t, b, c = (given[name] for name in "tbc")
    made = _paths.example(random, given)
    made = {k: np.round(v * 4) / 4 if v.dtype == float else v for k, v in made.items()}
    scores = -np.round(random.exponential(1.0, (t, b, c)) * 4) / 4
    return {"am_scores": scores, "lengths": random.integers(0, t + 1, b).astype(np.int32), **made}
