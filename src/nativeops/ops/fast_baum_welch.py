# SPDX-License-Identifier: Apache-2.0
"""Baum-Welch over a batch of automata: the sum of all paths, and posteriors of classes."""

from typing import Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Int32, Lengths, op
from nativeops.ops import _paths


class FastBaumWelch(NamedTuple, Generic[Array]):
    """-log of the posteriors, and of the sums over all paths, of `fast_baum_welch`."""

    fwdbwd: Float[Array, "t b c"]
    obs_scores: Float[Array, "t b"]


@op(kernel="fast_baum_welch.h")
def fast_baum_welch(
    am_scores: Float[Array, "t b c"],
    edges: Int32[Array, "4 e"],
    weights: Float[Array, "e"],
    start_end_states: Int32[Array, "2 b"],
    lengths: Lengths[Array, "b"] | None = None,
    end_states: Int32[Array, "2 m"] | None = None,
    end_weights: Float[Array, "m"] | None = None,
) -> FastBaumWelch[Array]:
    """Posterior of each class in each frame, summed over all paths of an automaton.

    ``obs_scores[t, b] = -log P`` and ``fwdbwd[t, b, c] = -log (P(class c in t) / P)``, where
    ``P = Σ_path e^-cost`` and ``cost = Σ_t am_scores[t, b, class(edge)] + weights[edge]``. A path
    begins in the start state, takes an edge in each frame, and ends in an end state.

    Args:
        am_scores: Costs of the classes: -log probabilities, or any other.
        edges: The edges of all automata, in any order: rows of the states they come from, the
            states they lead to, the classes they emit, and their sequences. States are any
            numbers from 0 on; each sequence has its own.
        weights: The cost of each edge; one of +∞ is no edge.
        start_end_states: The start state and the end state of each sequence.
        lengths: The number of frames of each sequence, from 0 to ``t``; ``t`` if left away.
        end_states: Several end states: rows of sequences and states. For the sequences that are
            there, those of ``start_end_states`` do not count.
        end_weights: The cost of ending in each of ``end_states``, without which it counts for
            nothing; 0 if left away.

    Returns: ``fwdbwd``, +∞ where no path has the class and beyond the end, and ``obs_scores``, the
        same in all frames of a sequence and 0 beyond its end. Without any path both are +∞.
    NaN: or -∞, as a weight, or as the score of a class that its automaton has, makes all of a
        sequence NaN.
    Range: in float32 a cost may be from -2.9e6 to 2.9e6, and the total of a sequence from -1.86e8
        to 3.72e8, also after each frame; in float64 1e15 and 1e18. What is smaller is as -∞, what
        is larger as +∞.
    Gradient: none; `fsa_loss` has it.
    Cost: O(t·(e + b·c)) time; (40 + 4·√t)·(e + 3·b) numbers of memory, or
        (40 + 2·t + 2·√t)·(e + 3·b) where these are few. Where n threads share a long sequence,
        (2·√t + n·(50 + 2·√t))·(e + 3·b) more.
    Same as: RETURNN's ``fast_baum_welch``, but for the cases above.
    Source: Baum et al. 1970, A maximization technique; Rabiner 1989, section III.

    >>> edges = np.array([[0, 0], [0, 1], [0, 1], [0, 0]], "int32")
    >>> scores = np.full((2, 1, 2), np.log(2.0))
    >>> ends = np.array([[0], [1]], "int32")
    >>> fast_baum_welch(scores, edges, np.zeros(2), ends).obs_scores.round(4).ravel()
    array([1.3863, 1.3863])
    """
    (steps, batch, _), automata = am_scores.shape, (edges, weights, start_end_states)
    ends = (end_states, end_weights)
    fwdbwd: Any = np.full(am_scores.shape, np.inf)
    obs: Any = np.zeros((steps, batch))
    for b in range(batch):
        n = steps if lengths is None else int(lengths[b])
        fwdbwd[:n, b], obs[:n, b], _ = _paths.posteriors(am_scores[:n, b], b, *automata, *ends)
    return FastBaumWelch(fwdbwd, obs)


class FastBaumWelchPacked(NamedTuple, Generic[Array]):
    """-log of the posteriors, and of the sums over all paths, of `fast_baum_welch_packed`."""

    fwdbwd: Float[Array, "n c"]
    obs_scores: Float[Array, "b"]


@op(kernel="fast_baum_welch.h")
def fast_baum_welch_packed(
    am_scores: Float[Array, "n c"],
    seq_starts: Int32[Array, "b"],
    lengths: Lengths[Array, "b"],
    edges: Int32[Array, "4 e"],
    weights: Float[Array, "e"],
    start_end_states: Int32[Array, "2 b"],
    end_states: Int32[Array, "2 m"] | None = None,
    end_weights: Float[Array, "m"] | None = None,
) -> FastBaumWelchPacked[Array]:
    """`fast_baum_welch` of sequences that lie one after another, without padding.

    ``seq_starts[b] + t`` is the row of frame ``t`` of sequence ``b``.

    Args:
        am_scores: Costs of the classes.
        seq_starts: The first row of each sequence, in any order; gaps are allowed, common rows not.
        lengths: The number of frames of each.
        edges: As in `fast_baum_welch`.
        weights: As in `fast_baum_welch`.
        start_end_states: As in `fast_baum_welch`.
        end_states: As in `fast_baum_welch`.
        end_weights: As in `fast_baum_welch`.

    Returns: ``fwdbwd``, +∞ also in gaps, and ``obs_scores``, one for each sequence.
    NaN: as in `fast_baum_welch`.
    Gradient: none; `fsa_loss` has it.
    Cost: as that of `fast_baum_welch`, with ``t`` = ``n``.
    Same as: RETURNN's ``fast_baum_welch_packed``.
    Source: as that of `fast_baum_welch`.

    >>> edges = np.array([[0, 0], [0, 1], [0, 1], [0, 0]], "int32")
    >>> given = np.full((3, 2), np.log(2.0)), np.array([1], "int32"), np.array([2], "int32"), edges
    >>> fast_baum_welch_packed(*given, np.zeros(2), np.array([[0], [1]], "int32")).obs_scores
    array([1.38629436])
    """
    automata, ends = (edges, weights, start_end_states), (end_states, end_weights)
    fwdbwd: Any = np.full(am_scores.shape, np.inf)
    obs: Any = np.zeros(len(lengths))
    for b, (start, n) in enumerate(zip(seq_starts, lengths, strict=True)):
        rows = slice(start, start + n)
        fwdbwd[rows], obs[b], _ = _paths.posteriors(am_scores[rows], b, *automata, *ends)
    return FastBaumWelchPacked(fwdbwd, obs)


@fast_baum_welch.example
def _(random, given):  # type: ignore[no-untyped-def]
    t, b, c = (given[name] for name in "tbc")
    scores = random.exponential(1.0, (t, b, c))
    lengths = random.integers(0, t + 1, b).astype(np.int32)
    return {"am_scores": scores, "lengths": lengths, **_paths.example(random, given)}


@fast_baum_welch_packed.example
def _(random, given):  # type: ignore[no-untyped-def]
    n, b, c = (given[name] for name in "nbc")
    cuts = np.sort(random.integers(0, n + 1, 2 * b))
    cut: dict[str, Any] = {"seq_starts": cuts[::2], "lengths": cuts[1::2] - cuts[::2]}
    frames = {name: array.astype(np.int32) for name, array in cut.items()}
    return {"am_scores": random.exponential(1.0, (n, c)), **frames, **_paths.example(random, given)}
