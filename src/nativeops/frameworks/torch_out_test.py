# SPDX-License-Identifier: Apache-2.0
"""`out=` with PyTorch: given tensors are written, by direct calls where nothing else has a say."""

import pytest
import torch

from nativeops import lstm_layer, pairwise_l1
from nativeops.errors import ArgumentError, DtypeError, ShapeError
from nativeops.library import extension
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_torch import random

X, Y, D_OUT = random(5, 7), random(6, 7), random(5, 6)
EXPECTED = pairwise_l1(X, Y)


def direct(op, *args, **kwargs):
    return extension().direct_torch(op, args, kwargs)


def test_given_tensors_that_fit_go_straight_to_the_kernel():
    for out in (torch.empty(5, 6), torch.empty(6, 5).T, torch.empty(10, 18)[::2, ::3]):
        assert direct(pairwise_l1, X, Y, out=out) is out
        assert torch.equal(out, EXPECTED)
    with torch.no_grad():
        out = torch.empty(5, 6)
        assert direct(pairwise_l1, X.clone().requires_grad_(), Y, out=out) is out
    with torch.inference_mode():
        out = torch.empty(5, 6)
        assert direct(pairwise_l1, X, Y, out=out) is out
    assert torch.equal(out, EXPECTED)


def test_some_of_several_results_are_given():
    right = pairwise_l1_grad(X, Y, D_OUT)
    d_x, d_y = torch.empty(5, 7), torch.empty(6, 7)
    for given in ((d_x, d_y), (d_x, None), (None, d_y), (None, None)):
        made = direct(pairwise_l1_grad, X, Y, D_OUT, out=given)
        for one, out, expected in zip(made, given, right, strict=True):
            assert out is None or one is out
            assert torch.equal(one, expected)
    made = direct(pairwise_l1_grad, X, Y, D_OUT, out=(None, d_y), want=("d_y",))
    assert made.d_x is None
    assert made.d_y is d_y


def test_results_may_be_columns_of_one_buffer():
    x, d_out = random(6, 7), random(6, 6)
    expected = torch.cat(pairwise_l1_grad(x, Y, d_out), 1)
    buffer = torch.empty(6, 14)
    for columns in ((buffer[:, :7], buffer[:, 7:]), (buffer[:, ::2], buffer[:, 1::2])):
        before = buffer._version
        made = pairwise_l1_grad(x, Y, d_out, out=columns)
        assert made.d_x is columns[0]
        assert torch.equal(torch.cat(columns, 1), expected)
        assert buffer._version > before
    for columns in ((buffer[:, :7], buffer[:, 6:13]), (buffer[:, ::2], buffer[:, 6:13])):
        with pytest.raises(ArgumentError, match=r"`out\[0\]` and `out\[1\]` share memory"):
            pairwise_l1_grad(x, Y, d_out, out=columns)
    nothing = torch.empty(0, 7)
    pairwise_l1_grad(nothing, nothing, torch.empty(0, 0), out=(nothing, nothing))


def test_tensor_for_a_result_that_is_not_wanted_is_not_looked_at():
    expected = pairwise_l1_grad(X, Y, D_OUT).d_x
    for unwanted in (torch.zeros(5, 3), "abc", Y):
        made = pairwise_l1_grad(X, Y, D_OUT, want=("d_x",), out=(None, unwanted))
        assert torch.equal(made.d_x, expected)
        assert made.d_y is None


def test_autograd_notices_that_a_tensor_it_kept_was_written():
    kept = torch.ones(5, 6)
    loss = (torch.ones(5, 6, requires_grad=True) * kept).sum()
    before = kept._version
    pairwise_l1(X, Y, out=kept)
    assert kept._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_needs_a_gradient_is_refused():
    leaf = X.clone().requires_grad_()
    for x, out in ((leaf, torch.empty(5, 6)), (X, torch.empty(5, 6, requires_grad=True))):
        with pytest.raises(ArgumentError, match="`out` is for results that need no gradient"):
            pairwise_l1(x, Y, out=out)


def test_memory_of_an_input_gets_the_right_result():
    memory = random(6, 7)
    for out in (memory[:5], memory[1:]):
        x, y = memory[:5], random(7, 7)
        expected = pairwise_l1(x.clone(), y)
        assert direct(pairwise_l1, x, y, out=out) is None
        assert pairwise_l1(x, y, out=out) is out
        assert torch.equal(out, expected)
        memory.copy_(random(6, 7))


def test_tensors_that_hold_the_negative_of_their_memory_are_right():
    out = torch._neg_view(torch.empty(5, 6))
    for x, given in ((X, out), (torch._neg_view(X), torch.empty(5, 6)), (torch._neg_view(X), out)):
        assert pairwise_l1(x, Y, out=given) is given
        assert torch.equal(given, pairwise_l1(x.clone(), Y))


def test_a_state_is_updated_in_its_own_memory():
    t, b, d, h = 1, 3, 4, 5
    shapes = (4 * h, d), (4 * h, h), (4 * h,), (4 * h,)
    x, weights = random(t, b, d), [random(*shape) for shape in shapes]
    h_0, c_0 = random(b, h), random(b, h + 1)[:, 1:]
    right = lstm_layer(x, *weights, h_0=h_0.clone(), c_0=c_0.clone())
    y = torch.empty_like(right.output)
    made = direct(lstm_layer, x, *weights, h_0=h_0, c_0=c_0, out=(y, h_0, c_0))
    for one, given, expected in zip(made[:3], (y, h_0, c_0), right[:3], strict=True):
        assert one is given
        assert torch.equal(one, expected)
    assert direct(lstm_layer, x, *weights, h_0=h_0, c_0=c_0, out=(y, c_0, h_0)) is None


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (torch.empty(6, 5), ShapeError, r"`out` must have the shape \[5, 6\]"),
        (torch.empty(5, 6).double(), DtypeError, "`out` must be float32, but is float64"),
        (torch.empty(5, 1).expand(5, 6), ArgumentError, "`out` has elements that share memory"),
        (
            torch.empty(14).as_strided((5, 6), (2, 1)),
            ArgumentError,
            "`out` has elements that share",
        ),
        ([1.0], ArgumentError, "`out` must be a dense tensor, but is list"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(out, error, words):
    with pytest.raises(error, match=words):
        pairwise_l1(X, Y, out=out)
    d_x = torch.empty(5, 7)
    with pytest.raises(ArgumentError, match="share memory"):
        pairwise_l1_grad(X, X, torch.ones(5, 5), out=(d_x, d_x))
