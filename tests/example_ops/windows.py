# SPDX-License-Identifier: Apache-2.0
"""Sizes that are arithmetic over axes and attributes: in the axis' string, or as a rule."""

from typing import Annotated, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, Float, Size, maximum, op

Count = Annotated[int, AtLeast(1)]


@op(kernel="windows.h")
def moving_sum(x: Float[Array, "*b t d"], *, k: Count) -> Float[Array, "*b t-k+1 d"]:
    """``out[i] = Σ_j x[i + j]`` for ``j < k``."""
    return sum(x[..., j : x.shape[-2] - k + 1 + j, :] for j in range(k))


@op(kernel="windows.h")
def moving_sum_grad(back: Float[Array, "*b u d"], *, k: Count) -> Float[Array, "*b u+k-1 d"]:
    """``d_x[i] = Σ_j back[i - j]`` for ``j < k``, where ``back`` arrives at the sums."""
    pad = [(0, 0)] * (back.ndim - 2) + [(k - 1, k - 1), (0, 0)]
    padded = np.pad(back, pad)
    return sum(padded[..., j : back.shape[-2] + k - 1 + j, :] for j in range(k))


@moving_sum.gradient
def _(d_out, k):
    return moving_sum_grad(d_out, k=k)


@moving_sum_grad.gradient  # both are linear, and each is the other's transpose
def _(d_out, k):
    return moving_sum(d_out, k=k)


@op(kernel="windows.h")
def interleave(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b 2*n"]:
    """``x`` at even places, ``y`` at odd ones."""
    lead = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    pair = [np.broadcast_to(a, (*lead, x.shape[-1])) for a in (x, y)]
    return np.stack(pair, -1).reshape(*lead, 2 * x.shape[-1])


class InterleaveGrad(NamedTuple):
    """The gradients of both arguments of `interleave`."""

    d_x: Float[Array, "*b n"] | None
    d_y: Float[Array, "*b n"] | None


@op(kernel="windows.h")
def interleave_grad(x: Float[Array, "*b n"], d_out: Float[Array, "*b 2*n"]) -> InterleaveGrad:
    """The even and the odd places of ``d_out``; ``x`` only tells ``n``."""
    lead = np.broadcast_shapes(x.shape[:-1], d_out.shape[:-1])
    whole = np.broadcast_to(d_out, (*lead, d_out.shape[-1]))
    return InterleaveGrad(whole[..., ::2], whole[..., 1::2])


@interleave.gradient
def _(x, d_out, needs):
    return interleave_grad.only(needs)(x, d_out)


@op(kernel="windows.h")
def copies(x: Float[Array, "n"], *, count: int) -> Float[Array, "count n"]:
    """``out[i] = x`` for ``i < count``, a number without a bound."""
    return np.tile(x, (count, 1))


@op(kernel="windows.h")
def pieces(
    x: Float[Array, "t d"], *, size: Count = 3, step: Count = 2
) -> Float[Array, "piece size d"]:
    """Overlapping pieces of a sequence; beyond its end they are 0."""
    n_pieces = max(x.shape[0] - size + step - 1, 0) // step + 1
    padded = np.pad(x, ((0, n_pieces * step + size), (0, 0)))
    return np.stack([padded[i * step : i * step + size] for i in range(n_pieces)])


@pieces.axis("piece")
def _(t, size, step) -> Size:
    return maximum(t - size + step - 1, 0) // step + 1


@op(kernel="windows.h")
def pieces_grad(
    x: Float[Array, "t d"], d_out: Float[Array, "piece size d"], *, size: Count, step: Count
) -> Float[Array, "t d"]:
    """Each piece added back where it came from."""
    total = np.zeros((d_out.shape[0] * step + size + x.shape[0], x.shape[1]))
    for i, piece in enumerate(d_out):
        total[i * step : i * step + size] += piece
    return total[: x.shape[0]]


@pieces_grad.example
def _(random, given):
    shape = (given["piece"], given["size"], given["d"])
    x = random.standard_normal((given["t"], given["d"]))
    return {"x": x, "d_out": random.standard_normal(shape)}


@pieces.gradient
def _(x, d_out, size, step):
    return pieces_grad(x, d_out, size=size, step=step)
