# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers take no more memory than stated, and the same numbers come from less of it."""

import numpy as np
import pytest

from nativeops.ops.recurrent_test import both_ways, each_level
from nativeops.testing.aspects import selected
from nativeops.testing.marks import tuned, without_sanitizer
from nativeops.testing.recurrent import (
    GRU,
    LSTM,
    PEEPHOLES,
    PROJECTED,
    RESET_FIRST,
    Kind,
    draw,
    draw_arriving,
    forward_backward,
)
from nativeops.testing.recurrent_memory import peak

SIZES = (1500, 16, 64, 128)
NUMBERS = 4 * 1500 * 16 * 128  # bytes of one number a unit and step
SLACK = 4 << 20  # packed weights, and the pages around arrays
# In `NUMBERS`: the output, what training keeps beyond it, also in low memory, and the most that a
# gradient works in, with d_x, which is half of one.
STATED = {
    LSTM: (1, 5, 1, 4.5),
    PROJECTED: (0.5, 5, 1, 6),  # 5·h + p of workspace
    GRU: (1, 4, 0, 4.5),
    RESET_FIRST: (1, 3, 0, 4.5),
}
each_stated = pytest.mark.parametrize("kind", STATED, ids=str)
either_memory = pytest.mark.parametrize("low_memory", [False, True])


@each_level
@both_ways
@pytest.mark.parametrize("kind", [GRU, RESET_FIRST, LSTM, PEEPHOLES, PROJECTED], ids=str)
def test_low_memory_changes_nothing_but_rounding(kind: Kind, level: str, reverse: bool) -> None:
    given = draw(kind, (30, 7, 20, 33), reverse=reverse)
    arriving = draw_arriving(kind, given)
    with selected(level):
        plain = forward_backward(kind, given, arriving)
        low = forward_backward(kind, {**given, "low_memory": True}, arriving)
    assert low.pop("gates").size == 0
    for name, array in low.items():
        np.testing.assert_allclose(array, plain[name], rtol=1e-10, atol=1e-12, err_msg=name)


@without_sanitizer
@pytest.mark.parametrize("kind", [LSTM, PROJECTED, GRU], ids=str)
def test_inference_keeps_no_gates(kind: Kind) -> None:
    assert peak(kind, SIZES, "inference") <= STATED[kind][0] * NUMBERS + SLACK


@without_sanitizer
@either_memory
@each_stated
def test_training_keeps_no_more_than_stated(kind: Kind, low_memory: bool) -> None:
    output, kept = STATED[kind][0], STATED[kind][1 + low_memory]
    used = peak(kind, SIZES, "training", low_memory=low_memory)
    assert used <= (output + kept) * NUMBERS + SLACK


@without_sanitizer
@tuned
@either_memory
@each_stated
def test_gradient_works_in_the_stated_memory(kind: Kind, low_memory: bool) -> None:
    used = peak(kind, SIZES, "gradient", low_memory=low_memory)
    assert used <= STATED[kind][3] * NUMBERS + 2 * SLACK


@without_sanitizer
@tuned
@pytest.mark.parametrize("layout", ["batch first", "inputs first"])
@pytest.mark.parametrize("kind", [LSTM, GRU], ids=str)
def test_inputs_are_never_copied_as_a_whole(kind: Kind, layout: str) -> None:
    steps, batch, inputs, units = sizes = (1500, 16, 512, 16)
    x, output = 4 * steps * batch * inputs, 4 * steps * batch * units
    assert peak(kind, sizes, "inference", layout) <= output + SLACK
    assert peak(kind, sizes, "gradient", layout) <= x + 4 * output + 2 * SLACK  # d_x is as large
