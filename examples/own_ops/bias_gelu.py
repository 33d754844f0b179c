# SPDX-License-Identifier: Apache-2.0
"""A bias and GELU in one pass, as after each matrix product of a transformer."""

from typing import Any, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, op


def normal_share(s: Any) -> Any:
    """The share of a normal distribution below ``s``."""
    from scipy.special import ndtr

    return ndtr(s)


@op(kernel="bias_gelu.h")
def bias_gelu(x: Float[Array, "*b n"], bias: Float[Array, "n"]) -> Float[Array, "*b n"]:
    """``out[i] = s Φ(s)`` with ``s = x[i] + bias[i]``: GELU by its definition, with erf.

    Gradient: for ``x`` and ``bias``, in one pass.
    Cost: O(n) time; no memory beyond the result.
    Same as: ``torch.nn.functional.gelu(x + bias)``.

    >>> bias_gelu(np.array([-1.0, 9.0]), np.array([1.0, 1.0]))
    array([ 0., 10.])
    """
    s = x + bias
    return s * normal_share(s)


class BiasGeluGrad(NamedTuple):
    """The gradients of both arguments of `bias_gelu`."""

    d_x: Float[Array, "*b n"]
    d_bias: Float[Array, "n"]


@op(kernel="bias_gelu.h")
def bias_gelu_grad(
    x: Float[Array, "*b n"], bias: Float[Array, "n"], d_out: Float[Array, "*b n"]
) -> BiasGeluGrad:
    """``d_x[i] = d_out[i] (Φ(s) + s Φ'(s))``; ``d_bias`` is its sum over all leading axes.

    Cost: O(n) time; a workspace of 1/32 of ``x``, on a GPU of up to 1/4 of one that is small.
    """
    s = x + bias
    d_x = d_out * (normal_share(s) + s * np.exp(-s * s / 2) / np.sqrt(2 * np.pi))
    return BiasGeluGrad(d_x, d_x.sum(tuple(range(d_x.ndim - 1))))


@bias_gelu.gradient
def _(x, bias, d_out):
    return bias_gelu_grad(x, bias, d_out)
