# SPDX-License-Identifier: Apache-2.0
"""Several results: kept for the gradient, optional, of another dtype, without axes."""

from typing import Annotated, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, AtMost, Float, Int32, Kept, op


class Normalised(NamedTuple):
    """The result of `normalise`."""

    y: Float[Array, "*b n d"]
    inverse: Kept[Float[Array, "*b n"]]


@op(kernel="results.h")
def normalise(x: Float[Array, "*b n d"]) -> Normalised:
    """``y = x · inverse`` with ``inverse = (Σ_k x[k]^2 + 1)^(-1/2)``."""
    inverse = 1 / np.sqrt((x * x).sum(-1) + 1)
    return Normalised(x * inverse[..., None], inverse)


@op(kernel="results.h")
def normalise_grad(
    y: Float[Array, "*b n d"], inverse: Float[Array, "*b n"], d_y: Float[Array, "*b n d"]
) -> Float[Array, "*b n d"]:
    """``d_x = inverse · (d_y - y · Σ_k d_y[k] · y[k])``."""
    return inverse[..., None] * (d_y - y * (d_y * y).sum(-1, keepdims=True))


@normalise_grad.example
def _(random, given):
    shape = (*given["b"], given["n"], given["d"])
    y, inverse = normalise.reference(random.standard_normal(shape))
    return {"y": y, "inverse": inverse, "d_y": random.standard_normal(shape)}


@normalise.gradient
def _(y, inverse, d_y):
    return normalise_grad(y, inverse, d_y)


class Extremes(NamedTuple):
    """The results of `extremes`, each only if it is wanted."""

    least: Float[Array, "n"] | None
    largest: Float[Array, "n"] | None


@op(kernel="results.h")
def extremes(x: Float[Array, "n d"]) -> Extremes:
    """The least and the largest number of each row; an infinity for an empty one. No gradient."""
    return Extremes(x.min(-1, initial=np.inf), x.max(-1, initial=-np.inf))


Share = Annotated[float, AtLeast(0), AtMost(1)]


@op(kernel="results.h", autocast="keep")
def count_above(x: Float[Array, "*b n"], *, share: Share = 0.5) -> Int32[Array, "*b"]:
    """How many numbers are larger than ``share``."""
    return (x > share).sum(-1, dtype=np.int32)


@op(kernel="results.h")
def dot(x: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, ""]:
    """``Σ_k x[k] · y[k]``, a result without axes."""
    return (x * y).sum()


@op(kernel="results.h")
def scale(x: Float[Array, "n"], factor: Float[Array, ""]) -> Float[Array, "n"]:
    """``x · factor``."""
    return x * factor


@op(kernel="results.h")
def turned(x: Float[Array, "n"], *, ctx: bool = True, self: bool = False) -> Float[Array, "n"]:
    """``-x`` where both are equal, else ``x``; frameworks have parameters of these names, too."""
    return -x if ctx == self else x


@turned.gradient
def _(d_out, ctx, self):
    return turned(d_out, ctx=ctx, self=self)


@dot.gradient
def _(x, y, d_out):
    return [scale(y, d_out), scale(x, d_out)]  # a list is as good as a tuple


@scale.gradient
def _(x, factor, d_out):
    return scale(d_out, factor), dot(x, d_out)
