# SPDX-License-Identifier: Apache-2.0
"""fsa_loss on the automata of CTC, with its gradient, against PyTorch's CTC loss.

The rival knows one topology; ours is for any automaton.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.ops.forced_align_bench import SIZES
from nativeops.ops.fsa_loss import fsa_loss_grad

Loss = Callable[[Any], Any]


def batch(random: np.random.Generator, t: int, b: int, c: int, s: int) -> tuple[NdArray, ...]:
    """Normally distributed logits, and targets of random labels."""
    return random.standard_normal((t, b, c), dtype=np.float32), random.integers(1, c, (b, s))


def gradients(logits: NdArray, targets: NdArray) -> list[Known]:
    """The gradient of the first sequence, by the reference."""
    fsa = nativeops.ctc_fsa(targets[:1])
    given = logits[:, :1].astype(np.float64), *fsa, np.ones(1)
    return [Known((slice(None), slice(0, 1)), fsa_loss_grad.reference(*given).d_logits)]


def ours(targets: Any) -> Loss:
    """The full sum over the automata, which are made once."""
    fsa = nativeops.ctc_fsa(targets)
    return lambda logits: nativeops.fsa_loss(logits, *fsa)


def torch_ctc(targets: Any) -> Loss:
    """PyTorch's own, with the softmax that it needs before."""
    import torch

    def loss(logits: Any) -> Any:
        lengths = [logits.shape[0]] * len(targets), [targets.shape[1]] * len(targets)
        log_probs = logits.log_softmax(-1)
        return torch.nn.functional.ctc_loss(log_probs, targets, *lengths, reduction="none")

    return loss


def trained(make: Callable[[Any], Loss], package: str, name: str) -> Rival:
    """The loss and its gradient to the logits."""

    def prepare(logits: NdArray, targets: NdArray) -> Callable[[], Any]:
        import torch

        leaf = torch.tensor(logits).requires_grad_()
        loss = make(torch.tensor(targets))
        return lambda: torch.autograd.grad(loss(leaf).sum(), leaf)

    return Rival(name, prepare, package, "torch")


BENCHES = [
    Bench(
        "training",
        "the loss of each sequence, and the gradient of the logits",
        sizes=SIZES,
        inputs=batch,
        expected=gradients,
        tolerance=1e-4,
        peer_tolerance=2e-2,  # sums of logarithms lose a digit every few hundred frames
        seconds=3,
        rivals=[
            trained(ours, OURS, "ours, torch"),
            trained(torch_ctc, "torch", "torch_ctc"),
        ],
    ),
]
