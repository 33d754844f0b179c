# SPDX-License-Identifier: Apache-2.0
"""forced_align against its rivals, and against a copy of the scores.

torchaudio's op, which aligns one sequence a call, has no package for the CPU alone; what it took on
the first machine is in benchmarks/NOTES.md.
"""

from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.bench.forms import numpy_rival, ours_in, torch_rival

SIZES = [
    {"t": 400, "b": 32, "c": 80, "s": 50},
    {"t": 1000, "b": 8, "c": 5000, "s": 120},
    {"t": 1500, "b": 16, "c": 1024, "s": 200},
    {"t": 20000, "b": 1, "c": 80, "s": 400},  # threads share the sequence
]


def sequences(random: np.random.Generator, t: int, b: int, c: int, s: int) -> tuple[NdArray, ...]:
    """Log-probabilities of normally distributed logits, and targets of random labels."""
    logits = random.standard_normal((t, b, c), dtype=np.float32)
    scores = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return scores, random.integers(1, c, (b, s))


def path_scores(scores: NdArray, targets: NdArray) -> list[Known]:
    """The score of each sequence's best path, which is the same if two paths are."""
    best = nativeops.forced_align.reference(scores.astype(np.float64), targets)
    return [Known(slice(None), best.scores.sum(0))]


def ours(scores: Any, targets: Any) -> Any:
    """All five results; their scores summed up."""
    return nativeops.forced_align(scores, targets).scores.sum(0)


def viterbi(scores: NdArray, targets: NdArray) -> Any:
    """Our op for any automaton, on that of CTC."""
    edges, weights, ends = nativeops.ctc_fsa(targets)
    return nativeops.fast_viterbi(scores, edges, weights, ends).scores


def returnn(scores: Any, targets: Any) -> Any:
    """RETURNN's Viterbi on our automaton; it compiles the op when it is first called."""
    import torch
    from returnn.torch.util.native_op import fast_viterbi

    edges, weights, ends = nativeops.ctc_fsa(targets)
    frames = torch.full(scores.shape[1:2], scores.shape[0], dtype=torch.int32)
    return fast_viterbi(
        am_scores=scores, am_seq_len=frames, edges=edges, weights=weights, start_end_states=ends
    )[1]


def torch_steps(scores: Any, targets: Any) -> Any:
    """A step of the whole batch at a time, in PyTorch's operations, with its path."""
    import torch

    (steps, batch, _), s = scores.shape, targets.shape[1]
    labels = torch.zeros(batch, 2 * s + 1, dtype=torch.int64)
    labels[:, 1::2] = targets
    skip = torch.full(labels.shape, -torch.inf)
    skip[:, 3::2] = torch.where(targets[:, 1:] != targets[:, :-1], 0.0, -torch.inf)
    emitted = scores.gather(2, labels.expand(steps, -1, -1))
    best = torch.full(labels.shape, -torch.inf)
    best[:, 0] = 0
    came = torch.empty(steps, *labels.shape, dtype=torch.int64)
    pad = torch.nn.functional.pad
    for t in range(steps):
        one, two = (pad(best, (n, 0), value=-torch.inf)[:, : 2 * s + 1] for n in (1, 2))
        best, came[t] = torch.stack([best, one, two + skip]).max(0)
        best = best + emitted[t]
    state = 2 * s - 1 + (best[:, -1] > best[:, -2]).long()
    total = torch.zeros(batch)
    for t in reversed(range(steps)):
        total = total + emitted[t].gather(1, state[:, None])[:, 0]
        state = state - came[t].gather(1, state[:, None])[:, 0]
    return total


def copy_rival() -> Rival:
    """The limit beside which the others stand."""

    def prepare(scores: NdArray, targets: NdArray) -> Any:
        memory = np.zeros_like(scores)

        def copy() -> Any:
            np.copyto(memory, scores)
            return ()

        return copy

    return Rival("a copy of the scores", prepare, "numpy", "numpy")


BENCHES = [
    Bench(
        "alignment",
        "the best CTC path of each sequence, its scores, and the spans of its labels",
        sizes=SIZES,
        inputs=sequences,
        expected=path_scores,
        seconds=3,
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            numpy_rival(viterbi, OURS, name="ours, fast_viterbi"),
            torch_rival(torch_steps),
            torch_rival(returnn, "returnn", name="RETURNN's Viterbi"),
        ],
    ),
    Bench(
        "limit",
        "reading and writing all scores once",
        sizes=SIZES,
        inputs=sequences,
        rivals=[
            *ours_in(ours, "numpy"),
            copy_rival(),
        ],
    ),
]
