# SPDX-License-Identifier: Apache-2.0
"""Inputs that a caller may leave away."""

from typing import NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Int, op


@op(kernel="absent.h")
def pool(
    x: Float[Array, "*n b t d"],
    lengths: Int[Array, "*n b"] | None = None,
    weight: Float[Array, "*n t"] | None = None,
) -> Float[Array, "*n b d"]:
    """``out[b] = Σ_t x[b,t] · weight[t]`` for ``t < lengths[b]``; all ``t``, weights of 1."""
    factors = np.ones(x.shape[-2:-1]) if weight is None else weight
    shown = _shown(x.shape[-2], lengths) * factors[..., None, :]
    return (x * shown[..., None]).sum(-2)


def _shown(t, lengths):
    """Which steps count, per sequence."""
    return np.ones((1, t)) if lengths is None else np.arange(t) < lengths[..., None]


class PoolGrad(NamedTuple):
    """The gradients of `pool`."""

    d_x: Float[Array, "*n b t d"] | None
    d_weight: Float[Array, "*n t"] | None


@op(kernel="absent.h")
def pool_grad(
    x: Float[Array, "*n b t d"],
    d_out: Float[Array, "*n b d"],
    lengths: Int[Array, "*n b"] | None = None,
    weight: Float[Array, "*n t"] | None = None,
) -> PoolGrad:
    """``d_x[b,t] = d_out[b] · weight[t]``, ``d_weight[t] = Σ_bd d_out[b,d] · x[b,t,d]``."""
    factors = np.ones(x.shape[-2:-1]) if weight is None else weight
    shown = _shown(x.shape[-2], lengths)
    lead = () if lengths is None else lengths.shape[:-1]
    lead = np.broadcast_shapes(lead, x.shape[:-3], d_out.shape[:-2], factors.shape[:-1])
    back = d_out[..., None, :] * shown[..., None]
    d_x = np.broadcast_to(back * factors[..., None, :, None], (*lead, *x.shape[-3:]))
    d_weight = np.broadcast_to((back * x).sum((-3, -1)), (*lead, x.shape[-2]))
    return PoolGrad(d_x, d_weight)


@pool.gradient
def _(x, lengths, weight, d_out, needs):
    return pool_grad.only(needs)(x, d_out, lengths, weight)


@op(kernel="absent.h")
def project(
    x: Float[Array, "*n d"],
    bias: Float[Array, "*n d"] | None = None,
    matrix: Float[Array, "*n d k"] | None = None,
) -> Float[Array, "*n d"]:
    """``out = x + bias + Σ_k matrix[k]``, without what is absent; nothing else tells ``k``."""
    total = x if bias is None else x + bias
    return total if matrix is None else total + matrix.sum(-1)


class ProjectGrad(NamedTuple):
    """The gradients of `project`; without a matrix its gradient has no elements."""

    d_x: Float[Array, "*n d"] | None
    d_bias: Float[Array, "*n d"] | None
    d_matrix: Float[Array, "*n d k"] | None


@op(kernel="absent.h")
def project_grad(
    d_out: Float[Array, "*n d"], matrix: Float[Array, "*n d k"] | None = None
) -> ProjectGrad:
    """``d_out``, for the matrix repeated ``k`` times."""
    lead = () if matrix is None else matrix.shape[:-2]
    back = np.broadcast_to(d_out, (*np.broadcast_shapes(lead, d_out.shape[:-1]), d_out.shape[-1]))
    k = 0 if matrix is None else matrix.shape[-1]
    return ProjectGrad(back, back, np.repeat(back[..., None], k, -1))


@project.gradient
def _(matrix, d_out, needs):
    return project_grad.only(needs)(d_out, matrix)


@op(kernel="absent.h")
def outer(x: Float[Array, "n"], y: Float[Array, "m"] | None = None) -> Float[Array, "n m"]:
    """``out[n,m] = x[n] · y[m]``: without ``y`` it has no size."""
    return x[:, None] * y
