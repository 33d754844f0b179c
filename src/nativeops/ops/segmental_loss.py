# SPDX-License-Identifier: Apache-2.0
"""The full-sum loss of segmental models: automata whose edges say a class for several frames."""

from typing import Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Int32, Lengths, op
from nativeops.ops import _paths


@op(kernel="segmental_loss.h")
def segmental_loss(
    scores: Float[Array, "l t b c"],
    edges: Int32[Array, "4 e"],
    weights: Float[Array, "e"],
    start_end_states: Int32[Array, "2 b"],
    lengths: Lengths[Array, "b"] | None = None,
    length_costs: Float[Array, "k l"] | None = None,
    length_models: Int32[Array, "e"] | None = None,
    end_states: Int32[Array, "2 m"] | None = None,
    end_weights: Float[Array, "m"] | None = None,
    *,
    zero_infinity: bool = False,
) -> Float[Array, "b"]:
    """Full-sum loss of a segmental model: each edge of a path takes 1 to ``l`` frames.

    ``loss[b] = -log Σ_path Σ_segments Π_edge e^(scores[n-1, t, b, class(edge)] - weights[edge]
    - length_costs[model(edge), n-1])``, where the edge's segment has ``n`` frames and begins in
    frame ``t``. A path leads from the start state to an end state; its segments follow one another
    and make up all frames.

    Args:
        scores: The logarithm of what a segment of each class is worth, by its number of frames,
            less one, and by the frame it begins in. Those beyond the end do not count.
        edges: The edges of all automata, as in `fast_baum_welch`.
        weights: The cost of each edge; one of +∞ is no edge.
        start_end_states: The start state and the end state of each sequence.
        lengths: The number of frames of each sequence, from 0 to ``t``; ``t`` if left away.
        length_costs: -log of the probability of each length, for several models of length.
        length_models: The row of ``length_costs`` for each edge, the first if left away; without
            ``length_costs`` it counts for nothing.
        end_states: Several end states, as in `fast_baum_welch`.
        end_weights: The cost of ending in each of ``end_states``, without which it counts for
            nothing; 0 if left away.
        zero_infinity: Where there is no path the loss is 0, instead of +∞.

    NaN: or -∞ as the cost of an edge, of an end or of a length that one of its edges may have, or
        +∞ as the score of a class that its automaton has, makes the loss of a sequence NaN. Only
        segments within its frames count.
    Range: of scores, costs and totals as in `fast_baum_welch`.
    Gradient: for ``scores``, ``weights``, ``length_costs`` and ``end_weights``; 0 where there is no
        path. It keeps the arguments only, and goes through all frames again. That of ``scores`` is
        minus the posterior of each segment.
    Cost: O(l·t·e) time; (50 + 7·l)·(e + 3·b) + 2·k·l numbers of memory, l rounded up to 16.
    Same as: with ``l = 1``, `fsa_loss` with ``normalized=True``.
    Source: Sarawagi & Cohen 2004, Semi-Markov conditional random fields, section 3; Zweig & Nguyen
        2009, A segmental CRF approach to large vocabulary continuous speech recognition. RETURNN
        has the posteriors as SegmentFastBaumWelch.

    >>> edges = np.array([[0], [0], [0], [0]], "int32")
    >>> given = np.zeros((2, 3, 1, 1)), edges, np.zeros(1), np.array([[0], [0]], "int32")
    >>> np.exp(-segmental_loss(*given)).round(4)  # 1+1+1, 1+2 or 2+1 frames
    array([3.])
    """
    batch = scores.shape[2]
    loss: Any = np.zeros(batch)
    for b in range(batch):
        frames = scores.shape[1] if lengths is None else int(lengths[b])
        automata = (edges, weights, start_end_states, end_states, end_weights)
        loss[b] = _sums(scores[:, :frames, b], b, automata, length_costs, length_models)[0]
    if zero_infinity:
        loss[np.isposinf(loss)] = 0
    return loss


def _sums(scores: Any, b: int, automata: Any, length_costs: Any, length_models: Any) -> Any:
    """-log of the sum of all paths, posteriors of segments, and of edges by length."""
    own, arcs, start, finals = _paths.select(b, *automata)
    (most, frames, _), count = scores.shape, len(automata[1])
    states, before, after = _paths.numbered(arcs, start, finals)
    costs: Any = np.zeros((most, len(own)))
    if length_costs is not None:
        model = np.zeros(count, int) if length_models is None else length_models
        costs = length_costs[model[own]].T
    # Wider than the kernels' own sums, so that a difference is theirs.
    scored = scores[:, :, arcs[:, 2]] - automata[1][own] - costs[:, None]
    logs = scored.astype(np.longdouble)
    segments = [(n, t) for t in range(frames) for n in range(min(most, frames - t))]
    alpha = np.full((frames + 1, len(states)), -np.inf, logs.dtype)
    beta = alpha.copy()
    alpha[0, states[start]] = 0
    for n, t in segments:
        np.logaddexp.at(alpha[t + n + 1], after, alpha[t, before] + logs[n, t])
    for state, cost in finals.items():
        beta[frames, states[state]] = -cost
    for n, t in reversed(segments):
        np.logaddexp.at(beta[t], before, logs[n, t] + beta[t + n + 1, after])
    total = np.logaddexp.reduce(alpha[-1] + beta[-1], initial=-np.inf)
    posterior, taken = np.zeros(scores.shape), np.zeros((count, most))
    for n, t in segments if total > -np.inf else ():
        share = np.exp(alpha[t, before] + logs[n, t] + beta[t + n + 1, after] - total)
        np.add.at(posterior[n, t], arcs[:, 2], share)
        taken[own, n] += share
    return -total, posterior, taken


class SegmentalLossGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `segmental_loss`."""

    d_scores: Float[Array, "l t b c"] | None
    d_weights: Float[Array, "e"] | None
    d_length_costs: Float[Array, "k l"] | None
    d_end_weights: Float[Array, "m"] | None


@op(kernel="segmental_loss.h")
def segmental_loss_grad(
    scores: Float[Array, "l t b c"],
    edges: Int32[Array, "4 e"],
    weights: Float[Array, "e"],
    start_end_states: Int32[Array, "2 b"],
    d_out: Float[Array, "b"],
    lengths: Lengths[Array, "b"] | None = None,
    length_costs: Float[Array, "k l"] | None = None,
    length_models: Int32[Array, "e"] | None = None,
    end_states: Int32[Array, "2 m"] | None = None,
    end_weights: Float[Array, "m"] | None = None,
) -> SegmentalLossGrad[Array]:
    """What flows back through `segmental_loss` into its arguments.

    ``d_scores[n-1, t, b, c] = -d_out[b] · posterior of a segment of class c, of n frames from frame
    t on``; ``d_weights[e] = d_out[b] · Σ_n,t posterior of e``, and so for lengths and ends.

    Args:
        scores: As given to `segmental_loss`.
        edges: As given to `segmental_loss`.
        weights: As given to `segmental_loss`.
        start_end_states: As given to `segmental_loss`.
        d_out: The gradient that arrives at the losses.
        lengths: As given to `segmental_loss`.
        length_costs: As given to `segmental_loss`.
        length_models: As given to `segmental_loss`.
        end_states: As given to `segmental_loss`.
        end_weights: As given to `segmental_loss`.

    Returns: One gradient per argument; ``only(["d_scores"])`` of the op makes one, the others are
        None. Beyond the end, and where there is no path, they are 0.
    NaN: as in `segmental_loss`.
    Gradient: none.
    Cost: O(l·(t·(e + b·c) + k)) time; (50 + 10·l + 2·t)·(e + 3·b) + 3·k·l numbers of memory, l
        rounded up to 16.
    Same as: with ``l = 1``, the gradient of `fsa_loss` with ``normalized=True``.
    Source: as that of `segmental_loss`.

    >>> edges = np.array([[0], [0], [0], [0]], "int32")
    >>> given = np.zeros((2, 2, 1, 1)), edges, np.zeros(1), np.array([[0], [0]], "int32")
    >>> segmental_loss_grad(*given, np.ones(1)).d_scores[:, :, 0, 0]  # 1+1 frames, or 2
    array([[-0.5, -0.5],
           [-0.5,  0. ]])
    """
    batch = scores.shape[2]
    d_scores: Any = np.zeros(scores.shape)
    d_weights: Any = np.zeros(weights.shape)
    d_lengths: Any = np.zeros((0, len(scores)) if length_costs is None else length_costs.shape)
    ends: Any = np.zeros((2, 0), int) if end_states is None else end_states
    costs: Any = np.zeros(ends.shape[1]) if end_weights is None else end_weights
    d_ends: Any = np.zeros(len(costs))
    models = np.zeros(len(weights), int) if length_models is None else length_models
    for b in range(batch):
        frames = scores.shape[1] if lengths is None else int(lengths[b])
        lasting = (scores[:, :frames, b], b)
        automata = (edges, weights, start_end_states)
        total, posterior, taken = _sums(
            *lasting, (*automata, end_states, end_weights), length_costs, length_models
        )
        if np.isposinf(total):
            continue
        d_scores[:, :frames, b] = -d_out[b] * posterior
        d_weights += d_out[b] * taken.sum(1)
        if length_costs is not None:
            used = taken.any(1)
            np.add.at(d_lengths, models[used], d_out[b] * taken[used])
        for i in np.flatnonzero(ends[0] == b):
            alone = (*automata, ends[:, [i]], costs[[i]])
            d_ends[i] = d_out[b] * np.exp(
                total - _sums(*lasting, alone, length_costs, length_models)[0]
            )
    return SegmentalLossGrad(d_scores, d_weights, d_lengths, d_ends)


@segmental_loss.gradient
def _(  # type: ignore[no-untyped-def]
    scores, edges, weights, start_end_states, lengths, length_costs, length_models, end_states,
    end_weights, d_out, needs
):  # fmt: skip
    return segmental_loss_grad.only(needs)(
        scores, edges, weights, start_end_states, d_out, lengths, length_costs, length_models,
        end_states, end_weights,
    )  # fmt: skip


def _example(random: Any, given: Any) -> dict[str, Any]:
    models = given.get("k", 1)
    possible = {**given, "c": given["c"] if given["l"] and models else 0}
    made, lengths = _paths.with_paths(random, possible)
    if "k" in given:
        made["length_costs"] = random.exponential(1.0, (models, given["l"]))
        rows = random.integers(0, max(models, 1), given["e"])
        made["length_models"] = rows.astype(np.int32)
    shape = tuple(given[name] for name in "ltbc")
    return {"scores": random.standard_normal(shape), "lengths": lengths, **made}


@segmental_loss.example
def _(random, given):  # type: ignore[no-untyped-def]
    # Differences of an infinite loss are no slopes: where lengths are left away some have no path.
    return {**_example(random, given), "zero_infinity": True}


@segmental_loss_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    return {**_example(random, given), "d_out": random.standard_normal(given["b"])}
