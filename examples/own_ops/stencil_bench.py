# SPDX-License-Identifier: Apache-2.0
"""stencil against a convolution, and against five shifted grids."""

from typing import Any

import numpy as np
from stencil import stencil

from nativeops.bench.case import Bench, Known, NdArray
from nativeops.bench.forms import jax_rival, numpy_rival, ours_in, torch_rival

SIZES = [{"b": 4, "h": 512, "w": 512}, {"b": 4, "h": 2048, "w": 2048}]


def grids(random: np.random.Generator, b: int, h: int, w: int) -> tuple[NdArray, ...]:
    """Any numbers."""
    return (random.standard_normal((b, h, w), dtype=np.float32),)


def some_grids(x: NdArray) -> list[Known]:
    """The first grid and the last."""
    return [Known([0, -1], stencil.reference(x[[0, -1]].astype(np.float64)))]


def scipy(x: NdArray) -> Any:
    """On one thread."""
    from scipy.ndimage import convolve

    weights = np.float32([[0, 0.25, 0], [0.25, 0, 0.25], [0, 0.25, 0]])
    return convolve(x, weights[None], mode="constant")


def torch_convolution(x: Any) -> Any:
    """With four of nine weights."""
    import torch

    weights = x.new_tensor([[0, 0.25, 0], [0.25, 0, 0.25], [0, 0.25, 0]])
    return torch.nn.functional.conv2d(x[:, None], weights[None, None], padding=1)[:, 0]


def torch_shifted(x: Any) -> Any:
    """An operation for each neighbour."""
    import torch

    p = torch.nn.functional.pad(x, (1, 1, 1, 1))
    around = p[:, :-2, 1:-1] + p[:, 2:, 1:-1] + p[:, 1:-1, :-2] + p[:, 1:-1, 2:]
    return x + 0.25 * (around - 4 * x)


def jax_shifted(x: Any) -> Any:
    """The same, fused by XLA."""
    import jax

    p = jax.numpy.pad(x, ((0, 0), (1, 1), (1, 1)))
    around = p[:, :-2, 1:-1] + p[:, 2:, 1:-1] + p[:, 1:-1, :-2] + p[:, 1:-1, 2:]
    return x + 0.25 * (around - 4 * x)


FORWARD = Bench(
    "forward",
    "each cell and its four neighbours",
    sizes=SIZES,
    inputs=grids,
    expected=some_grids,
    work=lambda b, h, w: b * h * w,
    rivals=[
        *ours_in(stencil, "numpy"),
        numpy_rival(scipy, "scipy"),
        *ours_in(stencil, "torch"),
        torch_rival(torch_convolution),
        torch_rival(torch_shifted),
        *ours_in(stencil, "jax"),
        jax_rival(jax_shifted),
    ],
)

BENCHES = [FORWARD]
