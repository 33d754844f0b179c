# SPDX-License-Identifier: Apache-2.0
"""Integers, flags and bytes beside floating point numbers; words and flags as attributes."""

from typing import Literal

import numpy as np

from nativeops.declare import Array, Bool, Float, Int, Uint8, op


@op(kernel="choices.h")
def take(x: Float[Array, "*b n d"], index: Int[Array, "*b k"]) -> Float[Array, "*b k d"]:
    """``out[i] = x[index[i]]``; zero where the index is outside."""
    inside = (index >= 0) & (index < x.shape[-2])
    padded = np.concatenate([x, np.zeros((*x.shape[:-2], 1, x.shape[-1]))], -2)
    places = np.where(inside, index, x.shape[-2])[..., None]
    lead = np.broadcast_shapes(padded.shape[:-2], places.shape[:-2])
    padded = np.broadcast_to(padded, (*lead, *padded.shape[-2:]))
    return np.take_along_axis(padded, np.broadcast_to(places, (*lead, *places.shape[-2:])), -2)


@op(kernel="choices.h")
def take_grad(
    x: Float[Array, "*b n d"], index: Int[Array, "*b k"], d_out: Float[Array, "*b k d"]
) -> Float[Array, "*b n d"]:
    """``d_x[index[i]] += d_out[i]``; ``x`` only tells ``n``."""
    hits = index[..., None, :] == np.arange(x.shape[-2])[:, None]
    lead = np.broadcast_shapes(x.shape[:-2], index.shape[:-1], d_out.shape[:-2])
    summed = np.einsum("...nk,...kd->...nd", hits.astype(np.float64), d_out)
    return np.broadcast_to(summed, (*lead, *x.shape[-2:]))


def _example(random, given):
    """Indices to both sides of what is allowed, and some of them twice."""
    lead, n, k, d = given["b"], given["n"], given["k"], given["d"]
    return {
        "x": random.standard_normal((*lead, n, d)),
        "index": random.integers(-1, n + 1, (*lead, k)),
    }


take.example(_example)


@take_grad.example
def _(random, given):
    shape = (*given["b"], given["k"], given["d"])
    return {**_example(random, given), "d_out": random.standard_normal(shape)}


@take.gradient
def _(x, index, d_out):
    return take_grad(x, index, d_out)


@op(kernel="choices.h")
def blend(
    x: Float[Array, "n d"],
    mask: Bool[Array, "n"],
    weight: Uint8[Array, "n"],
    *,
    fill: Literal["zero", "one"] = "zero",
    invert: bool = False,
) -> Float[Array, "n d"]:
    """``x · weight / 255`` where ``mask`` is set (or not, if ``invert``), else ``fill``."""
    shown = (mask != invert)[:, None]
    return np.where(shown, x * (weight / 255)[:, None], float(fill == "one"))


@op(kernel="choices.h")
def blend_grad(
    mask: Bool[Array, "n"],
    weight: Uint8[Array, "n"],
    d_out: Float[Array, "n d"],
    *,
    invert: bool = False,
) -> Float[Array, "n d"]:
    """``d_out · weight / 255`` where ``mask`` is set (or not, if ``invert``), else 0."""
    return np.where((mask != invert)[:, None], d_out * (weight / 255)[:, None], 0)


@blend.gradient
def _(mask, weight, d_out, invert):
    return blend_grad(mask, weight, d_out, invert=invert)
