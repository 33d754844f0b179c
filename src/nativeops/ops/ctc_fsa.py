# SPDX-License-Identifier: Apache-2.0
"""The automata of CTC: all ways to say a sequence of labels, with blanks, as lists of edges."""

from typing import Annotated, Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, AtMost, Float32, Int, Int32, Lengths, op


class CtcFsa(NamedTuple, Generic[Array]):
    """A batch of automata: the edges, their costs, and the start and end state of each."""

    edges: Int32[Array, "4 b*(5*s+5)"]
    weights: Float32[Array, "b*(5*s+5)"]
    start_end_states: Int32[Array, "2 b"]


@op(kernel="ctc_fsa.h")
def ctc_fsa(
    targets: Int[Array, "b s"],
    target_lengths: Lengths[Array, "b"] | None = None,
    *,
    blank: Annotated[int, AtLeast(0), AtMost(2**31 - 1)] = 0,
    label_loop: bool = True,
) -> CtcFsa[Array]:
    """Automata whose paths are the CTC alignments of each sequence of targets.

    ``2s + 3`` states and ``5s + 5`` edges for each sequence. Counted from its first state, and with
    ``L`` labels, ``2i`` is the blank before label ``i`` and 0 the start, ``2i + 1`` that label,
    ``2L`` the last blank, ``2L + 1`` a dummy and ``2L + 2`` the end, which has no edges. Every edge
    says its label in one frame. Each sequence of frames' labels is one path.

    Args:
        targets: The labels of each sequence, none of them ``blank``.
        target_lengths: The number of targets of each, from 0 to ``s``; ``s`` if left away.
        blank: The class that stands for no label.
        label_loop: Whether a label may last longer than a frame. Without it, each takes exactly
            one and equal ones need no blank between them (the RNA topology).

    Returns: ``edges``, rows of from, to, label and sequence, of which each sequence has
        ``5s + 5``; ``weights``, 0, or +∞ where an edge is only there to fill the place;
        and ``start_end_states``. A step between two equal labels leads to the dummy.
    NaN: there are no floats among the arguments.
    Gradient: none; there is nothing to differentiate.
    Cost: O(b·s) time; no memory beyond the results.
    Same as: RETURNN's ``get_ctc_fsa_fast_bw``.
    Source: Graves et al. 2006, Connectionist temporal classification; without `label_loop`: Sak et
        al. 2017, Recurrent neural aligner.

    >>> made = ctc_fsa(np.array([[7]]))
    >>> made.edges[:3, np.isfinite(made.weights)].T.tolist()[:4]
    [[0, 0, 0], [0, 1, 7], [1, 1, 7], [1, 2, 0]]
    """
    batch, width = targets.shape
    edges, weights, ends = [], [], np.zeros((2, batch), np.int32)
    for b in range(batch):
        labels = targets[b, : None if target_lengths is None else int(target_lengths[b])]
        first = b * (2 * width + 3)
        ends[:, b] = first, first + 2 * len(labels) + 2
        for source, to, label, weight in _edges(labels, blank, label_loop, 5 * width + 5):
            edges.append((first + source, first + to, label, b))
            weights.append(weight)
    return CtcFsa(_columns(edges), np.array(weights, np.float32), ends)


def _columns(edges: Any) -> Any:
    return np.array(edges, np.int32).reshape(-1, 4).T


def _edges(labels: Any, blank: int, label_loop: bool, n: int) -> list[tuple[int, int, int, float]]:
    """All edges of one sequence, `n` with those that fill the place."""
    last = len(labels) - 1
    dummy, end = 2 * len(labels) + 1, 2 * len(labels) + 2
    none = (dummy, dummy, blank, np.inf)

    def skip(i: int, to: int) -> tuple[int, int, int, float]:
        allowed = not label_loop or labels[i] != labels[i - 1]
        return 2 * i - 1, to if allowed else dummy, int(labels[i]), 0.0

    edges = []
    for i, label in enumerate(map(int, labels)):
        at = 2 * i
        edges += [(at, at, blank, 0.0), (at, at + 1, label, 0.0)]
        edges += [
            (at + 1, at + 1, label, 0.0) if label_loop else none,
            (at + 1, at + 2, blank, 0.0),
        ]
        edges += [skip(i + 1, at + 3) if i < last else (at + 1, end, blank, 0.0)]
    at = 2 * len(labels)
    edges += [(at, at, blank, 0.0), (at, end, blank, 0.0)]
    edges += [(at - 2, end, int(labels[last]), 0.0) if len(labels) else none]
    edges += [(at - 1, end, int(labels[last]), 0.0) if len(labels) and label_loop else none]
    edges += [skip(last, end) if len(labels) > 1 else none]
    return edges + [none] * (n - len(edges))


class CtcFsaPacked(NamedTuple, Generic[Array]):
    """A batch of automata without padding, and where the edges of each begin."""

    edges: Int32[Array, "4 5*n+5*b"]
    weights: Float32[Array, "5*n+5*b"]
    start_end_states: Int32[Array, "2 b"]
    edge_offsets: Int32[Array, "b+1"]


@op(kernel="ctc_fsa.h")
def ctc_fsa_packed(
    targets: Int[Array, "n"],
    target_lengths: Lengths[Array, "b"],
    *,
    blank: Annotated[int, AtLeast(0), AtMost(2**31 - 1)] = 0,
    label_loop: bool = True,
) -> CtcFsaPacked[Array]:
    """The automata of `ctc_fsa` for targets that lie one after another.

    ``2L + 3`` states and ``5L + 5`` edges for each sequence of ``L`` labels, without padding.

    Args:
        targets: The labels of all sequences; behind the last there may be more.
        target_lengths: How many of them each sequence has.
        blank: As in `ctc_fsa`.
        label_loop: As in `ctc_fsa`.

    Returns: as `ctc_fsa`, and ``edge_offsets``: sequence ``b`` has the edges from
        ``edge_offsets[b]`` to ``edge_offsets[b + 1] - 1``. What is left of the list are edges from
        state 0 to state 0 with the cost +∞.
    NaN: there are no floats among the arguments.
    Gradient: none; there is nothing to differentiate.
    Cost: O(n + b) time; no memory beyond the results.
    Same as: RETURNN's ``get_ctc_fsa_fast_bw`` with ``edges_bound``.
    Source: as that of `ctc_fsa`.

    >>> ctc_fsa_packed(np.array([1, 2]), np.array([0, 2])).edge_offsets
    array([ 0,  5, 20], dtype=int32)
    """
    batch, used = len(target_lengths), np.concatenate([[0], np.cumsum(target_lengths)]).astype(int)
    n_edges, numbers = 5 * len(targets) + 5 * batch, np.arange(batch)
    edges: Any = np.zeros((4, n_edges), np.int32)
    weights: Any = np.full(n_edges, np.inf, np.float32)
    offsets: Any = (5 * (used + np.arange(batch + 1))).astype(np.int32)
    first = 2 * used[:-1] + 3 * numbers
    for b in range(batch):
        labels = targets[used[b] : used[b + 1]]
        for e, arc in enumerate(_edges(labels, blank, label_loop, 5 * len(labels) + 5), offsets[b]):
            edges[:, e] = first[b] + arc[0], first[b] + arc[1], arc[2], b
            weights[e] = arc[3]
    ends: Any = np.stack([first, 2 * used[1:] + 3 * numbers + 2]).astype(np.int32)
    return CtcFsaPacked(edges, weights, ends, offsets)


@ctc_fsa.example
def _(random, given):  # type: ignore[no-untyped-def]
    labels = random.integers(0, 3, (given["b"], given["s"]))
    lengths = random.integers(0, given["s"] + 1, given["b"])
    return {"targets": labels + (labels >= given["blank"]), "target_lengths": lengths}


@ctc_fsa_packed.example
def _(random, given):  # type: ignore[no-untyped-def]
    labels = random.integers(0, 3, given["n"])
    cuts = np.sort(random.integers(0, given["n"] + 1, given["b"]))
    lengths = np.diff(cuts, prepend=0)
    return {"targets": labels + (labels >= given["blank"]), "target_lengths": lengths}
