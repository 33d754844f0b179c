# SPDX-License-Identifier: Apache-2.0
"""layer_norm against PyTorch's own kernel, and against the formula fused by XLA."""

from typing import Any

import numpy as np
from layer_norm import layer_norm, layer_norm_grad

from nativeops.bench.case import Bench, Known, NdArray, spread_rows
from nativeops.bench.forms import jax_gradient, jax_rival, ours_in, torch_gradient, torch_rival

SIZES = [
    {"m": 2048, "n": 512},
    {"m": 16384, "n": 1024},
    {"m": 4096, "n": 4096},
    {"m": 100_000, "n": 32},
]


def arrays(random: np.random.Generator, m: int, n: int) -> tuple[NdArray, ...]:
    """Rows, weight, bias, and what flows back."""
    shapes = ((m, n), n, n, (m, n))
    return tuple(random.standard_normal(shape, dtype=np.float32) for shape in shapes)


def result(x: NdArray, weight: NdArray, bias: NdArray) -> list[Known]:
    """Some rows of the result."""
    some = spread_rows(len(x))
    return [Known(some, layer_norm.reference(x[some].astype(np.float64), weight, bias).y)]


def gradients(x: NdArray, weight: NdArray, bias: NdArray, d_out: NdArray) -> list[Known]:
    """All gradients."""
    x, weight, d_out = (array.astype(np.float64) for array in (x, weight, d_out))
    _, mean, scale = layer_norm.reference(x, weight, bias)
    return [
        Known(..., values) for values in layer_norm_grad.reference(x, weight, mean, scale, d_out)
    ]


def rows(x: Any, weight: Any, bias: Any) -> Any:
    """Ours."""
    return layer_norm(x, weight, bias).y


def torch_native(x: Any, weight: Any, bias: Any) -> Any:
    """The op that PyTorch has for it."""
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


def jax_formula(x: Any, weight: Any, bias: Any) -> Any:
    """As libraries for JAX write it."""
    import jax

    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weight + bias


FORWARD = Bench(
    "forward",
    "rows of mean 0 and variance 1, scaled and moved",
    sizes=SIZES,
    inputs=lambda random, **size: arrays(random, **size)[:3],
    expected=result,
    work=lambda m, n: m * n,
    rivals=[
        *ours_in(rows, "numpy", "torch"),
        torch_rival(torch_native),
        *ours_in(rows, "jax"),
        jax_rival(jax_formula),
    ],
)

TRAINING = Bench(
    "gradient",
    "the same, and from a gradient of it those of x, weight and bias",
    sizes=SIZES,
    inputs=arrays,
    expected=gradients,
    work=lambda m, n: m * n,
    rivals=[
        *ours_in(rows, "torch", gradient=True),
        torch_gradient(torch_native),
        *ours_in(rows, "jax", gradient=True),
        jax_gradient(jax_formula),
    ],
)

BENCHES = [FORWARD, TRAINING]
