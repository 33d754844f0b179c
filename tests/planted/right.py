# SPDX-License-Identifier: Apache-2.0
"""Ops without a bug in which one might be seen: `nativeops check` must not."""

import numpy as np

from nativeops.declare import Array, Float, op


@op(kernel="right.h")
def running_sum(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """The sum up to each number: no two places have the same."""
    return x.cumsum(-1)


@op(kernel="right.h")
def beyond_half_precision(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Numbers of which float16 holds few."""
    return 1e5 * x


@op(kernel="right.h")
def scaled_rows(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Three times each number."""
    return 3 * x


@scaled_rows.example
def _(random, given):
    """In Fortran's order."""
    return {"x": np.asfortranarray(random.standard_normal((given["n"], given["d"])))}


@scaled_rows.gradient
def _(d_out):
    return scaled_rows(d_out)


@op(kernel="right.h")
def rotated(
    x: Float[Array, "n 2*d"], cos: Float[Array, "n d"], sin: Float[Array, "n d"]
) -> Float[Array, "n 2*d"]:
    """Pairs of neighbours turned.

    A compiler may fuse either product with the sum, and does it otherwise where numbers lie apart.
    """
    a, b = x[:, ::2], x[:, 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


@op(kernel="right.h")
def twice_by_reading_it(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Twice all numbers: one is added to what the kernel wrote before."""
    return x + x
