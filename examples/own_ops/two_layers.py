# SPDX-License-Identifier: Apache-2.0
"""Two dense layers with a ReLU between: a kernel of several steps that calls `gemm`."""

from typing import Any, NamedTuple

import numpy as np

from nativeops.declare import Accum, Array, Float, Kept, op


class TwoLayers(NamedTuple):
    """What `two_layers` gives, and the hidden units, which only its gradient needs."""

    y: Float[Array, "n o"]
    hidden: Kept[Accum[Array, "n h"]]


@op(kernel="two_layers.h", independent="n")
def two_layers(
    x: Float[Array, "n i"],
    w1: Float[Array, "h i"],
    b1: Float[Array, "h"],
    w2: Float[Array, "o h"],
    b2: Float[Array, "o"],
) -> TwoLayers:
    """``y = relu(x·w1ᵀ + b1)·w2ᵀ + b2``.

    Gradient: for all five; the hidden units are kept for it.
    Cost: O(n·h·(i + o)) time; a workspace of n·(h + o) numbers, and two packed matrices on the CPU.
    Same as: ``torch.nn.Sequential(Linear(i, h), ReLU(), Linear(h, o))``.

    >>> two_layers(np.ones((1, 2)), np.eye(2), np.array([-3.0, 1.0]), np.ones((1, 2)), np.ones(1)).y
    array([[3.]])
    """
    hidden = np.maximum(x @ w1.T + b1, 0)
    return TwoLayers(hidden @ w2.T + b2, hidden)


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
    w2: Float[Array, "o h"],
    hidden: Accum[Array, "n h"],
    d_y: Float[Array, "n o"],
) -> TwoLayersGrad:
    """``d_w2 = d_yᵀ·hidden``, ``d_hidden = d_y·w2`` where a unit is on, then as one layer."""
    d_hidden = (d_y @ w2) * (hidden > 0)
    return TwoLayersGrad(d_hidden @ w1, d_hidden.T @ x, d_hidden.sum(0), d_y.T @ hidden, d_y.sum(0))


@two_layers.gradient
def _(x: Any, w1: Any, w2: Any, hidden: Any, d_y: Any) -> Any:
    return two_layers_grad(x, w1, w2, hidden, d_y)
