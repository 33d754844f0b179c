# SPDX-License-Identifier: Apache-2.0
"""light_gru against the loops that one writes for it in PyTorch and JAX."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from light_gru import light_gru

from nativeops.bench.case import Bench, NdArray
from nativeops.bench.forms import (
    exact_in_torch,
    jax_gradient,
    jax_rival,
    ours_in,
    torch_gradient,
    torch_rival,
)
from nativeops.bench.limits import product_limit

# One sequence; a batch of utterances in SpeechBrain's recipes; short ones, many at a time.
SIZES = [
    {"t": 100, "b": 1, "h": 256},
    {"t": 400, "b": 8, "h": 512},
    {"t": 50, "b": 64, "h": 512},
]


def sequences(random: np.random.Generator, t: int, b: int, h: int) -> tuple[NdArray, ...]:
    """Products with inputs, and weights."""
    w_hh = random.uniform(-1, 1, (2 * h, h)) / np.sqrt(h)
    return random.standard_normal((t, b, 2 * h), np.float32), w_hh.astype(np.float32)


def training(random: np.random.Generator, **size: int) -> tuple[NdArray, ...]:
    """The same, and what flows back."""
    shape = [size[name] for name in "tbh"]
    return *sequences(random, **size), random.standard_normal(shape, np.float32)


def ours(sums: Any, w_hh: Any) -> Any:
    """The op."""
    return light_gru(sums, w_hh).output


def step(given: Any, h: Any, w_hh: Any) -> Any:
    """One of them in PyTorch."""
    import torch

    u_a, u_z = torch.addmm(given, h, w_hh.T).chunk(2, -1)
    return torch.lerp(torch.relu(u_a), h, torch.sigmoid(u_z))


@cache
def compiled_step() -> Any:
    """The same by torch.compile."""
    import torch

    return torch.compile(step, fullgraph=True)


def loop(sums: Any, w_hh: Any, one: Callable[..., Any] = step) -> Any:
    """Step by step."""
    import torch

    h, outputs = sums.new_zeros(sums.shape[1], w_hh.shape[1]), []
    for given in sums.unbind():
        h = one(given, h, w_hh)
        outputs.append(h)
    return torch.stack(outputs)


def compiled_steps(sums: Any, w_hh: Any) -> Any:
    """Step by step, each by torch.compile."""
    return loop(sums, w_hh, compiled_step())


def scan(sums: Any, w_hh: Any) -> Any:
    """The same in XLA's loop."""
    import jax
    import jax.numpy as jnp

    def one(h: Any, given: Any) -> tuple[Any, Any]:
        u_a, u_z = jnp.split(given + h @ w_hh.T, 2, -1)
        a, z = jax.nn.relu(u_a), jax.nn.sigmoid(u_z)
        h = a + z * (h - a)
        return h, h

    return jax.lax.scan(one, jnp.zeros((sums.shape[1], w_hh.shape[1])), sums)[1]


FORWARD = Bench(
    "forward",
    "all outputs, from the products of the inputs",
    sizes=SIZES,
    inputs=sequences,
    expected=exact_in_torch(torch_rival(loop)),
    work=lambda t, b, h: 4 * t * b * h * h,
    limit=product_limit("float32"),
    rivals=[
        *ours_in(ours, "numpy", "torch"),
        torch_rival(loop),
        torch_rival(compiled_steps),
        *ours_in(ours, "jax"),
        jax_rival(scan),
    ],
)

TRAINING = Bench(
    "gradient",
    "the same, and the gradients of the products and of the weights",
    sizes=SIZES,
    inputs=training,
    expected=exact_in_torch(torch_gradient(loop)),
    work=lambda t, b, h: 12 * t * b * h * h,
    limit=product_limit("float32"),
    tolerance=1e-4,
    rivals=[
        *ours_in(ours, "torch", gradient=True),
        torch_gradient(loop),
        torch_gradient(compiled_steps),
        *ours_in(ours, "jax", gradient=True),
        jax_gradient(scan),
    ],
)

BENCHES = [FORWARD, TRAINING]
