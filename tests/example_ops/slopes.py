# SPDX-License-Identifier: Apache-2.0
"""Kept results that a gradient rule computes with, instead of handing them to an op."""

from typing import NamedTuple

from nativeops.declare import Array, Float, Kept, op


class Squared(NamedTuple):
    """The result of `square` and of `smooth_square`."""

    y: Float[Array, "*b n"]
    slope: Kept[Float[Array, "*b n"]]


@op(kernel="slopes.h")
def square(x: Float[Array, "*b n"]) -> Squared:
    """``y = x²`` with ``slope = 2 · x``. Its rule knows of no gradient through ``slope``."""
    return Squared(x * x, 2 * x)


@square.gradient
def _(slope, d_y):
    return d_y * slope


@op(kernel="slopes.h")
def smooth_square(x: Float[Array, "*b n"]) -> Squared:
    """The same; its rule takes what flows into ``slope``, so it has all derivatives."""
    return Squared(x * x, 2 * x)


@smooth_square.gradient
def _(slope, d_y, d_slope):
    return d_y * slope + 2 * d_slope
