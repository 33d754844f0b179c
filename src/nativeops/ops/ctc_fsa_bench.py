# SPDX-License-Identifier: Apache-2.0
"""The automata of CTC against RETURNN's, and against NumPy's operations on the whole batch."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from nativeops.bench.case import Bench, Known, NdArray, Rival
from nativeops.bench.forms import numpy_rival, ours_in
from nativeops.ops.ctc_fsa import CtcFsa, ctc_fsa

SIZES = [{"b": 16, "s": 20}, {"b": 32, "s": 100}, {"b": 64, "s": 1000}]
KINDS = 80


def targets(random: np.random.Generator, b: int, s: int) -> tuple[NdArray, NdArray]:
    """Labels, and how many each sequence has: the first all."""
    lengths = np.maximum(1, s - np.arange(b) * s // (2 * b))
    return random.integers(1, KINDS, (b, s)).astype(np.int32), lengths.astype(np.int32)


def ends(labels: NdArray, lengths: NdArray) -> list[Known]:
    """The start and the end state of each; RETURNN has the edges in another order."""
    return [Known(..., ctc_fsa.reference(labels, lengths).start_end_states)]


def ours(labels: Any, lengths: Any) -> Any:
    """The op, of its results the states."""
    return ctc_fsa(labels, lengths).start_end_states


def numpy_batch(labels: NdArray, lengths: NdArray) -> NdArray:
    """All sequences at once: each label's edges, then those of the ends where they belong."""
    return batched(labels, lengths).start_end_states


def batched(labels: NdArray, lengths: NdArray) -> Any:
    """The three results of the op."""
    (batch, width), n = labels.shape, lengths[:, None].astype(np.int32)
    place = np.arange(width, dtype=np.int32)
    at, dummy, end = 2 * place, 2 * n + 1, 2 * n + 2
    following = np.roll(labels, -1, 1)
    last, inside = place == n - 1, place < n
    over = np.where(following == labels, dummy, at + 3)
    arcs = np.empty((4, batch, width + 1, 5), np.int32)
    for k, (source, to, label) in enumerate(
        [
            (at, at, 0),
            (at, at + 1, labels),
            (at + 1, at + 1, labels),
            (at + 1, at + 2, 0),
            (at + 1, np.where(last, end, over), np.where(last, 0, following)),
        ]
    ):
        for row, values in enumerate((source, to, label)):
            filled = 0 if row == 2 else dummy
            arcs[row, :, :width, k] = np.where(inside, values, filled)
    weights = np.zeros((batch, width + 1, 5), np.float32)
    weights[:, :width][~inside] = np.inf
    sequences = np.arange(batch)
    arcs[:2, :, width], arcs[2, :, width] = dummy[:, 0, None], 0
    weights[:, width] = np.inf
    arcs[:3, sequences, lengths], weights[sequences, lengths] = _ends(labels, n[:, 0])
    arcs[3] = sequences[:, None, None]
    first = sequences * (2 * width + 3)
    arcs[:2] += first[:, None, None].astype(np.int32)
    states = np.stack([first, first + end[:, 0]])
    return CtcFsa(arcs.reshape(4, -1), weights.reshape(-1), states.astype(np.int32))


def _ends(labels: NdArray, n: NdArray) -> tuple[NdArray, NdArray]:
    """The last five edges of sequences that have a label at least."""
    at, dummy, end = 2 * n, 2 * n + 1, 2 * n + 2
    sequences = np.arange(len(n))
    last, before = labels[sequences, n - 1], labels[sequences, n - 2]
    one = n == 1
    over = np.where(last == before, dummy, end)
    none = 0 * n
    arcs = [
        (at, at, none),
        (at, end, none),
        (at - 2, end, last),
        (at - 1, end, last),
        (np.where(one, dummy, at - 3), np.where(one, dummy, over), np.where(one, 0, last)),
    ]
    weights = np.zeros((len(n), 5), np.float32)
    weights[one, 4] = np.inf
    return np.moveaxis(np.array(arcs), 0, 2), weights


def returnn() -> Rival:
    """RETURNN's op, which remembers the last automata: two equal batches in turn."""

    def prepare(labels: NdArray, lengths: NdArray) -> Callable[[], Any]:
        import torch
        from returnn.torch.util.native_op import get_ctc_fsa_fast_bw

        batches = cycle([(torch.tensor(labels), torch.tensor(lengths)) for _ in range(2)])

        def call() -> Any:
            targets, seq_lens = next(batches)
            return get_ctc_fsa_fast_bw(targets=targets, seq_lens=seq_lens, blank_idx=0)[2]

        return call

    return Rival("RETURNN", prepare, "returnn", "torch")


BENCHES = [
    Bench(
        "automata",
        "the edges of a batch",
        sizes=SIZES,
        inputs=targets,
        expected=ends,
        tolerance=0,
        dtype="int32",
        work=lambda b, s: b * s,
        seconds=3,
        rivals=[
            *ours_in(ours, "numpy"),
            numpy_rival(numpy_batch, "numpy"),
            *ours_in(ours, "torch"),
            returnn(),
        ],
    ),
]
