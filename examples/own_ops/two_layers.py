# SPDX-License-Identifier: Apache-2.0
"""Two dense layers with a ReLU between: a kernel that calls `gemm`, and keeps nothing."""

from typing import Any, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, op


@op(kernel="two_layers.h", independent="n")
def two_layers(
    x: Float[Array, "n i"],
    w1: Float[Array, "h i"],
    b1: Float[Array, "h"],
    w2: Float[Array, "o h"],
    b2: Float[Array, "o"],
) -> Float[Array, "n o"]:
    """``y = relu(x·w1ᵀ + b1)·w2ᵀ + b2``.

    Gradient: for all five; the hidden units are computed again, so only the arguments are kept.
    Cost: O(n·h·(i + o)) time; a workspace of n·h numbers, and two packed matrices on the CPU.
    Same as: ``torch.nn.Sequential(Linear(i, h), ReLU(), Linear(h, o))``.

    >>> two_layers(np.ones((1, 2)), np.eye(2), np.array([-3.0, 1.0]), np.ones((1, 2)), np.ones(1))
    array([[3.]])
    """
    return np.maximum(x @ w1.T + b1, 0) @ w2.T + b2


class TwoLayersGrad(NamedTuple):
    """The gradients of the arguments of `two_layers`."""

    d_x: Float[Array, "n i"]
    d_w1: Float[Array, "h i"]
    d_b1: Float[Array, "h"]
    d_w2: Float[Array, "o h"]
    d_b2: Float[Array, "o"]


@op(kernel="two_layers.h", independent="n")
def two_layers_grad(
    x: Float[Array, "n i"],
    w1: Float[Array, "h i"],
    b1: Float[Array, "h"],
    w2: Float[Array, "o h"],
    d_out: Float[Array, "n o"],
) -> TwoLayersGrad:
    """``d_w2 = d_outᵀ·hidden``, ``d_hidden = d_out·w2`` where a unit is on, then as one layer."""
    hidden = np.maximum(x @ w1.T + b1, 0)
    d_hidden = (d_out @ w2) * (hidden > 0)
    return TwoLayersGrad(
        d_hidden @ w1, d_hidden.T @ x, d_hidden.sum(0), d_out.T @ hidden, d_out.sum(0)
    )


@two_layers.gradient
def _(x: Any, w1: Any, b1: Any, w2: Any, d_out: Any) -> Any:
    return two_layers_grad(x, w1, b1, w2, d_out)
