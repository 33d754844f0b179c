# SPDX-License-Identifier: Apache-2.0
"""The gradient rule against slopes: no false alarm, and no rule that slips through."""

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


def double(x: Float[Array, "n"]) -> Float[Array, "n"]:
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
    assert findings(double, rule) == bug


def test_what_no_size_fits_is_said_to_be_unchecked():
    @op(kernel="none_is_needed.h")
    def shorter(x: Float[Array, "n"]) -> Float[Array, "n-100"]:
        return x[100:]

    shorter.gradient(lambda d_out: d_out)
    assert [type(step) for step in gradient.steps(shorter)] == [Unchecked]


def test_large_sizes_leave_out_results_without_elements():
    @op(kernel="none_is_needed.h")
    def steps_of(x: Float[Array, "*b n"]) -> Float[Array, "*b n-1"]:
        return np.diff(x)

    assert not large.Large(steps_of, ("*",)).possible()
    assert large.Large(steps_of, ("n",)).possible()
