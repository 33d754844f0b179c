# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of the dtype that sums are taken in."""

from typing import NamedTuple

import numpy as np

from nativeops.declare import Accum, Array, Float, op


class Centred(NamedTuple):
    """The results of `centred`."""

    out: Float[Array, "*b n"]
    total: Accum[Array, "*b"]


@op(kernel="sums.h")
def centred(
    mean: Accum[Array, "*b"], x: Float[Array, "*b n"], scale: Accum[Array, "n"] | None = None
) -> Centred:
    """``out = (x - mean) · scale``, ``total = Σ_n x``."""
    factors = np.ones(x.shape[-1]) if scale is None else scale
    out = (x - mean[..., None]) * factors
    return Centred(out, np.broadcast_to(x.sum(-1), out.shape[:-1]))


class CentredGrad(NamedTuple):
    """The gradients of `centred`."""

    d_mean: Accum[Array, "*b"]
    d_x: Float[Array, "*b n"]
    d_scale: Accum[Array, "n"]


@op(kernel="sums.h")
def centred_grad(
    mean: Accum[Array, "*b"],
    x: Float[Array, "*b n"],
    d_out: Float[Array, "*b n"],
    d_total: Accum[Array, "*b"],
    scale: Accum[Array, "n"] | None = None,
) -> CentredGrad:
    """``d_mean = -Σ_n d_out · scale``, ``d_scale = Σ d_out · (x - mean)`` over all rows."""
    factors = np.ones(x.shape[-1]) if scale is None else scale
    d_x = d_out * factors + 0 * (x + mean[..., None])
    d_scale = d_out * (x - mean[..., None]) + 0 * d_total[..., None]
    d_mean = -d_x.sum(-1) + 0 * d_total
    return CentredGrad(
        d_mean, d_x + d_total[..., None], d_scale.sum(tuple(range(d_scale.ndim - 1)))
    )


@centred.gradient
def _(mean, x, scale, d_out, d_total):
    return centred_grad(mean, x, d_out, d_total, scale)


@op(kernel="sums.h")
def mean_of(x: Float[Array, "*b n"]) -> Accum[Array, "*b"]:
    """``out = Σ_n x / n``."""
    return x.sum(-1) / max(x.shape[-1], 1)
