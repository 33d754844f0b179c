# SPDX-License-Identifier: Apache-2.0
"""rnn_layer: what is true of it alone; recurrent_test.py has what is true of all such layers."""

import numpy as np
import pytest

from nativeops import rnn_layer
from nativeops.errors import RangeError
from nativeops.ops.rnn import rnn_layer_grad
from nativeops.testing.aspects import levels, selected


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_relu_adds_up_exactly(level: str, dtype: str) -> None:
    units = 21
    x = np.random.default_rng(0).integers(-3, 9, (50, 4, units)).astype(dtype)
    one = np.eye(units, dtype=dtype)
    expected, h = np.empty_like(x), np.zeros((4, units), dtype)
    for t in range(len(x)):
        expected[t] = h = np.maximum(h + x[t], 0)
    with selected(level):
        assert np.array_equal(rnn_layer(x, one, one, activation="relu").output, expected)


@pytest.mark.parametrize("level", levels())
def test_relu_has_slope_zero_at_zero_torch_agrees(level: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(1, 1, 1, dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    with selected(level):
        rnn_layer(x, one, one, activation="relu").output.sum().backward()
    assert x.grad.item() == 0


@pytest.mark.parametrize("level", levels())
def test_relu_of_infinity_is_infinity(level: str) -> None:
    x = np.full((1, 2, 1), np.inf, np.float32)
    x[0, 1] = -np.inf
    one = np.ones((17, 1), np.float32)
    with selected(level):
        found = rnn_layer(x, one, np.zeros((17, 17), np.float32), activation="relu").output[0]
    assert (found[0] == np.inf).all()
    assert (found[1] == 0).all()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_tanh_ends_at_one(level: str, dtype: str) -> None:
    x = np.array([1e4, -1e4, np.inf, -np.inf, 0.0, -0.0], dtype).reshape(1, 6, 1)
    one = np.ones((17, 1), dtype)
    with selected(level):
        found = rnn_layer(x, one, np.zeros((17, 17), dtype)).output[0]
    expected = np.broadcast_to(np.array([[1], [-1], [1], [-1], [0], [0]], dtype), (6, 17))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("level", levels())
def test_gradient_vanishes_where_tanh_ends(level: str) -> None:
    x, w, u = np.full((9, 3, 2), 1e4), np.ones((17, 2)), np.zeros((17, 17))
    with selected(level):
        made = rnn_layer(x, w, u)
        found = rnn_layer_grad(x, w, u, made.output, np.ones((9, 3, 17)), np.ones((3, 17)))
    assert not found.d_x.any()
    assert not found.d_w_ih.any()


def test_unknown_activation_is_told_which_there_are() -> None:
    with pytest.raises(RangeError, match=r"activation.*'tanh'.*'relu'"):
        rnn_layer(np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)), activation="cubic")


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_no_more_than_the_outputs_is_kept(kind: str) -> None:
    assert not [spec for spec in rnn_layer.signature.outputs if spec.kept], kind
