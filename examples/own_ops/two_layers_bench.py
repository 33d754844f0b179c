# SPDX-License-Identifier: Apache-2.0
"""two_layers against the same layers of each framework."""

from typing import Any

import numpy as np
from two_layers import two_layers, two_layers_grad

from nativeops.bench.case import Bench, Known, NdArray, spread_rows
from nativeops.bench.forms import jax_gradient, jax_rival, ours_in, torch_gradient, torch_rival
from nativeops.bench.limits import product_limit

SIZES = [{"n": 256, "i": 256, "h": 1024, "o": 256}, {"n": 2048, "i": 1024, "h": 4096, "o": 1024}]


def arrays(random: np.random.Generator, n: int, i: int, h: int, o: int) -> tuple[NdArray, ...]:
    """Inputs, weights and biases of both layers, and what flows back.

    The sums before the ReLU are exact and never 0: else rounding decides which of them count.
    """
    shapes = ((n, i), (h, i), (h,), (o, h), (o,), (n, o))
    x, w1, b1, *others = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return (np.round(4 * x) / 4, np.round(4 * w1) / 4, np.round(4 * b1) / 4 + 1 / 32, *others)


def result(x: NdArray, *layers: NdArray) -> list[Known]:
    """Some rows of the result."""
    rows = spread_rows(len(x), 64)
    wide = (array.astype(np.float64) for array in layers)
    return [Known(rows, two_layers.reference(x[rows].astype(np.float64), *wide).y)]


def gradients(x: NdArray, w1: NdArray, b1: NdArray, w2: NdArray, _: NdArray, d: NdArray) -> Any:
    """All gradients."""
    x, w1, b1, w2, d = (array.astype(np.float64) for array in (x, w1, b1, w2, d))
    hidden = np.maximum(x @ w1.T + b1, 0)
    return [Known(..., values) for values in two_layers_grad.reference(x, w1, w2, hidden, d)]


def layers(*given: Any) -> Any:
    """Ours."""
    return two_layers(*given).y


def torch_layers(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """PyTorch's linear layers."""
    from torch.nn import functional

    return functional.linear(functional.linear(x, w1, b1).relu_(), w2, b2)


def jax_layers(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """As libraries for JAX write it."""
    import jax

    return jax.nn.relu(x @ w1.T + b1) @ w2.T + b2


FORWARD = Bench(
    "forward",
    "two products with the ReLU between",
    sizes=SIZES,
    inputs=lambda random, **size: arrays(random, **size)[:5],
    expected=result,
    work=lambda n, i, h, o: 2 * n * h * (i + o),
    limit=product_limit("float32"),
    rivals=[
        *ours_in(layers, "numpy", "torch"),
        torch_rival(torch_layers),
        *ours_in(layers, "jax"),
        jax_rival(jax_layers),
    ],
)

TRAINING = Bench(
    "gradient",
    "the same, and from a gradient of it those of all five arguments",
    sizes=SIZES,
    inputs=arrays,
    expected=gradients,
    work=lambda n, i, h, o: 6 * n * h * (i + o),
    limit=product_limit("float32"),
    rivals=[
        *ours_in(layers, "torch", gradient=True),
        torch_gradient(torch_layers),
        *ours_in(layers, "jax", gradient=True),
        jax_gradient(jax_layers),
    ],
)

BENCHES = [FORWARD, TRAINING]
