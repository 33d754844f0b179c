# SPDX-License-Identifier: Apache-2.0
"""Sums over the paths of an automaton in NumPy, edge by edge: what references share."""

from typing import Any

import numpy as np


def select(
    b: int,
    edges: Any,
    weights: Any,
    start_end: Any,
    ends: Any,
    end_weights: Any,
    *,
    best: bool = False,
) -> Any:
    """The edges of one sequence with their numbers, its start, and the costs of its end states.

    The latter as a list of states and costs if only the `best` path is wanted, else summed up.
    """
    own = np.flatnonzero((edges[3] == b) & (weights < np.inf))
    listed: list[tuple[int, float]] = []
    if ends is not None:
        costs = np.zeros(ends.shape[1]) if end_weights is None else end_weights
        listed = [(int(s), c) for q, s, c in zip(*ends, costs, strict=True) if q == b]
    listed = listed or [(int(start_end[1, b]), 0.0)]
    finals: Any = listed
    if not best:
        finals = {}
        for state, cost in listed:
            finals[state] = -np.logaddexp(-finals.get(state, np.inf), -cost)
    return own, edges[:3, own].T, int(start_end[0, b]), finals


def numbered(arcs: Any, start: int, finals: Any) -> tuple[dict[int, int], Any, Any]:
    """The states of one sequence numbered anew, and those before and after each of its edges."""
    states = {state: i for i, state in enumerate({start, *arcs[:, :2].ravel().tolist(), *finals})}
    ends = (np.array([states[int(s)] for s in column], int) for column in arcs[:, :2].T)
    return states, *ends  # type: ignore[return-value]


def posteriors(
    scores: Any, b: int, edges: Any, weights: Any, start_end: Any, ends: Any, end_weights: Any
) -> tuple[Any, Any, Any]:
    """-log posteriors of classes, -log of the sum of all paths, and how often edges are taken."""
    own, arcs, start, finals = select(b, edges, weights, start_end, ends, end_weights)
    states, before, after = numbered(arcs, start, finals)
    # Wider than the kernels' own sums, so that a difference is theirs.
    logs = -(scores[:, arcs[:, 2]] + weights[own]).astype(np.longdouble)
    alpha = np.full((len(scores) + 1, len(states)), -np.inf, logs.dtype)
    alpha[0, states[start]] = 0
    for t, frame in enumerate(logs):
        np.logaddexp.at(alpha[t + 1], after, alpha[t, before] + frame)
    beta = np.full(len(states), -np.inf, logs.dtype)
    for state, cost in finals.items():
        beta[states[state]] = -cost
    total = np.logaddexp.reduce(alpha[-1] + beta, initial=-np.inf)
    posterior, taken = np.full(scores.shape, -np.inf, logs.dtype), np.zeros(weights.shape)
    for t in reversed(range(len(scores))):
        onward = logs[t] + beta[after]
        if total > -np.inf:
            through = alpha[t, before] + onward - total
            np.logaddexp.at(posterior[t], arcs[:, 2], through)
            taken[own] += np.exp(through)
        beta = np.full(len(states), -np.inf, logs.dtype)
        np.logaddexp.at(beta, before, onward)
    return -posterior, -total, taken


def example(random: Any, given: Any) -> dict[str, Any]:
    """Automata of at most four states each, some of whose edges do not exist."""
    b, c, e, m = (given.get(name, 0) for name in "bcem")
    usable = b > 0 and c > 0
    sequence = random.integers(0, max(b, 1), e)
    local = random.integers(0, 4, (2, e))
    edges = np.stack([*(local + 4 * sequence), random.integers(0, max(c, 1), e), sequence])
    first = 4 * np.arange(b)
    weights = np.where(random.random(e) < 0.9 if usable else np.zeros(e, bool),
                       random.exponential(1.0, e), np.inf)  # fmt: skip
    ends = random.integers(0, max(b, 1), m)
    made = {
        "edges": edges.astype(np.int32),
        "weights": weights,
        "start_end_states": np.stack([first, first + random.integers(0, 4, b)]).astype(np.int32),
    }
    if "m" in given:
        made["end_states"] = np.stack([ends, 4 * ends + random.integers(0, 4, m)]).astype(np.int32)
        made["end_weights"] = random.exponential(1.0, m)
    return made


def with_paths(random: Any, given: Any) -> tuple[dict[str, Any], Any]:
    """Automata with paths of any length, and lengths: 0 where there is no edge for one."""
    made, b, e = example(random, given), given["b"], given["e"]
    loops = np.arange(min(b, e if given["c"] else 0))
    made["edges"][:2, loops] = 4 * loops
    made["edges"][3, loops] = loops
    made["weights"][loops] = random.exponential(1.0, len(loops))
    made["start_end_states"][1] = made["start_end_states"][0]
    if "end_states" in made:
        made["end_states"][1] = 4 * made["end_states"][0]
    lengths = random.integers(0, given["t"] + 1, b)
    lengths[len(loops) :] = 0
    return made, lengths.astype(np.int32)
