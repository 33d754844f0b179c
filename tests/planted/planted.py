# SPDX-License-Identifier: Apache-2.0
"""Ops with one bug each, of the kind that the name says: `nativeops check` must find them all."""

from typing import Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Int, Int32, Kept, op


@op(kernel="planted.h")
def missing_barrier(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Each row backwards."""
    return x[..., ::-1]


@op(kernel="planted.h")
def race_on_a_shared_value(x: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """The sum of each row."""
    return x.sum(-1)


@op(kernel="planted.h")
def histogram_without_atomics(index: Int[Array, "*b n"]) -> Int32[Array, "*b 4"]:
    """How often 0, 1, 2 and 3 stand in each row."""
    return (index[..., None] == np.arange(4)).sum(-2, dtype=np.int32)


@op(kernel="planted.h")
def divergent_barrier(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """The same numbers."""
    return x


@op(kernel="planted.h")
def write_past_the_end(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """The same numbers."""
    return x


@op(kernel="planted.h")
def read_past_the_end(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Differences of neighbours; the last number as it is."""
    return x - np.concatenate([x[..., 1:], np.zeros_like(x[..., :1])], -1)


@op(kernel="planted.h")
def wrong_sign_of_the_kernel(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """The negative of all numbers."""
    return -x


@op(kernel="planted.h")
def product(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Number by number; its kernel is right."""
    return x * y


@op(kernel="planted.h")
def wrong_sign(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Number by number."""
    return x * y


@wrong_sign.gradient
def _(x, y, d_out):
    return product(y, d_out), product(-x, d_out)


@op(kernel="planted.h")
def forgotten_argument(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Number by number."""
    return x * y


@forgotten_argument.gradient
def _(y, d_out):
    return product(y, d_out), None


@op(kernel="planted.h")
def forgotten_alone(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Number by number."""
    return x * y


@forgotten_alone.gradient
def _(x, y, d_out, needs):
    if "d_x" in needs:
        return product(y, d_out), product(x, d_out)
    return None, None


@op(kernel="planted.h")
def rule_for_numpy_alone(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Number by number."""
    return x * y


@rule_for_numpy_alone.gradient
def _(x, y, d_out):
    return product(y.astype(d_out.dtype), d_out), product(x, d_out)


@op(kernel="planted.h")
def number_of_threads(x: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """The sum of each row."""
    return x.sum(-1)


@op(kernel="planted.h")
def number_shared_by_calls(x: Float[Array, "n"]) -> Float[Array, "n"]:  # noqa: F821
    """Each number less the largest."""
    return x - x.max(initial=-np.inf)


@op(kernel="planted.h")
def attribute_shared_by_calls(
    x: Float[Array, "n"],  # noqa: F821
    *,
    factor: float = 1.0,
) -> Float[Array, "n"]:  # noqa: F821
    """Each number times the factor."""
    return x * factor


@op(kernel="planted.h")
def read_before_the_start(
    x: Float[Array, "n"],  # noqa: F821
    index: Int[Array, "m"],  # noqa: F821
) -> Float[Array, "m"]:  # noqa: F821
    """``x[index]``, 0 where there is no such number."""
    padded = np.append(x, 0.0)
    return padded[np.where((index >= 0) & (index < len(x)), index, len(x))]


@op(kernel="planted.h")
def sum_by_atomics(x: Float[Array, "n"]) -> Float[Array, ""]:  # noqa: F821
    """The sum of all numbers."""
    return x.sum()


@op(kernel="planted.h")
def reference_of_some(x: Float[Array, "n"]) -> Float[Array, "n"]:  # noqa: F821
    """Each number less the largest, of which an empty array has none."""
    return x - x.max()


@op(kernel="planted.h")
def two_flags(
    x: Float[Array, "n"],  # noqa: F821
    *,
    twice: bool = False,
    thrice: bool = False,
) -> Float[Array, "n"]:  # noqa: F821
    """Each number, ``twice``, ``thrice`` or six times."""
    return x * (1 + twice) * (1 + 2 * thrice)


@op(kernel="planted.h")
def write_past_the_workspace(x: Float[Array, "n"]) -> Float[Array, "n"]:  # noqa: F821
    """The same numbers."""
    return x.copy()


@op(kernel="planted.h")
def race_between_items(x: Float[Array, "n"]) -> Float[Array, "4"]:  # noqa: F821
    """The sums of every fourth number, each 100 times over its square and one."""
    for _ in range(100):
        x = x / (1 + x * x)
    return np.stack([x[k::4].sum() for k in range(4)])


@op(kernel="planted.h")
def overflowing_size(x: Float[Array, "n"]) -> Float[Array, ""]:  # noqa: F821
    """The sum of all numbers."""
    return x.sum()


@op(kernel="planted.h")
def overflowing_index(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Twice the numbers."""
    return 2 * x


@op(kernel="planted.h")
def overflowing_product(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Twice the numbers."""
    return 2 * x


@op(kernel="planted.h")
def sum_in_single_precision(x: Float[Array, "n"]) -> Float[Array, ""]:  # noqa: F821
    """The sum of all numbers."""
    return x.sum()


@op(kernel="planted.h", independent="n")
def dependent_axis(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """The numbers less their mean; its kernel is right."""
    return x - x.mean(-1, keepdims=True) if x.shape[-1] else x


@op(kernel="planted.h", reuse={"out": "x"})
def reads_what_it_overwrote(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """The next number; the last one as it is."""
    return np.concatenate([x[..., 1:], x[..., -1:]], -1)


@op(kernel="planted.h", reuse={"out": "x"})
def overwrites_what_it_reads(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Each row backwards."""
    return x[..., ::-1].copy()


@op(kernel="planted.h")
def negative_shift(x: Float[Array, "*b n"], *, k: int = 1) -> Float[Array, "*b n"]:
    """Each row turned by k places."""
    return np.roll(x, k, -1)


@op(kernel="planted.h")
def negative_slope(x: Float[Array, "*b n"], *, slope: float = 0.5) -> Float[Array, "*b n"]:
    """The numbers, those below 0 times the slope."""
    return np.where(x < 0, slope * x, x)


@op(kernel="planted.h")
def second_block(x: Float[Array, "n"]) -> Float[Array, "n"]:  # noqa: F821
    """The numbers less the first."""
    return x - x[:1]


class Doubled(NamedTuple, Generic[Array]):
    """The double, and what a gradient would need."""

    double: Float[Array, "*b n"]
    same: Kept[Float[Array, "*b n"]]


@op(kernel="planted.h")
def write_of_what_nobody_keeps(x: Float[Array, "*b n"]) -> Doubled[Array]:
    """Twice all numbers, and they themselves."""
    return Doubled(x + x, x)
