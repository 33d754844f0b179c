# SPDX-License-Identifier: Apache-2.0
"""What tests of CTC share: sequences, and the loss in other ways than the kernel's."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from nativeops.ops.ctc_loss import ctc_losses, ctc_losses_grad

RANDOM = np.random.default_rng(11)


def normal(*shape: int, dtype: str = "float64", scale: float = 1.0) -> Any:
    """Logits."""
    return (scale * RANDOM.standard_normal(shape)).astype(dtype)


def labels(*shape: int, classes: int, blank: int = 0) -> Any:
    """Targets."""
    return RANDOM.choice([c for c in range(classes) if c != blank], shape)


def log_softmax(x: Any) -> Any:
    """Over the last axis."""
    return x - np.logaddexp.reduce(x, -1, keepdims=True)


def loss_and_gradient(
    x: Any, targets: Any, frames: Any = None, counts: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Of each sequence, by PyTorch; the gradient of their sum."""
    import torch

    logits = torch.from_numpy(x).requires_grad_()
    lengths = [None if n is None else torch.tensor(n, dtype=torch.int32) for n in (frames, counts)]
    loss = ctc_losses(logits, torch.from_numpy(targets), *lengths, **options).loss
    (gradient,) = torch.autograd.grad(loss, logits, torch.ones_like(loss))
    return loss.detach().numpy(), gradient.numpy()


def reference(x: Any, targets: Any, normalized: bool = False) -> tuple[Any, Any]:
    """The same by the definitions."""
    x = x.astype(np.float64)
    made = ctc_losses.reference(x, targets, normalized=normalized)
    one = np.ones(x.shape[1])
    return made.loss, ctc_losses_grad.reference(
        x, targets, *made[1:], one, blank=0, normalized=normalized
    )


def say(way: Sequence[int], blank: int, label_loop: bool) -> tuple[int, ...]:
    """What a way says."""
    merged = [c for t, c in enumerate(way) if not (label_loop and t and way[t - 1] == c)]
    return tuple(c for c in merged if c != blank)


def enumerated(x: Any, target: Any, blank: int = 0, label_loop: bool = True) -> tuple[float, Any]:
    """Loss and gradient over all ways there are, one by one."""
    log_probs = log_softmax(x)
    (frames, classes), total = x.shape, 0.0
    occupied = np.zeros(x.shape)
    for way in itertools.product(range(classes), repeat=frames):
        if say(way, blank, label_loop) != tuple(target):
            continue
        p = float(np.exp(sum(log_probs[t, c] for t, c in enumerate(way))))
        total += p
        occupied[np.arange(frames), list(way)] += p
    if total == 0:
        return np.inf, np.zeros(x.shape)
    return -float(np.log(total)), np.exp(log_probs) - occupied / total
