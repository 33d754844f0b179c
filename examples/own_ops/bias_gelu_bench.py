# SPDX-License-Identifier: Apache-2.0
"""bias_gelu against the same in two operations, and against compilers that fuse them."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from bias_gelu import bias_gelu, bias_gelu_grad

from nativeops.bench.case import Bench, Known, NdArray, spread_rows
from nativeops.bench.forms import (
    jax_gradient,
    jax_rival,
    ours_in,
    tensorflow_rival,
    torch_gradient,
    torch_rival,
)

SIZES = [{"m": 512, "n": 1024}, {"m": 4096, "n": 4096}]


def arrays(random: np.random.Generator, m: int, n: int) -> tuple[NdArray, ...]:
    """Rows, a bias, and what flows back."""
    return tuple(random.standard_normal(shape, dtype=np.float32) for shape in ((m, n), n, (m, n)))


def result(x: NdArray, bias: NdArray) -> list[Known]:
    """Some rows of the result."""
    rows = spread_rows(len(x))
    return [Known(rows, bias_gelu.reference(x[rows].astype(np.float64), bias))]


def gradients(x: NdArray, bias: NdArray, d_out: NdArray) -> list[Known]:
    """Both gradients."""
    wide = (array.astype(np.float64) for array in (x, bias, d_out))
    return [Known(..., values) for values in bias_gelu_grad.reference(*wide)]


def torch_eager(x: Any, bias: Any) -> Any:
    """Two operations."""
    import torch

    return torch.nn.functional.gelu(x + bias)


@cache
def compiled() -> Callable[..., Any]:
    """The two, fused by PyTorch's compiler."""
    import torch

    return torch.compile(torch_eager)


def torch_compiled(x: Any, bias: Any) -> Any:
    """In one pass, too."""
    return compiled()(x, bias)


def jax_jit(x: Any, bias: Any) -> Any:
    """Fused by XLA."""
    import jax

    return jax.nn.gelu(x + bias, approximate=False)


def tensorflow_graph(x: Any, bias: Any) -> Any:
    """Two operations in a graph."""
    import tensorflow as tf

    return tf.nn.gelu(x + bias, approximate=False)


FORWARD = Bench(
    "forward",
    "gelu(x + bias) with erf",
    sizes=SIZES,
    inputs=lambda random, **size: arrays(random, **size)[:2],
    expected=result,
    work=lambda m, n: m * n,
    rivals=[
        *ours_in(bias_gelu, "numpy", "torch"),
        torch_rival(torch_eager),
        torch_rival(torch_compiled),
        *ours_in(bias_gelu, "jax"),
        jax_rival(jax_jit),
        *ours_in(bias_gelu, "tensorflow"),
        tensorflow_rival(tensorflow_graph),
    ],
)

TRAINING = Bench(
    "gradient",
    "the same, and from a gradient of it those of x and bias",
    sizes=SIZES,
    inputs=arrays,
    expected=gradients,
    work=lambda m, n: m * n,
    rivals=[
        *ours_in(bias_gelu, "torch", gradient=True),
        torch_gradient(torch_eager),
        torch_gradient(torch_compiled),
        *ours_in(bias_gelu, "jax", gradient=True),
        jax_gradient(jax_jit),
    ],
)

BENCHES = [FORWARD, TRAINING]
