# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation: rows of mean 0 and variance 1, then scaled and moved."""

from typing import Annotated, Any, NamedTuple

import numpy as np

from nativeops.declare import Accum, Array, AtLeast, Float, Kept, op

Eps = Annotated[float, AtLeast(1e-12)]


class LayerNorm(NamedTuple):
    """What `layer_norm` gives, and what only its gradient needs."""

    y: Float[Array, "*b n"]
    mean: Kept[Accum[Array, "*b"]]
    scale: Kept[Accum[Array, "*b"]]


@op(kernel="layer_norm.h")
def layer_norm(
    x: Float[Array, "*b n"], weight: Float[Array, "n"], bias: Float[Array, "n"], *, eps: Eps = 1e-5
) -> LayerNorm:
    """``y = (x - mean) scale · weight + bias`` with ``scale = 1 / √(variance + eps)`` of each row.

    Gradient: for all three; the arguments and two numbers of each row are kept for it.
    Same as: ``torch.nn.functional.layer_norm(x, [n], weight, bias, eps)``.
    """
    n = max(x.shape[-1], 1)
    mean = x.sum(-1, keepdims=True) / n
    scale = 1 / np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / n + eps)
    y = (x - mean) * scale * weight + bias
    return LayerNorm(y, mean[..., 0], scale[..., 0])


class LayerNormGrad(NamedTuple):
    """The gradients of the arguments of `layer_norm`."""

    d_x: Float[Array, "*b n"]
    d_weight: Float[Array, "n"]
    d_bias: Float[Array, "n"]


@op(kernel="layer_norm.h")
def layer_norm_grad(
    x: Float[Array, "*b n"],
    weight: Float[Array, "n"],
    mean: Accum[Array, "*b"],
    scale: Accum[Array, "*b"],
    d_y: Float[Array, "*b n"],
) -> LayerNormGrad:
    """``d_x = scale · (d - mean(d) - z · mean(d · z))`` with ``d = d_y · weight``."""
    z, d = (x - mean[..., None]) * scale[..., None], d_y * weight
    n, lead = max(x.shape[-1], 1), tuple(range(z.ndim - 1))
    d_x = d - d.sum(-1, keepdims=True) / n - z * (d * z).sum(-1, keepdims=True) / n
    d_bias = np.broadcast_to(d_y, z.shape).sum(lead)
    return LayerNormGrad(scale[..., None] * d_x, (d_y * z).sum(lead), d_bias)


@layer_norm.gradient
def _(x, weight, mean, scale, d_y):
    return layer_norm_grad(x, weight, mean, scale, d_y)


def _example(random: np.random.Generator, lead: tuple[int, ...], n: int) -> dict[str, Any]:
    """Rows that vary, and weights that multiply exactly: ``1 / √eps`` is large for rounding."""
    x = random.random((*lead, n)) + 2.0 * (np.arange(n) % 2)
    return {"x": x, "weight": 2.0 ** random.integers(-3, 1, n)}


@layer_norm.example
def _(random, given):
    n = given["n"]
    return {**_example(random, given["b"], n), "bias": random.standard_normal(n)}


@layer_norm_grad.example
def _(random, given):
    lead, n = given["b"], given["n"]
    mean, scale = random.random(lead), random.random(lead)
    d_y = random.standard_normal((*lead, n))
    return {**_example(random, lead, n), "mean": mean, "scale": scale, "d_y": d_y}
