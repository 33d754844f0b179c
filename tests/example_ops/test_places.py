# SPDX-License-Identifier: Apache-2.0
"""Results in memory that is there already: where it is promised, and never a wrong number."""

import os
from typing import NamedTuple

import numpy as np
import pytest

from nativeops import registry
from nativeops.declare import Array, Float, op
from nativeops.errors import ArgumentError, DtypeError, ShapeError

from .places import gate, running

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="2", TF_NUM_INTEROP_THREADS="2")

for name in [each.name for each in registry.ops() if not each.built_in]:
    del registry._OPS[name]  # other tests look at the ops of the package

X = np.random.default_rng(0).standard_normal((2, 600, 40)).astype("float32")
RUNNING = running.reference(X.astype("float64")).total


def assert_close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-4)


def refuse_copies(monkeypatch, module):
    """No array may be made aside."""

    def refuse(*_, **__):
        raise AssertionError("an array was made aside")

    monkeypatch.setattr(module, "empty_like", refuse)


# Declarations.


def declare(reuse):
    @op(kernel="places.h", reuse=reuse)
    def f(
        x: Float[Array, "n d"], y: Float[Array, "d n"], z: Float[Array, "n d"] | None = None
    ) -> Float[Array, "n d"]:
        return x + y.T


@pytest.mark.parametrize(
    ("reuse", "words"),
    [
        ({"out": "w"}, "f: `reuse` names no result `out` or input `w`"),
        ({"h": "x"}, "f: `reuse` names no result `h` or input `x`"),
        ({"out": "y"}, r"f: `out` is Float\[n d\], but `y` is Float\[d n\]"),
    ],
)
def test_reuse_of_what_does_not_fit_is_refused(reuse, words):
    with pytest.raises(TypeError, match=words):
        declare(reuse)


def test_optional_result_cannot_take_over_memory():
    class Made(NamedTuple):
        out: Float[Array, "n"] | None

    with pytest.raises(TypeError, match="f: only a result that every call makes can take over"):

        @op(kernel="places.h", reuse={"out": "x"})
        def f(x: Float[Array, "n"]) -> Made:
            return Made(x)


# NumPy.


def test_numpy_writes_where_the_input_was(monkeypatch):
    from nativeops.frameworks import numpy as adapter

    running(X)  # defines it
    refuse_copies(monkeypatch, adapter.np)
    x = X.copy()
    result = running(x, out=x)
    assert result.total is x
    assert result.first is None
    assert_close(x, RUNNING)
    strided = np.zeros((2, 1200, 40), "float32")[:, ::2]
    strided[...] = X
    assert_close(running(strided, out=strided).total, RUNNING)


def test_numpy_out_that_overlaps_otherwise_gives_right_numbers():
    memory = np.zeros((3, 600, 40), "float32")
    x, out = memory[:2], memory[1:]
    x[...] = X
    assert_close(running(x, out=out).total, RUNNING)
    a, b = X[0].copy(), X[1].copy()
    assert_close(gate(a, b, out=b), X[0] * X[1])  # `y` is not what may be taken over
    assert_close(gate(a[::-1], X[1], out=a), X[0][::-1] * X[1])
    x = X[:1].copy()
    both = np.broadcast_to(x, X.shape)
    assert_close(gate(both, X, out=np.empty_like(X)), X[:1] * X)


# PyTorch.


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_writes_where_the_input_was(torch, monkeypatch):
    x = torch.from_numpy(X.copy())
    version, address = x._version, x.data_ptr()
    monkeypatch.setattr(torch.Tensor, "copy_", None)  # nothing is made aside
    result = running(x, out=x)
    assert result.total is x
    assert x.data_ptr() == address
    assert x._version > version
    assert_close(x, RUNNING)
    out = torch.empty(2, 600, 80)[..., ::2]
    assert running(torch.from_numpy(X), out=out).total is out
    assert_close(out, RUNNING)


def test_torch_out_that_overlaps_otherwise_gives_right_numbers(torch):
    memory = torch.zeros(3, 600, 40)
    x, out = memory[:2], memory[1:]
    x.copy_(torch.from_numpy(X))
    assert_close(running(x, out=out).total, RUNNING)
    a, b = torch.from_numpy(X[0].copy()), torch.from_numpy(X[1].copy())
    assert_close(gate(a, b, out=b), X[0] * X[1])
    shared = X[0].copy()
    a, b = torch.from_numpy(shared), torch.from_numpy(shared.T).T  # two storages, one memory
    assert_close(gate(torch.from_numpy(X[1]), a, out=b), X[0] * X[1])


def test_torch_notices_what_was_kept_for_a_gradient(torch):
    x = torch.from_numpy(X.copy()).requires_grad_()
    inner = x * 1
    loss = running(inner).total.sum()
    with torch.no_grad():
        running(inner, out=inner)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    view = x.detach().clone()
    weight = torch.ones(2, 600, 40, requires_grad=True)
    product = (weight * view).sum()
    running(view[:1], out=view[:1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda torch, x: {"out": x.double()}, DtypeError, "`out` must be float32, but is float64"),
        (lambda torch, x: {"out": x[:1]}, ShapeError, r"`out` must have the shape \[2, 600, 40\]"),
        (lambda torch, x: {"out": [1]}, ArgumentError, "`out` must be a dense tensor, but is list"),
        (
            lambda torch, x: {"out": x[:1].expand(2, 600, 40)},
            ArgumentError,
            "`out` has elements that share memory",
        ),
        (
            lambda torch, x: {"out": x.requires_grad_()},
            ArgumentError,
            "`out` is for results that need no gradient",
        ),
    ],
    ids=["dtype", "shape", "list", "expanded", "gradient"],
)
def test_torch_refuses_an_out_that_does_not_fit(torch, change, error, words):
    x = torch.from_numpy(X.copy())
    with pytest.raises(error, match=words):
        running(torch.from_numpy(X), **change(torch, x))


def test_torch_refuses_out_where_calls_are_seen_as_functions(torch):
    x = torch.from_numpy(X.copy())
    for around in (torch.func.vmap, torch.func.grad):
        with pytest.raises(ArgumentError, match="not possible while calls are transformed"):
            around(lambda x: running(x, out=x).total.sum())(x)
    compiled = torch.compile(lambda x: running(x, out=x).total, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="`out` is not possible in a compiled program"):
        compiled(x)
    assert_close(x, X)


def test_torch_takes_a_parameter_without_gradients(torch):
    x = torch.nn.Parameter(torch.from_numpy(X.copy()))
    with torch.no_grad():
        assert running(x, out=x).total is x
    with torch.inference_mode():
        y = torch.from_numpy(X.copy())
        running(y, out=y)
    assert_close(x.detach(), RUNNING)
    assert_close(y, RUNNING)


# JAX.


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def pointer(array):
    return array.unsafe_buffer_pointer()


def test_jax_takes_over_what_is_donated(jax):
    function = jax.jit(lambda x: running(x).total, donate_argnums=0)
    x = jax.numpy.array(X)
    address = pointer(x)
    out = function(x)
    assert pointer(out) == address
    assert x.is_deleted()
    assert_close(out, RUNNING)


def test_jax_leaves_alone_what_is_not_donated(jax):
    x = jax.numpy.array(X)
    y = jax.numpy.array(X + 1)
    for function in (running, jax.jit(running)):
        assert_close(function(x).total, RUNNING)
    both, kept = jax.jit(lambda x: (running(x).total, x + 1))(x)
    assert_close(both, RUNNING)
    assert_close(kept, X + 1)
    donated = jax.jit(lambda x, y: (gate(x, y), gate(y, x), x - y), donate_argnums=(0, 1))
    first, second, third = donated(jax.numpy.array(X), y)
    assert_close(first, X * (X + 1))
    assert_close(second, X * (X + 1))
    assert_close(third, X - (X + 1))
    assert_close(jax.jit(lambda x: gate(x, x), donate_argnums=0)(jax.numpy.array(X)), X * X)
    assert_close(x, X)


def test_jax_gradient_of_a_donated_argument_is_right(jax):
    def total(x):
        return jax.numpy.sin(running(x).total).sum()

    def composed(x):
        return jax.numpy.sin(jax.numpy.cumsum(x * x / 2, -2)).sum()

    x = jax.numpy.array(X / 10)  # small numbers, whose sine does not swing
    expected = jax.grad(composed)(x)
    found = jax.jit(jax.grad(total), donate_argnums=0)(jax.numpy.array(x))
    assert_close(found, expected)
    mapped = jax.jit(jax.vmap(lambda x: running(x).total), donate_argnums=0)
    assert_close(mapped(jax.numpy.array(X)), RUNNING)
    repeated = jax.jit(gate, donate_argnums=0)  # x is smaller than the result
    small = X[:1] + 0
    with pytest.warns(UserWarning, match="donated"):
        assert_close(repeated(jax.numpy.array(small), jax.numpy.array(X)), small * X)


def test_jax_copies_nothing_for_an_eager_call(jax):
    x = jax.numpy.array(X)
    running(x)
    _, compiled = running.handles["jax"].direct
    programs = compiled.lower(x).compile().as_text()
    assert "copy" not in programs
    inside = jax.jit(lambda x: running(x).total).lower(x).compile().as_text()
    assert "output_to_operand_aliasing" in inside


# TensorFlow.


@pytest.fixture
def tf():
    return pytest.importorskip("tensorflow")


SAME = """#pragma once
#include "nativeops/devices/kernel.h"
namespace nativeops {
// out[i] = whether x is where out is; not what the reference says
template <class T>
void is_same(Device& dev, In<T, 1> x, Out<T, 1> out) {
  const T same = T(x.data == out.data);
  for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = same; });
}
}  // namespace nativeops
"""


def test_tensorflow_takes_over_what_nobody_needs(tf, tmp_path):
    (tmp_path / "is_same.h").write_text(SAME)

    @op(kernel=str(tmp_path / "is_same.h"), reuse={"out": "x"})
    def is_same(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    x = tf.random.normal([1000])
    assert not is_same(x).numpy().any()
    dies = tf.function(lambda x: is_same(x * 2))
    assert dies(x).numpy().all()
    needed = tf.function(lambda x: [(y := x * 2), is_same(y), y + 1])
    y, out, after = needed(x)
    assert not out.numpy().any()
    assert_close(y, 2 * x)
    assert_close(after, 2 * x + 1)


def test_tensorflow_chain_of_dying_arrays_is_right(tf):
    def chain(x):
        for _ in range(6):
            x = gate(x * 1.0001, x)  # the product dies in the gate
        return x

    def composed(x):
        for _ in range(6):
            x = (x * 1.0001) * x
        return x

    x = tf.constant(X / 2)
    assert_close(tf.function(chain)(x), composed(X / 2))
    assert_close(chain(x), composed(X / 2))


def test_tensorflow_leaves_alone_what_is_needed(tf):
    x = tf.constant(X)
    assert_close(running(x).total, RUNNING)
    assert_close(x, X)
    out, kept = tf.function(lambda x: (running(x + 0).total, x))(x)
    assert_close(out, RUNNING)
    assert_close(kept, X)

    @tf.function
    def both(x):
        inner = x + 0
        return running(inner).total, inner, gate(inner, inner)

    out, inner, squares = both(x)
    assert_close(out, RUNNING)
    assert_close(inner, X)
    assert_close(squares, X * X)
    variable = tf.Variable(X)
    assert_close(tf.function(lambda: running(variable).total)(), RUNNING)
    assert_close(variable, X)


def test_tensorflow_gradient_is_right(tf):
    def slope(function, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.sin(function(x + 0)))
        return tape.gradient(total, x)

    x = tf.constant(X / 10)
    expected = slope(lambda x: tf.cumsum(x * x / 2, 1), x)
    assert_close(slope(lambda x: running(x).total, x), expected)
    assert_close(slope(tf.function(lambda x: running(x).total), x), expected)
    assert_close(tf.function(lambda x: slope(lambda x: running(x).total, x))(x), expected)
