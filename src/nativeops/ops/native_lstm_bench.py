# SPDX-License-Identifier: Apache-2.0
"""native_lstm2 against the loops that one writes for it in PyTorch and JAX."""

from functools import cache
from typing import Any

import numpy as np

from nativeops.bench.case import Bench, NdArray
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
from nativeops.ops.native_lstm import native_lstm2

SIZES = [
    {"t": 100, "b": 1, "h": 256},
    {"t": 50, "b": 64, "h": 512},
    {"t": 300, "b": 20, "h": 800},
]


@cache
def _mask(t: int, b: int) -> NdArray:
    """Lengths from t/2 to t, and one frame in ten left out."""
    inside = np.arange(t)[:, None] < np.linspace(t, t // 2, b)
    return inside & (np.random.default_rng(0).random((t, b)) < 0.9)


@cache
def _mask_of(framework: str, t: int, b: int) -> Any:
    if framework == "torch":
        import torch

        return torch.from_numpy(_mask(t, b))
    return _mask(t, b)


def _draw(random: np.random.Generator, t: int, b: int, h: int) -> tuple[Any, ...]:
    drawn = random.standard_normal((t, b, 4 * h)), random.uniform(-1, 1, (h, 4 * h)) / np.sqrt(h)
    return tuple(array.astype(np.float32) for array in drawn)


def _flops(passes: int) -> Any:
    def work(t: int, b: int, h: int) -> float:
        return 2.0 * int(_mask(t, b).sum()) * 4 * h * h * passes

    return work


def ours(z: Any, w_re: Any) -> Any:
    """The op."""
    framework = "torch" if "torch" in type(z).__module__ else "numpy"
    return native_lstm2(z, w_re, _mask_of(framework, *z.shape[:2])).output


def ours_jax(z: Any, w_re: Any) -> Any:
    """The op; JAX makes an array of the mask."""
    import jax.numpy as jnp

    return native_lstm2(z, w_re, jnp.asarray(_mask(*z.shape[:2]))).output


def loop(z: Any, w_re: Any) -> Any:
    """Frame by frame."""
    import torch

    mask, h = _mask_of("torch", *z.shape[:2]), z.new_zeros(z.shape[1], w_re.shape[0])
    c, outputs = h, []
    for frame, inside in zip(z.unbind(), mask[:, :, None].unbind(), strict=True):
        g, i, f, o = torch.addmm(frame, h, w_re).chunk(4, -1)
        new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        y = torch.sigmoid(o) * torch.tanh(new)
        c, h = torch.where(inside, new, c), torch.where(inside, y, h)
        outputs.append(torch.where(inside, y, 0.0))
    return torch.stack(outputs)


def jax_scan(z: Any, w_re: Any) -> Any:
    """Frame by frame, compiled."""
    import jax
    from jax import numpy as jnp

    def step(states: Any, given: Any) -> Any:
        (h, c), (frame, inside) = states, given
        g, i, f, o = jnp.split(frame + h @ w_re, 4, -1)
        new = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        y = jax.nn.sigmoid(o) * jnp.tanh(new)
        states = jnp.where(inside, y, h), jnp.where(inside, new, c)
        return states, jnp.where(inside, y, 0)

    zeros = jnp.zeros((z.shape[1], w_re.shape[0]), z.dtype)
    return jax.lax.scan(step, (zeros, zeros), (z, _mask(*z.shape[:2])[:, :, None]))[1]


BENCHES = [
    Bench(
        "inference",
        "all outputs for a mask of lengths and holes, from the products of the inputs",
        sizes=SIZES,
        inputs=_draw,
        expected=exact_in_torch(torch_rival(loop)),
        work=_flops(1),
        limit=product_limit("float32"),
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            torch_rival(loop),
            *ours_in(ours_jax, "jax"),
            jax_rival(jax_scan),
        ],
    ),
    Bench(
        "training",
        "the outputs, and the gradients of the products and the weights",
        sizes=SIZES,
        inputs=with_arriving(_draw, "tbh"),
        expected=exact_in_torch(torch_gradient(loop)),
        work=_flops(3),
        limit=product_limit("float32"),
        tolerance=1e-4,
        rivals=[
            *ours_in(ours, "torch", gradient=True),
            torch_gradient(loop),
            *ours_in(ours_jax, "jax", gradient=True),
            jax_gradient(jax_scan),
        ],
    ),
]
