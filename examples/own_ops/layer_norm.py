# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation: rows of mean 0 and variance 1, then scaled and moved."""

from typing import Annotated, Any, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, Float, op

Eps = Annotated[float, AtLeast(1e-12)]


def normalised(x: Any, eps: float) -> tuple[Any, Any]:
    """``z = (x - mean) · scale`` of each row, and ``scale``."""
    n = max(x.shape[-1], 1)
    centred = x - x.sum(-1, keepdims=True) / n
    scale = 1 / np.sqrt((centred**2).sum(-1, keepdims=True) / n + eps)
    return centred * scale, scale


@op(kernel="layer_norm.h")
def layer_norm(
    x: Float[Array, "*b n"], weight: Float[Array, "n"], bias: Float[Array, "n"], *, eps: Eps = 1e-5
) -> Float[Array, "*b n"]:
    """``y = (x - mean) / √(variance + eps) · weight + bias`` for each row of ``x``.

    Gradient: for all three, in one pass; only the arguments are kept for it.
    Same as: ``torch.nn.functional.layer_norm(x, [n], weight, bias, eps)``.
    """
    return normalised(x, eps)[0] * weight + bias


class LayerNormGrad(NamedTuple):
    """The gradients of the arguments of `layer_norm`."""

    d_x: Float[Array, "*b n"]
    d_weight: Float[Array, "n"]
    d_bias: Float[Array, "n"]


@op(kernel="layer_norm.h")
def layer_norm_grad(
    x: Float[Array, "*b n"], weight: Float[Array, "n"], d_out: Float[Array, "*b n"], *, eps: Eps
) -> LayerNormGrad:
    """``d_x = scale · (d - mean(d) - z · mean(d · z))`` with ``d = d_out · weight``."""
    z, scale = normalised(x, eps)
    d, n = d_out * weight, max(x.shape[-1], 1)
    d_x = d - d.sum(-1, keepdims=True) / n - z * (d * z).sum(-1, keepdims=True) / n
    lead = tuple(range(d_x.ndim - 1))
    d_bias = np.broadcast_to(d_out, d_x.shape).sum(lead)
    return LayerNormGrad(scale * d_x, (d_out * z).sum(lead), d_bias)


@layer_norm.gradient
def _(x, weight, d_out, eps):
    return layer_norm_grad(x, weight, d_out, eps=eps)


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
    return {**_example(random, lead, n), "d_out": random.standard_normal((*lead, n))}
