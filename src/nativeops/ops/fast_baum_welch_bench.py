# SPDX-License-Identifier: Apache-2.0
"""fast_baum_welch on the automata of CTC, against RETURNN's and the same sums in PyTorch."""

from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import Bench, Known, NdArray
from nativeops.bench.forms import ours_in, torch_rival
from nativeops.ops.forced_align_bench import SIZES


def automata(random: np.random.Generator, t: int, b: int, c: int, s: int) -> tuple[NdArray, ...]:
    """Costs from normally distributed logits, and the automata of random labels."""
    logits = random.standard_normal((t, b, c), dtype=np.float32)
    costs = np.log(np.exp(logits).sum(-1, keepdims=True)) - logits
    return costs, *nativeops.ctc_fsa(random.integers(1, c, (b, s)))


def log_sums(costs: NdArray, *automaton: NdArray) -> list[Known]:
    """-log of the sum over all paths: the reference's, of the first sequences."""
    edges, weights, ends = automaton
    few = edges[3] < 2
    given = costs[:, :2].astype(np.float64), edges[:, few], weights[few], ends[:, :2]
    return [Known(slice(0, 2), nativeops.fast_baum_welch.reference(*given).obs_scores[0])]


def ours(*arguments: Any) -> Any:
    """Both results; the sum over all paths is what is compared."""
    return nativeops.fast_baum_welch(*arguments).obs_scores[0]


def returnn(costs: Any, edges: Any, weights: Any, ends: Any) -> Any:
    """RETURNN's op, which it compiles when it is first called."""
    import torch
    from returnn.torch.util.native_op import fast_baum_welch

    frames = torch.ones(costs.shape[:2])
    return fast_baum_welch(
        am_scores=costs, seq_mask=frames, edges=edges, weights=weights, start_end_states=ends
    )[1][0]


def torch_edges(costs: Any, edges: Any, weights: Any, ends: Any) -> Any:
    """All edges of the batch in each frame, in PyTorch's operations."""
    import torch

    (steps, batch, classes), n = costs.shape, int(edges[:2].max()) + 1
    source, to, label, own = edges.long()
    frames = -(costs[:, own, label] + weights)

    def scattered(values: Any, index: Any, size: int) -> Any:
        most = torch.full((size,), -torch.inf).scatter_reduce(0, index, values, "amax")
        base = torch.where(most > -torch.inf, most, 0.0)
        total = torch.zeros(size).index_add(0, index, (values - base[index]).exp())
        return total.log() + base

    alpha = torch.full((steps + 1, n), -torch.inf)
    alpha[0, ends[0].long()] = 0
    for t in range(steps):
        alpha[t + 1] = scattered(alpha[t, source] + frames[t], to, n)
    total = alpha[-1, ends[1].long()]
    beta = torch.full((n,), -torch.inf)
    beta[ends[1].long()] = 0
    fwdbwd = torch.empty(steps, batch * classes)
    for t in reversed(range(steps)):
        onward = frames[t] + beta[to]
        through = alpha[t, source] + onward - total[own]
        fwdbwd[t] = -scattered(through, own * classes + label, batch * classes)
        beta = scattered(onward, source, n)
    return -total


BENCHES = [
    Bench(
        "posteriors",
        "-log posteriors of all classes in all frames, and the sum over all paths",
        sizes=SIZES[:1],
        inputs=automata,
        expected=log_sums,
        seconds=3,
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            torch_rival(torch_edges),
            torch_rival(returnn, "returnn", name="RETURNN"),
        ],
    ),
    Bench(
        "large",
        "the same at the larger sizes",
        sizes=SIZES[1:],
        inputs=automata,
        expected=log_sums,
        seconds=3,
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            torch_rival(returnn, "returnn", name="RETURNN"),
        ],
    ),
    Bench(
        "portable",
        "the portable kernel, with NATIVEOPS_ISA=portable",
        sizes=SIZES[:1],
        inputs=automata,
        expected=log_sums,
        environment={"NATIVEOPS_ISA": "portable"},
        rivals=ours_in(ours, "numpy"),
    ),
]
