# SPDX-License-Identifier: Apache-2.0
"""lstm_layer: what is true of it alone; recurrent_test.py has what is true of all such layers."""

import numpy as np
import pytest

from nativeops import lstm_layer
from nativeops.testing.aspects import levels, selected

OPEN, SHUT = 1e4, -1e4  # sums at which a gate is 1, exactly, or nearly 0
NOTHING = 1e-37


def gated(i: float, f: float, g: float, o: float, steps: int, c_0: np.ndarray):
    """A layer whose gates do not depend on its input."""
    units = c_0.shape[1]
    bias = np.repeat(np.array([i, f, g, o], c_0.dtype), units)
    x, zeros = np.ones((steps, len(c_0), 1), c_0.dtype), np.zeros((4 * units, 1), c_0.dtype)
    return lstm_layer(x, zeros, np.zeros((4 * units, units), c_0.dtype), bias, c_0=c_0)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_open_forget_gate_keeps_the_cell_for_ever(level: str, dtype: str) -> None:
    c_0 = np.random.default_rng(0).standard_normal((3, 21)).astype(dtype)
    with selected(level):
        found = gated(SHUT, OPEN, 0.7, OPEN, 1000, c_0)
    assert np.array_equal(found.c_n, c_0)
    np.testing.assert_allclose(found.output, np.tile(np.tanh(c_0), (1000, 1, 1)), atol=2e-7)


@pytest.mark.parametrize("level", levels())
def test_open_gates_count_steps(level: str) -> None:
    with selected(level):
        found = gated(OPEN, OPEN, OPEN, OPEN, 1000, np.zeros((2, 19), np.float32))
    assert np.array_equal(found.c_n, np.full((2, 19), 1000, np.float32))
    assert np.array_equal(found.output[-1], np.ones((2, 19), np.float32))


@pytest.mark.parametrize("level", levels())
def test_shut_gates_forget_and_hide(level: str) -> None:
    c_0 = np.ones((2, 19), np.float32)
    with selected(level):
        empty = gated(SHUT, SHUT, OPEN, OPEN, 1, c_0)
        hidden = gated(OPEN, OPEN, OPEN, SHUT, 3, c_0)
    assert np.abs(empty.c_n).max() <= NOTHING
    assert np.abs(hidden.output).max() <= NOTHING
    assert np.array_equal(hidden.c_n, 4 * c_0)


def with_peepholes(i: float, f: float, o: float, c_0: float, level: str) -> np.ndarray:
    """The cell after one step in which only peepholes open gates, and the output."""
    peepholes = np.repeat(np.array([i, f, o], float), 19)
    x, zeros, cells = np.ones((1, 2, 1)), np.zeros((76, 1)), np.full((2, 19), float(c_0))
    bias = np.repeat([0.0, 0.0, OPEN, 0.0], 19)  # g = 1
    with selected(level):
        made = lstm_layer(x, zeros, np.zeros((76, 19)), bias, c_0=cells, peepholes=peepholes)
    assert np.ptp(made.c_n) == np.ptp(made.output) == 0
    return np.array([made.c_n[0, 0], made.output[0, 0, 0]])


@pytest.mark.parametrize("level", levels())
def test_input_and_forget_gate_see_the_cell_before_output_gate_the_one_after(level: str) -> None:
    half = 0.5
    np.testing.assert_allclose(with_peepholes(OPEN, 0, 0, 2, level)[0], half * 2 + 1, rtol=1e-13)
    np.testing.assert_allclose(with_peepholes(0, OPEN, 0, 2, level)[0], 2 + half, rtol=1e-13)
    cell, output = with_peepholes(0, 0, OPEN, 2, level)
    np.testing.assert_allclose([cell, output], [1.5, np.tanh(1.5)], rtol=1e-13)
    cell, output = with_peepholes(0, 0, 2, -1, level)  # the cell after the step is 0
    assert (cell, output) == (0, 0)
    cell, output = with_peepholes(0, 0, 2, 0, level)  # before it is 0, after it is 0.5
    np.testing.assert_allclose(output, np.tanh(0.5) / (1 + np.exp(-1.0)), rtol=1e-13)
