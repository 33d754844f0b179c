# SPDX-License-Identifier: Apache-2.0
"""gru_layer: what is true of it alone; recurrent_test.py has what is true of all such layers."""

import numpy as np
import pytest

from nativeops import gru_layer
from nativeops.testing.aspects import levels, selected

OPEN, SHUT = 1e4, -1e4  # sums at which a gate is 1 or 0, exactly


def gated(r: float, z: float, n_x: float, n_h: float, steps: int, h_0: np.ndarray):
    """A layer whose sums are biases alone: of the gates, and of n from both sides."""
    units, dtype = h_0.shape[1], h_0.dtype
    b_ih = np.repeat(np.array([r, z, n_x], dtype), units)
    b_hh = np.repeat(np.array([0, 0, n_h], dtype), units)
    x, zeros = np.ones((steps, len(h_0), 1), dtype), np.zeros((3 * units, 1), dtype)
    return gru_layer(x, zeros, np.zeros((3 * units, units), dtype), b_ih, b_hh, h_0).output


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_open_update_gate_keeps_the_state_for_ever(level: str, dtype: str) -> None:
    h_0 = np.random.default_rng(0).standard_normal((3, 21)).astype(dtype)
    with selected(level):
        found = gated(0.3, OPEN, 0.7, 0.2, 1000, h_0)
    unit = np.finfo(h_0.dtype).eps  # the state is not multiplied, so that errors do not grow
    np.testing.assert_allclose(found, np.tile(h_0, (1000, 1, 1)), rtol=0, atol=4 * unit)


@pytest.mark.parametrize("level", levels())
def test_shut_update_gate_forgets_the_state(level: str) -> None:
    h_0 = np.ones((2, 19))
    with selected(level):
        found = gated(0.0, SHUT, 0.7, 0.4, 3, h_0)
    np.testing.assert_allclose(found, np.full((3, 2, 19), np.tanh(0.7 + 0.5 * 0.4)), rtol=1e-14)


@pytest.mark.parametrize("level", levels())
def test_reset_gate_is_applied_behind_the_product_and_its_bias(level: str) -> None:
    h_0 = np.ones((2, 19))
    with selected(level):
        shut, wide = gated(SHUT, SHUT, 0.7, 0.4, 1, h_0), gated(OPEN, SHUT, 0.7, 0.4, 1, h_0)
    np.testing.assert_allclose(shut, np.full((1, 2, 19), np.tanh(0.7)), rtol=1e-14)
    np.testing.assert_allclose(wide, np.full((1, 2, 19), np.tanh(0.7 + 0.4)), rtol=1e-14)


@pytest.mark.parametrize("level", levels())
def test_reset_gate_may_be_applied_before_the_product(level: str) -> None:
    h_0, bias = np.ones((2, 19)), np.repeat(np.array([0, SHUT, 0.7]), 19)
    w_hh = np.concatenate([np.zeros((38, 19)), np.full((19, 19), 0.3 / 19)])
    x, w_ih, b_hh = np.ones((1, 2, 1)), np.zeros((57, 1)), np.repeat([0.0, 0.0, 0.4], 19)
    with selected(level):
        before, behind = (
            gru_layer(x, w_ih, w_hh, bias, b_hh, h_0, linear_before_reset=how).output
            for how in (False, True)
        )
    np.testing.assert_allclose(before, np.full((1, 2, 19), np.tanh(1.1 + 0.15)), rtol=1e-14)
    np.testing.assert_allclose(behind, np.full((1, 2, 19), np.tanh(0.7 + 0.35)), rtol=1e-14)
