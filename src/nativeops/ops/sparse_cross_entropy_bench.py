# SPDX-License-Identifier: Apache-2.0
"""Cross entropy against sparse targets: the loss and its gradient, against compositions."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.bench.forms import jax_rival, ours_in
from nativeops.ops.sparse_cross_entropy import cross_entropy_softmax_and_gradient_sparse

# Phonemes and words of a batch of utterances, three targets to a frame.
SIZES = [{"t": 500, "b": 16, "d": 128, "n": 1500}, {"t": 300, "b": 16, "d": 4000, "n": 900}]


def batch(random: np.random.Generator, t: int, b: int, d: int, n: int) -> tuple[NdArray, ...]:
    """Logits and targets, each frame with as many."""
    time = np.repeat(np.arange(t), n // t)[:, None].repeat(b, 1)
    weight = random.random((n, b), np.float32) * t / n
    return (
        random.standard_normal((t, b, d), np.float32),
        time,
        random.integers(0, d, (n, b)),
        weight,
    )


def both(z: NdArray, time: NdArray, label: NdArray, weight: NdArray) -> list[Known]:
    """The losses and gradients of the first sequence, by the definition in float64."""
    one = slice(0, 1)
    wide = (z[:, one].astype(np.float64), time[:, one], label[:, one], weight[:, one])
    made = cross_entropy_softmax_and_gradient_sparse.reference(*wide)
    return [Known((slice(None), one), made.loss), Known((slice(None), one), made.grad_z)]


def ours(*arrays: Any) -> Any:
    """The op, which makes both in one pass."""
    made = cross_entropy_softmax_and_gradient_sparse(*arrays)
    return made.loss, made.grad_z


def torch_training(
    function: Callable[..., Any], *, name: str, dense: bool = False, package: str = "torch"
) -> Rival:
    """The losses and then, by autograd, the gradient of their sum."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import torch

        z, *rest = (torch.tensor(array) for array in arrays)
        z.requires_grad_()
        if dense:
            sequence = torch.arange(z.shape[1]).expand_as(rest[0])
            targets = torch.zeros_like(z, requires_grad=False)
            rest = [targets.index_put((rest[0], sequence, rest[1]), rest[2], accumulate=True)]

        def call() -> Any:
            loss = function(z, *rest)
            return loss.detach(), torch.autograd.grad(loss.sum(), z)[0]

        return call

    return Rival(name, prepare, package, "torch")


def ours_loss(*arrays: Any) -> Any:
    """The op in a model: its loss."""
    return cross_entropy_softmax_and_gradient_sparse(*arrays).loss


def torch_sparse(z: Any, time: Any, label: Any, weight: Any) -> Any:
    """log_softmax, of which the targets' are picked and added up."""
    import torch

    sequence = torch.arange(z.shape[1], device=z.device).expand_as(time)
    picked = z.log_softmax(-1)[time, sequence, label]
    return z.new_zeros(z.shape[:2]).scatter_add(0, time, -weight * picked)


@cache
def _compiled() -> Callable[..., Any]:
    import torch

    return torch.compile(torch_sparse)


def torch_compiled(*arrays: Any) -> Any:
    """The same, compiled."""
    return _compiled()(*arrays)


def torch_dense(z: Any, targets: Any) -> Any:
    """PyTorch's loss, for targets that are dense already, which is not timed."""
    import torch

    flat = torch.nn.functional.cross_entropy(
        z.flatten(0, 1), targets.flatten(0, 1), reduction="none"
    )
    return flat.reshape(z.shape[:2])


def jax_sparse(z: Any, time: Any, label: Any, weight: Any) -> Any:
    """The composition in JAX, with its gradient."""
    import jax
    import jax.numpy as jnp

    def losses(z: Any) -> Any:
        sequence = jnp.arange(z.shape[1])
        picked = jax.nn.log_softmax(z)[time, sequence, label]
        return jnp.zeros(z.shape[:2]).at[time, sequence].add(-weight * picked)

    loss, backward = jax.vjp(losses, z)
    return loss, backward(jnp.ones_like(loss))[0]


BENCHES = [
    Bench(
        "loss and gradient",
        "what a training step needs of it",
        sizes=SIZES,
        inputs=batch,
        expected=both,
        work=lambda t, b, d, n: t * b * d,
        memory_sizes=SIZES,
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            torch_training(ours_loss, name="ours, autograd", package=OURS),
            torch_training(torch_sparse, name="torch_sparse"),
            torch_training(torch_compiled, name="torch_compiled"),
            torch_training(torch_dense, name="cross_entropy, dense targets", dense=True),
            *ours_in(ours, "jax"),
            jax_rival(jax_sparse),
        ],
    ),
]
