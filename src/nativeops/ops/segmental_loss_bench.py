# SPDX-License-Identifier: Apache-2.0
"""segmental_loss of labels in order, a segment each, against what one composes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nativeops import automata
from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.ops.segmental_loss import segmental_loss, segmental_loss_grad

# The longest segment, frames, sequences, classes, labels of a sequence.
SIZES = [
    {"n": 12, "t": 100, "b": 1, "c": 50, "s": 20},
    {"n": 20, "t": 200, "b": 16, "c": 60, "s": 30},
    {"n": 30, "t": 500, "b": 8, "c": 100, "s": 60},
]
NEVER = -1e30


def batch(
    random: np.random.Generator, n: int, t: int, b: int, c: int, s: int
) -> tuple[NdArray, ...]:
    """Normally distributed scores, and random labels."""
    scores = random.standard_normal((n, t, b, c), dtype=np.float32)
    return scores, random.integers(0, c, (b, s)).astype(np.int32)


def in_order(labels: NdArray) -> dict[str, NdArray]:
    """The automata that take the labels of each row one after another."""
    return automata.hmm(labels.tolist(), loop=None, forward=1.0).arguments()


def losses(scores: NdArray, labels: NdArray) -> list[Known]:
    """The loss of the first sequence, by the reference."""
    given = scores[:, :, :1].astype(np.float64)
    return [Known(slice(0, 1), segmental_loss.reference(given, **in_order(labels[:1])))]


def gradients(scores: NdArray, labels: NdArray) -> list[Known]:
    """The gradient of the first sequence, by the reference."""
    given = scores[:, :, :1].astype(np.float64)
    found = segmental_loss_grad.reference(given, **in_order(labels[:1]), d_out=np.ones(1))
    return [Known((slice(None), slice(None), slice(0, 1)), found.d_scores)]


def ours_in_torch(labels: NdArray) -> Callable[[Any], Any]:
    """The op; automata are made once."""
    import torch

    fsa = {name: torch.tensor(array) for name, array in in_order(labels).items()}
    return lambda scores: segmental_loss(scores, **fsa)


def ours_in_jax(labels: NdArray) -> Callable[[Any], Any]:
    """The same with JAX's arrays."""
    import jax

    fsa = {name: jax.numpy.asarray(array) for name, array in in_order(labels).items()}
    return lambda scores: segmental_loss(scores, **fsa)


def torch_windows(labels: NdArray) -> Callable[[Any], Any]:
    """A loop over the frames in which a segment can end: all of its lengths at once."""
    import torch

    b, s = labels.shape
    columns = torch.tensor(labels).long()

    def loss(scores: Any) -> Any:
        n, t = scores.shape[:2]
        segments = scores.gather(3, columns.expand(n, t, b, s))
        lengths, ends = (torch.arange(size, device=scores.device) for size in (n, t))
        lengths = lengths[:, None]
        begins = ends - lengths
        by_end = segments[lengths, begins.clamp(min=0)]
        by_end = torch.where((begins >= 0)[..., None, None], by_end, NEVER).unbind(1)
        never, nothing = scores.new_full((b, 1), NEVER), scores.new_full((b, s), NEVER)
        reached = [nothing] * (n - 1) + [torch.cat([scores.new_zeros(b, 1), nothing[:, 1:]], 1)]
        for k in range(t):
            window = torch.stack(reached[: -n - 1 : -1])
            after = (window + by_end[k]).logsumexp(0)
            reached.append(torch.cat([never, after[:, :-1]], 1))
        return -after[:, -1]

    return loss


def jax_scan(labels: NdArray) -> Callable[[Any], Any]:
    """The same with JAX's scan."""
    import jax
    from jax import numpy as jnp

    b, s = labels.shape

    def loss(scores: Any) -> Any:
        n, t = scores.shape[:2]
        segments = jnp.take_along_axis(scores, jnp.asarray(labels)[None, None], 3)
        begins = jnp.arange(t)[:, None] - jnp.arange(n)
        by_end = segments[jnp.arange(n), jnp.maximum(begins, 0)]
        by_end = jnp.where((begins >= 0)[..., None, None], by_end, NEVER)

        def step(window: Any, arriving: Any) -> Any:
            after = jax.nn.logsumexp(window + arriving, 0)
            first = jnp.pad(after[:, :-1], ((0, 0), (1, 0)), constant_values=NEVER)
            return jnp.concatenate([first[None], window[:-1]]), after[:, -1]

        start = jnp.full((n, b, s), NEVER).at[0, :, 0].set(0)
        return -jax.lax.scan(step, start, by_end)[1][-1]

    return loss


def in_torch(make: Any, package: str, name: str, *, training: bool) -> Rival:
    """The losses or, by autograd, their gradient."""

    def prepare(scores: NdArray, labels: NdArray) -> Callable[[], Any]:
        import torch

        leaf, loss = torch.tensor(scores).requires_grad_(training), make(labels)
        if not training:
            return lambda: loss(leaf)
        return lambda: torch.autograd.grad(loss(leaf).sum(), leaf)

    return Rival(name, prepare, package, "torch")


def in_jax(make: Any, package: str, name: str, *, training: bool) -> Rival:
    """The same under one jit."""

    def prepare(scores: NdArray, labels: NdArray) -> Callable[[], Any]:
        import jax

        array, loss = jax.numpy.asarray(scores), make(labels)
        call = jax.jit(jax.grad(lambda x: loss(x).sum()) if training else loss)
        return lambda: jax.block_until_ready(call(array))

    return Rival(name, prepare, package, "jax")


def bench(name: str, about: str, expected: Any, *, training: bool) -> Bench:
    """One of the two questions."""
    return Bench(
        name,
        about,
        sizes=SIZES,
        inputs=batch,
        expected=expected,
        tolerance=1e-4,
        seconds=3,
        memory_sizes=SIZES[-1:] if training else [],
        rivals=[
            in_torch(ours_in_torch, OURS, "ours, torch", training=training),
            in_torch(torch_windows, "torch", "torch_windows", training=training),
            in_jax(ours_in_jax, OURS, "ours, jax", training=training),
            in_jax(jax_scan, "jax", "jax_scan", training=training),
        ],
    )


BENCHES = [
    bench("loss", "the loss of each sequence", losses, training=False),
    bench("training", "the losses, and the gradient of the scores", gradients, training=True),
]
