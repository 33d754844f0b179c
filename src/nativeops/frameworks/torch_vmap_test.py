# SPDX-License-Identifier: Apache-2.0
"""Ops under the transforms of `torch.func`."""

import re

import pytest
import torch
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.testing import assert_close

from nativeops import edit_distance, pairwise_l1, pairwise_lp
from nativeops.errors import GradientError, ShapeError
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_torch import composed_l1, random

# PyTorch's own forward mode uses what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
TWICE = "pairwise_l1_grad: has no gradient, so it cannot be differentiated twice"
FORWARD = r"pairwise_l1: has no forward-mode derivative \(jvp\)"


def loss(op):
    return lambda x, y: op(x, y).sin().sum()


X, Y = random(5, 7), random(6, 7)
MANY = random(3, 5, 7)


@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_grad_is_that_of_composed_torch(argnums):
    assert_close(grad(loss(pairwise_l1), argnums)(X, Y), grad(loss(composed_l1), argnums)(X, Y))
    ours, value = grad_and_value(loss(pairwise_l1), argnums)(X, Y)
    assert_close(ours, grad(loss(composed_l1), argnums)(X, Y))
    assert_close(value, loss(composed_l1)(X, Y))


def test_grad_sums_over_what_was_broadcast():
    assert_close(grad(loss(pairwise_l1), 1)(MANY, Y), grad(loss(composed_l1), 1)(MANY, Y))


def test_grad_passes_attributes():
    def distance(x, y):
        return pairwise_lp(x, y, p=3.0).sin().sum()

    expected = grad(lambda x: torch.cdist(x, Y, p=3.0).sin().sum())
    assert_close(grad(distance)(X, Y), expected(X))
    assert_close(vmap(grad(distance), (0, None))(MANY, Y), torch.stack([expected(x) for x in MANY]))


def test_vjp_and_jacrev_are_those_of_composed_torch():
    out, pull = vjp(pairwise_l1, X, Y)
    expected, expected_pull = vjp(composed_l1, X, Y)
    assert_close(out, expected)
    assert_close(pull(random(5, 6)), expected_pull(random(5, 6)))
    assert_close(jacrev(pairwise_l1, (0, 1))(X, Y), jacrev(composed_l1, (0, 1))(X, Y))


@pytest.mark.parametrize(
    ("x", "y", "in_dims"),
    [
        (MANY, Y, (0, None)),
        (X, random(3, 6, 7), (None, 0)),
        (MANY.movedim(0, 2), random(3, 6, 7), (2, 0)),
        (MANY.movedim(0, 1), random(6, 3, 7), (1, -2)),
        (random(3, 2, 5, 7), random(3, 6, 7), (0, 0)),
        (random(3, 5, 7), random(3, 4, 2, 6, 7), (0, 0)),
        (random(2, 5, 7), random(3, 6, 7), (None, 0)),
        (random(0, 5, 7), Y, (0, None)),
    ],
)
def test_vmap_is_that_of_composed_torch(x, y, in_dims):
    assert_close(vmap(pairwise_l1, in_dims)(x, y), vmap(composed_l1, in_dims)(x, y))
    d_ours = vmap(grad(loss(pairwise_l1), (0, 1)), in_dims)(x, y)
    assert_close(d_ours, vmap(grad(loss(composed_l1), (0, 1)), in_dims)(x, y))


def test_vmaps_nest_and_split():
    many = random(4, 3, 5, 7)
    nested = vmap(vmap(pairwise_l1, (0, None)), (0, None))
    assert_close(nested(many, Y), composed_l1(many, Y))
    crossed = vmap(vmap(pairwise_l1, (None, 0)), (0, None), out_dims=1)
    two = random(2, 6, 7)
    assert_close(crossed(MANY, two), composed_l1(MANY, two[:, None]))
    assert_close(vmap(pairwise_l1, (0, None), chunk_size=2)(MANY, Y), composed_l1(MANY, Y))


def test_vmap_leaves_out_what_nobody_wants():
    d_out = random(3, 5, 6)
    one = vmap(lambda x, d: pairwise_l1_grad.only(["d_x"])(x, Y, d).d_x)(MANY, d_out)
    assert_close(one, pairwise_l1_grad(MANY, Y, d_out).d_x)


def test_vmap_of_a_wrong_call_says_the_same():
    with pytest.raises(ShapeError, match="axis `d` is 7 in `x` but 3 in `y`"):
        vmap(pairwise_l1, (0, None))(MANY, random(6, 3))


def test_grad_of_vmap_and_vmap_of_grad_are_those_of_composed_torch():
    def total(op):
        return lambda many: vmap(lambda x: op(x, Y).sin().sum())(many).cos().sum()

    assert_close(grad(total(pairwise_l1))(MANY), grad(total(composed_l1))(MANY))
    leaf = MANY.clone().requires_grad_()
    [through] = torch.autograd.grad(total(pairwise_l1)(leaf), leaf)
    assert_close(through, grad(total(composed_l1))(MANY))


def test_gradients_per_sample_of_a_module():
    class Model(torch.nn.Module):
        def __init__(self, op):
            super().__init__()
            self.op = op
            self.first = torch.nn.Linear(7, 4)
            self.centers = torch.nn.Parameter(random(6, 4))

        def forward(self, x):
            return self.op(self.first(x), self.centers)

    model = Model(pairwise_l1)
    parameters = dict(model.named_parameters())

    def per_sample(model):
        def one(parameters, x):
            return functional_call(model, parameters, (x,)).sin().sum()

        return vmap(grad(one), (None, 0))(parameters, MANY)

    assert_close(per_sample(model), per_sample(Model(composed_l1)))


@pytest.mark.parametrize(
    "second",
    [
        lambda f: grad(lambda x: grad(f)(x).sum())(X),
        lambda f: jacrev(jacrev(f))(X),
        lambda f: vmap(grad(lambda x: grad(f)(x).sum()))(MANY),
        lambda f: torch.autograd.grad(grad(f)(leaf := X.clone().requires_grad_()).sum(), leaf),
    ],
    ids=["grad(grad)", "jacrev(jacrev)", "vmap(grad(grad))", "backward(grad)"],
)
def test_second_derivatives_say_that_there_are_none(second):
    with pytest.raises(GradientError, match=TWICE):
        second(lambda x: loss(pairwise_l1)(x, Y))


@pytest.mark.parametrize(
    "forward",
    [
        lambda f: jvp(f, (X,), (X,)),
        lambda f: jacfwd(f)(X),
        lambda f: linearize(f, X),
        lambda f: hessian(lambda x: f(x).sin().sum())(X),
        lambda f: jvp(grad(lambda x: f(x).sin().sum()), (X,), (X,)),
        lambda f: grad(lambda x: jvp(f, (x,), (X,))[1].sum())(X),
        lambda f: vmap(lambda x: jvp(f, (x,), (X,))[1])(MANY),
        lambda f: jvp(vmap(f), (MANY,), (MANY,)),
    ],
    ids=[
        "jvp",
        "jacfwd",
        "linearize",
        "hessian",
        "jvp(grad)",
        "grad(jvp)",
        "vmap(jvp)",
        "jvp(vmap)",
    ],
)
def test_forward_derivatives_say_that_there_are_none(forward):
    with pytest.raises(GradientError, match=FORWARD):
        forward(lambda x: pairwise_l1(x, Y))


@pytest.mark.parametrize(("x", "y"), [((3, 7), (3, 7)), ((3, 7), (3, 6, 7))])
def test_the_mapped_axis_does_not_stand_in_for_a_named_one(x, y):
    one = re.escape("`x` must have at least 2 axes [*b n d], but has 1 axis.")
    with pytest.raises(ShapeError, match=one):
        vmap(pairwise_l1)(torch.randn(x), torch.randn(y))


def test_no_items_of_an_op_without_leading_axes():
    labels = torch.zeros(0, 3, 5, dtype=torch.int32)
    assert vmap(edit_distance)(labels, labels).shape == (0, 3)
