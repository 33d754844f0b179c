# SPDX-License-Identifier: Apache-2.0
"""The full-sum loss: -log of the probability that a batch of automata gives to all its paths."""

from typing import Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Int32, Lengths, op
from nativeops.ops import _paths


@op(kernel="fsa_loss.h")
def fsa_loss(
    logits: Float[Array, "t b c"],
    edges: Int32[Array, "4 e"],
    weights: Float[Array, "e"],
    start_end_states: Int32[Array, "2 b"],
    lengths: Lengths[Array, "b"] | None = None,
    end_states: Int32[Array, "2 m"] | None = None,
    end_weights: Float[Array, "m"] | None = None,
    *,
    normalized: bool = False,
    zero_infinity: bool = False,
) -> Float[Array, "b"]:
    """Full-sum loss of each sequence over all paths of its automaton.

    ``loss[b] = -log Σ_path Π_t p[t, b, class(edge)] · e^-weights[edge]``,
    ``p = softmax(logits)``, over paths from the start state to an end state, an edge in each frame.

    Args:
        logits: Scores of the classes in each frame, not normalised.
        edges: The edges of all automata, as in `fast_baum_welch`.
        weights: The cost of each edge; one of +∞ is no edge.
        start_end_states: The start state and the end state of each sequence.
        lengths: The number of frames of each sequence, from 0 to ``t``; ``t`` if left away.
        end_states: Several end states, as in `fast_baum_welch`.
        end_weights: The cost of ending in each of ``end_states``, without which it counts for
            nothing; 0 if left away.
        normalized: ``logits`` are log-probabilities already: ``p = e^logits``.
        zero_infinity: Where there is no path the loss is 0, instead of +∞.

    NaN: as in `fast_baum_welch`; with ``normalized=False`` also among all other logits.
    Range: of costs and totals as in `fast_baum_welch`.
    Gradient: for ``logits``, ``weights`` and ``end_weights``; 0 where there is no path. It keeps
        the arguments only, and goes through all frames again.
    Cost: O(t·(c + e)) time; (40 + 20·n)·(e + 3·b) numbers of memory on n threads, and t·b.
    Same as: on an automaton of `ctc_fsa`, ``torch.nn.functional.ctc_loss``.
    Source: Rabiner 1989, A tutorial on hidden Markov models, section III; the gradient: Graves et
        al. 2006, Connectionist temporal classification, equation 16.

    >>> edges = np.array([[0, 0], [0, 1], [0, 1], [0, 0]], "int32")
    >>> fsa_loss(np.zeros((2, 1, 2)), edges, np.zeros(2), np.array([[0], [1]], "int32")).round(4)
    array([1.3863])
    """
    (steps, batch, _), automata = logits.shape, (edges, weights, start_end_states)
    loss: Any = np.zeros(batch)
    for b in range(batch):
        scores = _costs(logits[: steps if lengths is None else int(lengths[b]), b], normalized)
        loss[b] = _paths.posteriors(scores, b, *automata, end_states, end_weights)[1]
    if zero_infinity:
        loss[np.isposinf(loss)] = 0
    return loss


def _costs(logits: Any, normalized: bool) -> Any:
    """-log p; where all logits are -∞, so is what they are divided by: no class is possible."""
    if normalized:
        return -logits
    norm = np.logaddexp.reduce(logits, -1, keepdims=True)
    none = np.isneginf(norm)
    return np.where(none, np.inf, np.where(none, 0, norm) - logits)


class FsaLossGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `fsa_loss`."""

    d_logits: Float[Array, "t b c"] | None
    d_weights: Float[Array, "e"] | None
    d_end_weights: Float[Array, "m"] | None


@op(kernel="fsa_loss.h")
def fsa_loss_grad(
    logits: Float[Array, "t b c"],
    edges: Int32[Array, "4 e"],
    weights: Float[Array, "e"],
    start_end_states: Int32[Array, "2 b"],
    d_out: Float[Array, "b"],
    lengths: Lengths[Array, "b"] | None = None,
    end_states: Int32[Array, "2 m"] | None = None,
    end_weights: Float[Array, "m"] | None = None,
    *,
    normalized: bool = False,
) -> FsaLossGrad[Array]:
    """What flows back through `fsa_loss` into its arguments.

    ``d_logits[t, b, c] = d_out[b] · (p[t, b, c] - posterior of c in t)``, without the first if
    ``normalized``; ``d_weights[e] = d_out[b] · Σ_t posterior of e in t``, and so for ends.

    Args:
        logits: As given to `fsa_loss`.
        edges: As given to `fsa_loss`.
        weights: As given to `fsa_loss`.
        start_end_states: As given to `fsa_loss`.
        d_out: The gradient that arrives at the losses.
        lengths: As given to `fsa_loss`.
        end_states: As given to `fsa_loss`.
        end_weights: As given to `fsa_loss`.
        normalized: As given to `fsa_loss`.

    Returns: One gradient per argument; ``only(["d_logits"])`` of the op makes one, the others are
        None. Beyond the end, and where there is no path, they are 0.
    NaN: as in `fsa_loss`.
    Gradient: none.
    Cost: O(t·(c + e)) time; memory as in `fast_baum_welch`, and t·b numbers.
    Same as: the gradient of ``torch.nn.functional.ctc_loss``, on an automaton of `ctc_fsa`.
    Source: as that of `fsa_loss`.

    >>> edges = np.array([[0, 0], [0, 1], [0, 1], [0, 0]], "int32")
    >>> given = np.zeros((1, 1, 2)), edges, np.zeros(2), np.array([[0], [1]], "int32"), np.ones(1)
    >>> fsa_loss_grad(*given).d_logits
    array([[[ 0.5, -0.5]]])
    """
    (steps, batch, _), automata = logits.shape, (edges, weights, start_end_states)
    d_logits: Any = np.zeros(logits.shape)
    d_weights: Any = np.zeros(weights.shape)
    ends: Any = np.zeros((2, 0), int) if end_states is None else end_states
    costs: Any = np.zeros(ends.shape[1]) if end_weights is None else end_weights
    d_ends: Any = np.zeros(len(costs))
    for b in range(batch):
        n = steps if lengths is None else int(lengths[b])
        scores = _costs(logits[:n, b], normalized)
        through, total, taken = _paths.posteriors(scores, b, *automata, end_states, end_weights)
        if np.isposinf(total):
            continue
        own = 0 if normalized else np.exp(-scores)
        d_logits[:n, b] = d_out[b] * (own - np.exp(-through))
        d_weights += d_out[b] * taken
        for i in np.flatnonzero(ends[0] == b):
            alone = _paths.posteriors(scores, b, *automata, ends[:, [i]], costs[[i]])[1]
            d_ends[i] = d_out[b] * np.exp(total - alone)
    return FsaLossGrad(d_logits, d_weights, d_ends)


@fsa_loss.gradient
def _(  # type: ignore[no-untyped-def]
    logits, edges, weights, start_end_states, lengths, end_states, end_weights, d_out, normalized,
    needs
):  # fmt: skip
    return fsa_loss_grad.only(needs)(
        logits, edges, weights, start_end_states, d_out, lengths, end_states, end_weights,
        normalized=normalized,
    )  # fmt: skip


def _example(random: Any, given: Any) -> dict[str, Any]:
    t, b, c = (given[name] for name in "tbc")
    made, lengths = _paths.with_paths(random, given)
    return {"logits": random.standard_normal((t, b, c)), "lengths": lengths, **made}


@fsa_loss.example
def _(random, given):  # type: ignore[no-untyped-def]
    # Differences of an infinite loss are no slopes: where lengths are left away some have no path.
    return {**_example(random, given), "zero_infinity": True}


@fsa_loss_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    return {**_example(random, given), "d_out": random.standard_normal(given["b"])}
