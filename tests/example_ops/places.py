# SPDX-License-Identifier: Apache-2.0
"""Results that may take over an input's memory."""

from typing import NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Kept, op


@op(kernel="places.h", reuse={"out": "x"})
def gate(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """``x · y``, element by element."""
    return x * y


@gate.gradient
def _(x, y, d_out):
    return gate(d_out, y), gate(d_out, x)


class Running(NamedTuple):
    """The result of `running`."""

    total: Float[Array, "*b t d"]
    first: Kept[Float[Array, "*b d"]]


@op(kernel="places.h", reuse={"total": "x"})
def running(x: Float[Array, "*b t d"]) -> Running:
    """``total[t] = Σ_s x[s]² / 2`` for ``s <= t``."""
    first = x[..., 0, :] if x.shape[-2] else np.zeros((*x.shape[:-2], x.shape[-1]))
    return Running((x * x / 2).cumsum(-2), first)


@op(kernel="places.h")
def running_grad(
    x: Float[Array, "*b t d"], d_total: Float[Array, "*b t d"]
) -> Float[Array, "*b t d"]:
    """``d_x[s] = x[s] · Σ_t d_total[t]`` for ``t >= s``."""
    return x * d_total[..., ::-1, :].cumsum(-2)[..., ::-1, :]


@running.gradient
def _(x, d_total):
    return running_grad(x, d_total)
