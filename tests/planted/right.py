# SPDX-License-Identifier: Apache-2.0
"""Ops without a bug in which one might be seen: `nativeops check` must not."""

from nativeops.declare import Array, Float, op


@op(kernel="right.h")
def running_sum(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """The sum up to each number: no two places have the same."""
    return x.cumsum(-1)


@op(kernel="right.h")
def beyond_half_precision(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Numbers of which float16 holds few."""
    return 1e5 * x
