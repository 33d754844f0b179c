# SPDX-License-Identifier: Apache-2.0
"""Huber's function and its gradient."""

from typing import Annotated

import numpy as np

from nativeops.declare import Array, AtLeast, Float, op


@op(kernel="huber.h")
def huber(
    x: Float[Array, "*b n"], *, delta: Annotated[float, AtLeast(0)] = 1.0
) -> Float[Array, "*b n"]:
    """``out[i] = x[i]^2 / 2`` where ``|x[i]| <= delta``, else ``delta (|x[i]| - delta / 2)``."""
    size = np.abs(x)
    return np.where(size <= delta, x * x / 2, delta * (size - delta / 2))


@op(kernel="huber.h")
def huber_grad(
    x: Float[Array, "*b n"],
    d_out: Float[Array, "*b n"],
    *,
    delta: Annotated[float, AtLeast(0)] = 1.0,
) -> Float[Array, "*b n"]:
    """What flows back: ``d_x[i] = d_out[i] min(max(x[i], -delta), delta)``."""
    return d_out * np.clip(x, -delta, delta)


@huber.gradient
def _(x, d_out, delta):
    return huber_grad(x, d_out, delta=delta)
