# SPDX-License-Identifier: Apache-2.0
"""two_d_lstm against the same diagonals, put together from PyTorch's and JAX's functions."""

from typing import Any

import numpy as np

from nativeops.bench.case import Bench
from nativeops.bench.forms import (
    exact_in_torch,
    jax_gradient,
    jax_rival,
    ours_in,
    torch_gradient,
    torch_rival,
    with_arriving,
)
from nativeops.bench.limits import product_limit
from nativeops.ops.two_d_lstm import two_d_lstm

# An image of handwriting (Voigtlaender et al. 2016) and pairs of sentences (Bahar et al. 2018).
SIZES = [
    {"t": 64, "s": 200, "b": 4, "i": 15, "h": 30},
    {"t": 20, "s": 25, "b": 16, "i": 128, "h": 128},
    {"t": 50, "s": 50, "b": 8, "i": 256, "h": 256},
    {"t": 30, "s": 40, "b": 20, "i": 500, "h": 500},
]


def _draw(random: np.random.Generator, t: int, s: int, b: int, i: int, h: int) -> tuple[Any, ...]:
    drawn = [random.uniform(-1, 1, shape) for shape in ((i, 5 * h), (h, 5 * h), (h, 5 * h), 5 * h)]
    drawn = [random.standard_normal((t, s, b, i)), *(a / np.sqrt(h) for a in drawn)]
    return tuple(a.astype(np.float32) for a in drawn)


def _flops(passes: int) -> Any:
    def work(t: int, s: int, b: int, i: int, h: int) -> float:
        return 2.0 * t * s * b * 5 * h * (i + 2 * h) * passes

    return work


def ours(x: Any, w: Any, v_v: Any, v_h: Any, bias: Any) -> Any:
    """The op."""
    return two_d_lstm(x, w, v_v, v_h, bias).output


def diagonals(x: Any, w: Any, v_v: Any, v_h: Any, bias: Any) -> Any:
    """The input product of all cells at once, then a loop over the diagonals, each one product."""
    import torch

    (t, s, b, _), units = x.shape, v_h.shape[0]
    weights = torch.cat([v_v, v_h])
    # Row t of the grid is shifted by t, so that a column is a diagonal.
    wide = torch.nn.functional.pad(x @ w + bias, (0, 0, 0, 0, 0, t))
    skewed = wide.reshape(t * (s + t), b, -1)[: t * (s + t - 1)].reshape(t, s + t - 1, b, -1)
    h = c = x.new_zeros(t, b, units)
    zero, outputs = x.new_zeros(1, b, units), []
    for d, column in enumerate(skewed.unbind(1)):
        first, end = max(0, d - s + 1), min(d + 1, t)
        h_above, c_above = (torch.cat([zero, state[:-1]])[first:end] for state in (h, c))
        c_left = c[first:end]
        z = column[first:end] + torch.cat([h_above, h[first:end]], -1) @ weights
        i, f, lam, o = torch.sigmoid(z[..., : 4 * units]).chunk(4, -1)
        new = f * torch.lerp(c_left, c_above, lam) + i * torch.tanh(z[..., 4 * units :])
        parts = zero.expand(first, -1, -1), zero.expand(t - end, -1, -1)
        c = torch.cat([parts[0], new, parts[1]])
        h = torch.cat([parts[0], o * torch.tanh(new), parts[1]])
        outputs.append(h)
    back = torch.nn.functional.pad(torch.stack(outputs, 1).flatten(0, 1), (0, 0, 0, 0, 0, t))
    return back.reshape(t, s + t, b, units)[:, :s]


def jax_scan(x: Any, w: Any, v_v: Any, v_h: Any, bias: Any) -> Any:
    """The same with ``jax.lax.scan``, where each step has the rows of a whole column."""
    import jax
    from jax import numpy as jnp

    (t, s, b, _), units = x.shape, v_h.shape[0]
    weights = jnp.concatenate([v_v, v_h])
    wide = jnp.pad(x @ w + bias, ((0, 0), (0, t), (0, 0), (0, 0)))
    skewed = wide.reshape(t * (s + t), b, -1)[: t * (s + t - 1)].reshape(t, s + t - 1, b, -1)
    row = jnp.arange(t)[:, None, None]

    def step(states: Any, given: Any) -> Any:
        (h, c), (d, z) = states, given
        h_above, c_above = (jnp.pad(a, ((1, 0), (0, 0), (0, 0)))[:-1] for a in (h, c))
        z = z + jnp.concatenate([h_above, h], -1) @ weights
        i, f, lam, o = jnp.split(jax.nn.sigmoid(z[..., : 4 * units]), 4, -1)
        new = f * (lam * c_above + (1 - lam) * c) + i * jnp.tanh(z[..., 4 * units :])
        inside = (row <= d) & (d - row < s)
        h, c = (jnp.where(inside, a, 0) for a in (o * jnp.tanh(new), new))
        return (h, c), h

    zeros = jnp.zeros((t, b, units), x.dtype)
    given = jnp.arange(s + t - 1), jnp.moveaxis(skewed, 1, 0)
    outputs = jnp.moveaxis(jax.lax.scan(step, (zeros, zeros), given)[1], 0, 1)
    back = jnp.pad(outputs.reshape(t * (s + t - 1), b, units), ((0, t), (0, 0), (0, 0)))
    return back.reshape(t, s + t, b, units)[:, :s]


BENCHES = [
    Bench(
        "inference",
        "the outputs of all cells; nothing is kept",
        sizes=SIZES,
        inputs=_draw,
        expected=exact_in_torch(torch_rival(diagonals)),
        work=_flops(1),
        limit=product_limit("float32"),
        memory_sizes=SIZES[-2:-1],
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            torch_rival(diagonals),
            *ours_in(ours, "jax"),
            jax_rival(jax_scan),
        ],
    ),
    Bench(
        "training",
        "the outputs of all cells, and the gradients of inputs, weights and biases",
        sizes=SIZES,
        inputs=with_arriving(_draw, "tsbh"),
        expected=exact_in_torch(torch_gradient(diagonals)),
        work=_flops(3),
        limit=product_limit("float32"),
        memory_sizes=SIZES[-2:-1],
        tolerance=1e-4,
        rivals=[
            *ours_in(ours, "torch", gradient=True),
            torch_gradient(diagonals),
            *ours_in(ours, "jax", gradient=True),
            jax_gradient(jax_scan),
        ],
    ),
]
