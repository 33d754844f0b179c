# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of ops with kept results: right, or an error; never a part of them."""

import os

import numpy as np
import pytest

from nativeops import registry
from nativeops.errors import GradientError

from .slopes import smooth_square, square

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="2", TF_NUM_INTEROP_THREADS="2")

for name in [each.name for each in registry.ops() if not each.built_in]:
    del registry._OPS[name]  # other tests look at the ops of the package

X, W = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
COSINE, SINE = np.cos(X * X), np.sin(X * X)
FIRST = 2 * X * COSINE  # of Σ sin(x²)
SECOND = 2 * COSINE - 4 * X * X * SINE
SENTENCE = "square: has no gradient through `slope`, so it cannot be differentiated twice."


def assert_close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-4)


def check(first, second, mixed, kind=GradientError, apart=True):
    """All that a way of differentiating must do.

    Each takes an op: `first` and `second` give derivatives of Σ sin(x²), and `mixed` the one of
    Σ d(Σ w·x²)/dx by w, which does not go through what is kept; it may be refused as well where
    the framework does not differentiate by `w` `apart` from `x`.
    """
    for op in (square, smooth_square):
        assert_close(first(op), FIRST)
        if apart or op is smooth_square:
            assert_close(mixed(op), 2 * X)
    assert_close(second(smooth_square), SECOND)
    for refused in (second,) if apart else (second, mixed):
        with pytest.raises(kind, match=SENTENCE):
            refused(square)


# PyTorch.


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_refuses_what_its_autograd_would_leave_out(torch):
    def slope(total, x, again):
        x = torch.tensor(x, requires_grad=True)
        return x, torch.autograd.grad(total(x), x, create_graph=again)[0]

    def second(op):
        x, found = slope(lambda x: op(x).y.sin().sum(), X, True)
        return torch.autograd.grad(found.sum(), x)[0]

    def mixed(op):
        w = torch.tensor(W, requires_grad=True)
        _, found = slope(lambda x: (w * op(x).y).sum(), X, True)
        return torch.autograd.grad(found.sum(), w)[0]

    check(lambda op: slope(lambda x: op(x).y.sin().sum(), X, False)[1], second, mixed)


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_torch_refuses_what_its_transforms_would_leave_out(torch, backend):
    torch.compiler.reset()  # it counts what it has compiled
    grad, x, w = torch.func.grad, torch.tensor(X), torch.tensor(W)
    compiled = torch.compile(fullgraph=True, backend=backend) if backend else lambda f: f

    def first(op):
        return grad(lambda x: op(x).y.sin().sum())

    def second(op):
        return compiled(grad(lambda x: first(op)(x).sum()))(x)

    def mixed(op):
        inner = grad(lambda x, w: (w * op(x).y).sum())
        return compiled(grad(lambda w, x: inner(x, w).sum()))(w, x)

    kind = RuntimeError if backend else GradientError  # PyTorch's compiler wraps what it meets
    check(lambda op: compiled(first(op))(x), second, mixed, kind)


# JAX.


@pytest.mark.parametrize("compiled", [False, True])
def test_jax_refuses_what_would_be_left_out(compiled):
    jax = pytest.importorskip("jax")
    wrap = jax.jit if compiled else lambda f: f

    def first(op):
        return jax.grad(lambda x: jax.numpy.sin(op(x).y).sum())

    def second(op):
        return wrap(jax.grad(lambda x: first(op)(x).sum()))(X)

    def mixed(op):
        inner = jax.grad(lambda x, w: (w * op(x).y).sum())
        return wrap(jax.grad(lambda w: inner(jax.numpy.asarray(X), w).sum()))(W)

    check(lambda op: wrap(first(op))(X), second, mixed)


# TensorFlow.

# What is compiled: nothing, the op, the first derivative, all.
PARTS = [(), ("op",), ("first",), ("all",), ("op", "all"), ("op", "first", "all")]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("parts", PARTS, ids=lambda parts: "-".join(parts) or "eager")
def test_tensorflow_refuses_what_would_be_left_out(parts, persistent):
    tf = pytest.importorskip("tensorflow")

    def compiled(part, function):
        return tf.function(function) if part in parts else function

    def derivative(total):
        def found(at):
            with tf.GradientTape(persistent=persistent) as tape:
                tape.watch(at)
                out = total(at)
            return tape.gradient(out, at)

        return found

    def first(op):
        shown = compiled("op", lambda x: op(x).y)
        return compiled("first", derivative(lambda x: tf.reduce_sum(tf.sin(shown(x)))))

    def second(op):
        of_first = first(op)
        outer = derivative(lambda x: tf.reduce_sum(of_first(x)))
        return compiled("all", outer)(tf.constant(X))

    def mixed(op):
        shown = compiled("op", lambda x: op(x).y)

        def of_weights(w):
            inner = derivative(lambda x: tf.reduce_sum(w * shown(x)))
            return tf.reduce_sum(compiled("first", inner)(tf.constant(X)))

        return compiled("all", derivative(of_weights))(tf.constant(W))

    # TensorFlow differentiates a function by all of its arguments.
    apart = parts in ((), ("all",))
    check(lambda op: compiled("all", first(op))(tf.constant(X)), second, mixed, apart=apart)
