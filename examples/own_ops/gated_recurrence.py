# SPDX-License-Identifier: Apache-2.0
"""A gated recurrence: a moving average whose memory is told for each step and channel."""

from typing import NamedTuple

import numpy as np

from nativeops.declare import Array, Float, op


@op(kernel="gated_recurrence.h")
def gated_recurrence(
    x: Float[Array, "*b t n"], f: Float[Array, "*b t n"], h0: Float[Array, "*b n"]
) -> Float[Array, "*b t n"]:
    """``h[t] = f[t] · h[t-1] + (1 - f[t]) · x[t]`` with ``h[-1] = h0``, for each channel.

    Gradient: for all three; the arguments and the result are kept for it.
    Cost: O(t·n) time; a workspace of 256 numbers for each team.

    >>> x, f = np.array([[8.0], [8.0]]), np.array([[0.5], [0.5]])
    >>> gated_recurrence(x, f, np.array([0.0]))
    array([[4.],
           [6.]])
    """
    lead = np.broadcast_shapes(x.shape[:-2], f.shape[:-2], h0.shape[:-1])
    h = np.zeros((*lead, *x.shape[-2:]))
    for t in range(x.shape[-2]):
        before = h[..., t - 1, :] if t else h0
        h[..., t, :] = f[..., t, :] * before + (1 - f[..., t, :]) * x[..., t, :]
    return h


class GatedRecurrenceGrad(NamedTuple):
    """The gradients of the arguments of `gated_recurrence`."""

    d_x: Float[Array, "*b t n"]
    d_f: Float[Array, "*b t n"]
    d_h0: Float[Array, "*b n"]


@op(kernel="gated_recurrence.h")
def gated_recurrence_grad(
    x: Float[Array, "*b t n"],
    f: Float[Array, "*b t n"],
    h0: Float[Array, "*b n"],
    out: Float[Array, "*b t n"],
    d_out: Float[Array, "*b t n"],
) -> GatedRecurrenceGrad:
    """What flows back through `gated_recurrence`, from the last step to the first."""
    x, f, out, d_out = np.broadcast_arrays(x, f, out, d_out)
    h0 = np.broadcast_to(h0, (*x.shape[:-2], x.shape[-1]))
    d_x, d_f, back = np.zeros(x.shape), np.zeros(x.shape), np.zeros(h0.shape)
    for t in reversed(range(x.shape[-2])):
        d = d_out[..., t, :] + back
        before = out[..., t - 1, :] if t else h0
        d_x[..., t, :] = (1 - f[..., t, :]) * d
        d_f[..., t, :] = (before - x[..., t, :]) * d
        back = f[..., t, :] * d
    return GatedRecurrenceGrad(d_x, d_f, back)


@gated_recurrence.gradient
def _(x, f, h0, out, d_out):
    return gated_recurrence_grad(x, f, h0, out, d_out)
