# SPDX-License-Identifier: Apache-2.0
"""The gradient rule against slopes: no false alarm, and no rule that slips through."""

import sys
from typing import NamedTuple

import numpy as np
import pytest

from nativeops.checking import gradient, large
from nativeops.checking.finding import Finding, Unchecked
from nativeops.declare import Array, Float, op


def findings(reference, rule) -> list[str]:
    """What the check finds; only references are computed, so that no kernel is needed."""
    declared = op(kernel="none_is_needed.h")(reference)
    declared.gradient(rule)
    return [step.bug for step in gradient.steps(declared) if isinstance(step, Finding)]


def far(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x + 1e5


def doubled(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x * 2


def test_rounding_of_large_values_is_no_bug():
    assert findings(far, lambda d_out: d_out) == []


@pytest.mark.parametrize(
    ("rule", "bug"),
    [
        (lambda d_out: 2 * d_out, []),
        (lambda d_out: 2.0001 * d_out, ["gradient of `x` is wrong"]),
        (lambda d_out: d_out * np.nan, ["gradient of `x` is wrong"]),
        (lambda d_out: -2 * d_out, ["gradient of `x` has the wrong sign"]),
        (lambda d_out: None, ["gradient of `x` is forgotten"]),
    ],
)
def test_rule_is_compared_with_slopes(rule, bug):
    assert findings(doubled, rule) == bug


def test_rule_for_one_input_that_returns_a_dict_is_told():
    assert findings(doubled, lambda d_out: {"d_x": d_out}) == ["the gradient rule returns a dict"]


def product(x: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, "n"]:
    return x * y


def both(x, y, d_out, needs):
    return (
        y * d_out if "d_x" in needs else None,
        x * d_out if "d_y" in needs else None,
    )


def swapped(x, y, d_out, needs):
    return (y * d_out, None) if needs == ("d_y",) else both(x, y, d_out, needs)


def short(x, y, d_out, needs):
    return y * d_out if needs == ("d_x",) else both(x, y, d_out, needs)


def negative(x, y, d_out, needs):
    return y * d_out, x * d_out * (1 if "d_x" in needs else -1)


def sums(x, y, d_out, needs):
    d_x, d_y = both(x, y, d_out, needs)
    return d_x, d_y + 0 * d_x


@pytest.mark.parametrize(
    ("rule", "bug"),
    [
        (both, []),
        (swapped, ["gradient of `y` is forgotten where nothing else is needed"]),
        (short, ["gradient of `y` is forgotten where nothing else is needed"]),
        (sums, ["the gradient rule fails where nothing else is needed"]),
        (lambda x, y, d_out, needs: both(x, y, d_out, ("d_x", "d_y")), []),
        (lambda d_out: None, ["the gradient rule returns nothing"]),
        (lambda d_out: {"d_x": d_out, "d_y": d_out}, ["the gradient rule returns a dict"]),
        (lambda d_out: d_out, ["gradient of `y` is forgotten"]),
        (lambda d_out: (d_out,) * 3, ["too many gradients"]),
        (negative, ["gradient of `y` has the wrong sign where nothing else is needed"]),
    ],
)
def test_rule_is_asked_for_each_gradient_alone(rule, bug):
    assert findings(product, rule) == bug


def test_unwanted_gradient_of_an_op_is_none_in_a_rule_as_in_a_call():
    class Both(NamedTuple):
        d_x: Float[Array, "n"] | None
        d_y: Float[Array, "n"] | None

    @op(kernel="none_is_needed.h")
    def product_grad(x: Float[Array, "n"], y: Float[Array, "n"], d_out: Float[Array, "n"]) -> Both:
        return Both(y * d_out, x * d_out)

    def rule(x, y, d_out, needs):
        made = product_grad.only(needs)(x, y, d_out)
        return made.d_x, 1 * made.d_y

    bug = "the gradient rule fails where nothing else is needed"
    assert findings(product, rule) == [bug]


def test_rule_that_raises_is_told_with_its_line():
    def rule(d_out):
        rule.line = sys._getframe().f_lineno + 1
        raise ValueError(d_out.size)

    declared = op(kernel="none_is_needed.h")(doubled)
    declared.gradient(rule)
    (found,) = (step for step in gradient.steps(declared) if isinstance(step, Finding))
    assert (found.bug, found.file, found.line) == ("the gradient rule fails", __file__, rule.line)


def test_what_no_size_fits_is_said_to_be_unchecked():
    @op(kernel="none_is_needed.h")
    def impossible(x: Float[Array, "n"]) -> Float[Array, "0-n-1"]:
        return x

    impossible.gradient(lambda d_out: d_out)
    assert [type(step) for step in gradient.steps(impossible)] == [Unchecked]


def test_large_sizes_leave_out_results_without_elements():
    @op(kernel="none_is_needed.h")
    def steps_of(x: Float[Array, "*b n"]) -> Float[Array, "*b n-1"]:
        return np.diff(x)

    assert not large.Large(steps_of, ("*",)).possible()
    assert large.Large(steps_of, ("n",)).possible()


def test_large_sizes_of_a_matrix_of_equal_sides_are_not_tried():
    @op(kernel="none_is_needed.h")
    def of_squares(x: Float[Array, "n n"], y: Float[Array, "m"]) -> Float[Array, "n"]:
        return x[0] * len(y)

    left, tried = large.Large(of_squares, ("n",)), large.Large(of_squares, ("m",))
    assert left.n_bytes(left.largest) > large.MOST_BYTES > tried.n_bytes(tried.largest)


@pytest.mark.parametrize(
    ("axes", "limits"),
    [
        (("n",), {2**27 - 1: "2^31 bytes", 2**30 - 1: "2^31"}),
        (("m",), {2**28 - 1: "2^31 bytes", 2**31 - 1: "2^31"}),
        (("n", "m"), {46340: "2^31"}),
    ],
)
def test_limits_are_where_the_largest_array_has_them(axes, limits):
    @op(kernel="none_is_needed.h")
    def twice(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, "2*n"]:
        return np.concatenate([x, x]) * y[0]

    run = large.Large(twice, axes)
    assert run.limits() == limits
    assert {one + step for one in limits for step in (0, 4)} - {2**31 + 3} < {
        *run.below(),
        run.largest,
    }
