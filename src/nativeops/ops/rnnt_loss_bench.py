# SPDX-License-Identifier: Apache-2.0
"""rnnt_costs against its rivals."""

from typing import Any

import numpy as np

from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.bench.forms import torch_rival
from nativeops.ops.rnnt_loss import rnnt_costs, rnnt_costs_grad

SIZES = [{"b": 16, "t": 100, "u": 20, "v": 128}, {"b": 4, "t": 400, "u": 100, "v": 80}]
LARGE_VOCABULARY = [{"b": 2, "t": 60, "u": 30, "v": 5000}]


def batch(random: np.random.Generator, b: int, t: int, u: int, v: int) -> tuple[NdArray, ...]:
    """Logits, labels, and lengths of which the first is full."""
    lengths = [np.maximum(1, size - np.arange(b) * size // (4 * b)) for size in (t, u)]
    return (
        random.standard_normal((b, t, u + 1, v), dtype=np.float32),
        random.integers(0, v - 1, (b, u)).astype(np.int32),
        *(length.astype(np.int32) for length in lengths),
    )


def gradients(*arrays: NdArray) -> list[Known]:
    """The gradients of the first and the last sequence, by the portable definition in float64."""
    rows = np.array([0, len(arrays[0]) - 1])
    x, *rest = (array[rows] for array in arrays)
    with_log = _slow(x.astype(np.float64), *rest)
    return [Known(rows, with_log)]


def _slow(x: NdArray, y: NdArray, t_len: NdArray, u_len: NdArray) -> NdArray:
    made: NdArray = rnnt_costs_grad.reference(x, y, t_len, u_len, np.ones(len(x)))
    return made


def ours_numpy() -> Rival:
    """Costs and gradient by both ops, called with NumPy arrays."""

    def prepare(*arrays: NdArray) -> Any:
        ones = np.ones(len(arrays[0]), arrays[0].dtype)

        def call() -> NdArray:
            rnnt_costs(*arrays)
            return rnnt_costs_grad(*arrays, ones)  # which computes the lattice again

        return call

    return Rival("ours, NumPy (nothing kept)", prepare, OURS, "numpy")


def torch_training(
    function: Any, package: str = "torch", *, name: str, memory: Any = None
) -> Rival:
    """The costs and then, by autograd, the gradient of the logits."""

    def prepare(*arrays: NdArray) -> Any:
        import torch

        x, *rest = (torch.tensor(array) for array in arrays)
        x.requires_grad_()
        return lambda: torch.autograd.grad(function(x, *rest).sum(), x)

    return Rival(name, prepare, package, "torch", memory)


def ours(x: Any, y: Any, t_len: Any, u_len: Any) -> Any:
    """The op."""
    return rnnt_costs(x, y, t_len, u_len).costs


def torch_diagonals(x: Any, y: Any, t_len: Any, u_len: Any) -> Any:
    """What one composes: log_softmax, then a loop over the diagonals, each in one piece."""
    import torch

    (b, t, nodes, _), u = x.shape, y.shape[1]
    log_p = torch.log_softmax(x, -1)
    blank = log_p[..., -1]
    labels = y[:, None, :, None].expand(b, t, u, 1).long()
    label = log_p[:, :, :u].gather(-1, labels)[..., 0]
    never = x.new_full((b, 1), -1e30)
    alphas = [torch.cat([x.new_zeros(b, 1), never.expand(b, u)], 1)]
    across = torch.arange(nodes, device=x.device)
    for d in range(1, t + u):
        before = (d - 1 - across).clamp(0, t - 1)
        stay = alphas[-1] + blank[:, before, across]
        stay = torch.where((d - across > 0) & (d - across < t), stay, never)
        up = alphas[-1][:, :-1] + label[:, (d - across[1:]).clamp(0, t - 1), across[:-1]]
        up = torch.where((d - across[1:] >= 0) & (d - across[1:] < t), up, never)
        alphas.append(torch.logaddexp(stay, torch.cat([never, up], 1)))
    rows, last = torch.arange(b, device=x.device), t_len.long() - 1
    ends = torch.stack(alphas)[last + u_len, rows, u_len.long()]
    return -(ends + blank[rows, last, u_len.long()])


def jax_scan_training() -> Rival:
    """The same with JAX's scan over the diagonals, under one jit with its gradient."""

    def costs(x: Any, y: Any, t_len: Any, u_len: Any) -> Any:
        import jax
        from jax import numpy as jnp

        (b, t, nodes, _), u = x.shape, y.shape[1]
        log_p = jax.nn.log_softmax(x, -1)
        blank = log_p[..., -1]
        label = jnp.take_along_axis(log_p[:, :, :u], y[:, None, :, None], -1)[..., 0]
        label = jnp.pad(label, ((0, 0), (0, 0), (0, 1)), constant_values=-1e30)
        across, never = jnp.arange(nodes), -1e30

        def step(alpha: Any, d: Any) -> Any:
            time = d - across
            stay = alpha + blank[:, jnp.clip(time - 1, 0, t - 1), across]
            stay = jnp.where((time > 0) & (time < t), stay, never)
            up = jnp.roll(alpha, 1, 1) + label[:, jnp.clip(time, 0, t - 1), across - 1]
            up = jnp.where((time >= 0) & (time < t) & (across > 0), up, never)
            after = jnp.logaddexp(stay, up)
            return after, after

        first = jnp.where(across == 0, 0.0, never) + jnp.zeros((b, 1))
        _, alphas = jax.lax.scan(step, first, jnp.arange(1, t + u))
        alphas = jnp.concatenate([first[None], alphas])
        rows, last = jnp.arange(b), t_len - 1
        return -(alphas[last + u_len, rows, u_len] + blank[rows, last, u_len])

    def prepare(*arrays: NdArray) -> Any:
        import jax

        inputs = [jax.numpy.asarray(array) for array in arrays]
        gradient = jax.value_and_grad(lambda *a: costs(*a).sum())
        call = jax.jit(gradient).lower(*inputs).compile()
        return lambda: (jax.block_until_ready(call(*inputs))[1],)

    return Rival("jax_scan", prepare, "jax", "jax", copies)


def copies(b: int, t: int, u: int, v: int) -> float:
    """Bytes of the log-probabilities, their gradient and that of the logits, roughly."""
    return 4 * 4 * b * t * (u + 1) * v


def log_softmax_alone(x: Any, *_: Any) -> Any:
    """Only the first step of any composition: the unit of the figures."""
    import torch

    return torch.log_softmax(x, -1)


def _training(name: str, about: str, sizes: Any, **more: Any) -> Bench:
    return Bench(
        name,
        about,
        sizes=sizes,
        inputs=batch,
        expected=gradients,
        memory_sizes=sizes,
        peer_tolerance=2e-3,  # in float32 their sums of logarithms lose digits along the paths
        rivals=[
            torch_training(ours, OURS, name="ours, torch"),
            ours_numpy(),
            torch_training(torch_diagonals, name="torch_diagonals", memory=copies),
            jax_scan_training(),
        ],
        **more,
    )


TRAINING = _training("gradient", "the costs, and from them the gradient of the logits", SIZES)
VOCABULARY = _training(
    "large vocabulary", "the same with many classes", LARGE_VOCABULARY, tolerance=3e-5
)
UNIT = Bench(
    "unit",
    "torch.log_softmax of the same logits, forward alone, beside the costs alone",
    sizes=[*SIZES, *LARGE_VOCABULARY],
    inputs=batch,
    rivals=[
        torch_rival(ours, OURS, name="ours, torch, costs alone"),
        torch_training(ours, OURS, name="ours, torch, with gradient"),
        torch_rival(log_softmax_alone),
    ],
)

BENCHES = [TRAINING, VOCABULARY, UNIT]
