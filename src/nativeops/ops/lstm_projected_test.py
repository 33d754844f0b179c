# SPDX-License-Identifier: Apache-2.0
"""lstm_projected_layer: what is true of it alone; recurrent_test.py has what is true of all."""

import numpy as np
import pytest

from nativeops import lstm_layer, lstm_projected_layer
from nativeops.errors import ShapeError
from nativeops.ops.recurrent_test import check_close
from nativeops.testing.aspects import levels, selected
from nativeops.testing.recurrent import (
    LSTM,
    PROJECTED,
    as_dtype,
    draw,
    draw_arriving,
    forward_backward,
)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_projection_that_changes_nothing_gives_the_plain_layer(level: str, dtype: str) -> None:
    given = draw(LSTM, (9, 5, 4, 37), "any", dtype=dtype)
    arriving = draw_arriving(LSTM, given)
    with selected(level):
        plain = forward_backward(LSTM, given, arriving)
        given["w_hr"] = np.eye(37, dtype=dtype)
        found = forward_backward(PROJECTED, given, arriving)
    check_close(found, as_dtype(plain, "float64"), 1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("level", levels())
def test_projection_of_zeros_hides_a_cell_that_goes_on(level: str) -> None:
    given = draw(LSTM, (9, 5, 4, 20), None)
    given["w_hh"] = np.zeros((80, 3))
    del given["h_0"]
    with selected(level):
        found = lstm_projected_layer(w_hr=np.zeros((3, 20)), **given)
        plain = lstm_layer(**{**given, "w_hh": np.zeros((80, 20))})
    assert not found.output.any()
    np.testing.assert_allclose(found.c_n, plain.c_n, rtol=1e-12)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("width", [1, 16, 50, 131])
def test_state_may_have_any_width(level: str, width: int) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    x, w_hr = random.standard_normal((6, 4, 5)), random.standard_normal((width, 32)) / 8
    w_ih, w_hh = random.standard_normal((128, 5)), random.standard_normal((128, width)) / 8
    with selected(level):
        found = lstm_projected_layer(x, w_ih, w_hh, w_hr).output
    given = [torch.from_numpy(array) for array in (x, w_ih, w_hh, w_hr)]
    states = torch.zeros(1, 4, width, dtype=torch.float64), torch.zeros(1, 4, 32).double()
    expected = torch.lstm(given[0], states, given[1:], False, 1, 0.0, False, False, False)[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-13)


def test_weights_that_do_not_fit_are_named() -> None:
    x, w_ih, w_hh = np.zeros((2, 3, 4)), np.zeros((8, 4)), np.zeros((8, 1))
    with pytest.raises(ShapeError, match=r"axis `p` is 1 in `w_hh` but 2 in `w_hr`"):
        lstm_projected_layer(x, w_ih, w_hh, np.zeros((2, 2)))
    with pytest.raises(ShapeError, match=r"axis `4\*h` must be 12 but is 8 in `w_ih`"):
        lstm_projected_layer(x, w_ih, w_hh, np.zeros((1, 3)))
