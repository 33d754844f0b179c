# SPDX-License-Identifier: Apache-2.0
"""All paths of an automaton, one by one, and its sums as products of dense matrices: oracles."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def all_paths(edges: Any, b: int, start: int, ends: dict[int, float], frames: int) -> Iterator[Any]:
    """Each path of one sequence: the numbers of its edges, and the cost of its end."""
    own = [e for e in range(edges.shape[1]) if edges[3, e] == b]

    def walk(state: int, path: tuple[int, ...]) -> Iterator[Any]:
        if len(path) == frames:
            if state in ends:
                yield path, ends[state]
            return
        for e in own:
            if edges[0, e] == state:
                yield from walk(int(edges[1, e]), (*path, e))

    return walk(start, ())


def enumerated(scores: Any, b: int, edges: Any, weights: Any, start: int, ends: Any) -> Any:
    """The sum of e^-cost over all paths, that by frame and class, by edge, and the least cost."""
    total, best = 0.0, np.inf
    posterior, taken = np.zeros(scores.shape), np.zeros(edges.shape[1])
    for path, end in all_paths(edges, b, start, ends, len(scores)):
        cost = end + sum(scores[t, edges[2, e]] + weights[e] for t, e in enumerate(path))
        best, share = min(best, cost), np.exp(-cost)
        total += share
        for t, e in enumerate(path):
            posterior[t, edges[2, e]] += share
            taken[e] += share
    return total, posterior, taken, best


def dense_total(scores: Any, b: int, edges: Any, weights: Any, start: int, ends: Any) -> float:
    """The same sum as a product of a matrix of transitions for each frame."""
    n = 1 + max(int(edges[:2].max(initial=0)), start, *ends)
    row = np.eye(n)[start]
    for frame in scores:
        row = row @ _transitions(frame, b, edges, weights, n)
    return float(sum(row[state] * np.exp(-cost) for state, cost in ends.items()))


def dense_posteriors(scores: Any, b: int, edges: Any, weights: Any, start_end: Any) -> Any:
    """That sum, and the shares of classes by frame and of edges, from both ends."""
    n, frames = 1 + int(max(edges[:2].max(), start_end.max())), len(scores)
    steps = [_transitions(frame, b, edges, weights, n) for frame in scores]
    before, behind = [np.eye(n)[start_end[0, b]]], [np.eye(n)[start_end[1, b]]]
    for t in range(frames):
        before.append(before[-1] @ steps[t])
        behind.append(steps[frames - 1 - t] @ behind[-1])
    total = before[-1] @ behind[0]
    posterior, taken = np.zeros(scores.shape), np.zeros(edges.shape[1])
    for t, frame in enumerate(scores):
        for e in np.flatnonzero(edges[3] == b):
            source, to, label = edges[:3, e]
            cost = np.exp(-frame[label] - weights[e])
            share = before[t][source] * cost * behind[frames - 1 - t][to] / total
            posterior[t, label] += share
            taken[e] += share
    return total, posterior, taken


def _transitions(frame: Any, b: int, edges: Any, weights: Any, n: int) -> Any:
    """What a frame multiplies with, from state to state."""
    matrix = np.zeros((n, n))
    for e in np.flatnonzero(edges[3] == b):
        matrix[edges[0, e], edges[1, e]] += np.exp(-frame[edges[2, e]] - weights[e])
    return matrix
