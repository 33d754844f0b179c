# SPDX-License-Identifier: Apache-2.0
"""Gradients in JAX: values, what is computed for them, and what does not exist."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nativeops import pairwise_l1, pairwise_lp, registry
from nativeops.errors import GradientError
from nativeops.frameworks import jax_call
from nativeops.frameworks.jax import connect
from nativeops.testing.arrays_jax import composed_l1, enabled_64_bits, random

# The ops of tests/example_ops use what the built-in ones do not: kept results, integers, no axes.
_known = dict(registry._OPS)
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
from example_ops import choices, results  # noqa: E402

del sys.path[0]
registry._OPS.clear()
registry._OPS.update(_known)

TWICE = "pairwise_l1_grad: has no gradient, so it cannot be differentiated twice"
FORWARD = r"pairwise_l1: has no forward-mode derivative \(jvp\)"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NATIVEOPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), found, expected)


def composed_normalise(x):
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1)


def loss(op):
    return lambda x, y: jnp.sin(op(x, y)).sum()


X, Y, MANY, Z = random(5, 7), random(6, 7), random(3, 5, 7), random(9, 4)


def calls(function, *args):
    """The calls of ops in a traced function, and how many results each makes."""
    equations = jax.make_jaxpr(function)(*args).eqns
    ours = [e for e in equations if str(e.primitive) == "nativeops"]
    return [(e.params["call"].op.name, len(e.outvars)) for e in ours]


@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_grad_is_that_of_composed_jax(argnums):
    expected = jax.value_and_grad(loss(composed_l1), argnums)(X, Y)
    ours = jax.value_and_grad(loss(pairwise_l1), argnums)
    assert_close(ours(X, Y), expected)
    assert_close(jax.jit(ours)(X, Y), expected)


def test_grad_sums_over_what_was_broadcast():
    for x, y in ((MANY, Y), (MANY[:, None], random(2, 6, 7)), (MANY, Y[None])):
        found = jax.grad(loss(pairwise_l1), (0, 1))(x, y)
        assert_close(found, jax.grad(loss(composed_l1), (0, 1))(x, y))
        assert [one.shape for one in found] == [x.shape, y.shape]


@pytest.mark.parametrize("p", [1.0, 2.0, 3.1])
def test_gradient_is_the_slope(p):
    with enabled_64_bits():
        x, y, direction = (jnp.asarray(np.random.default_rng(i).random((4, 3))) for i in range(3))

        def along(t):
            return jnp.sin(pairwise_lp(x + t * direction, y, p=p)).sum()

        gradient = jax.grad(lambda x: jnp.sin(pairwise_lp(x, y, p=p)).sum())(x)
        slope = (along(1e-6) - along(-1e-6)) / 2e-6
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-7)


def test_vjp_and_jacrev_are_those_of_composed_jax():
    out, pull = jax.vjp(pairwise_l1, X, Y)
    expected, expected_pull = jax.vjp(composed_l1, X, Y)
    assert_close(out, expected)
    assert_close(pull(random(5, 6)), expected_pull(random(5, 6)))
    assert_close(jax.jacrev(pairwise_l1, (0, 1))(X, Y), jax.jacrev(composed_l1, (0, 1))(X, Y))


def test_only_what_is_needed_is_computed():
    both = [("pairwise_l1", 1), ("pairwise_l1_grad", 2)]
    one = [("pairwise_l1", 1), ("pairwise_l1_grad", 1)]
    assert calls(jax.grad(loss(pairwise_l1), (0, 1)), X, Y) == both
    assert calls(jax.grad(loss(pairwise_l1), 1), X, Y) == one
    assert calls(jax.grad(lambda x: loss(pairwise_l1)(x, jax.lax.stop_gradient(x))), X) == one
    constant = jax.grad(lambda x: loss(pairwise_l1)(*jax.lax.stop_gradient((x, x))) + x.sum())
    assert calls(constant, X) == [("pairwise_l1", 1)]


def test_kept_results_are_made_for_the_gradient_alone():
    def total(x):
        return jnp.sin(results.normalise(x).y).sum()

    assert calls(total, Z) == [("normalise", 1)]
    assert calls(jax.grad(total), Z) == [("normalise", 2), ("normalise_grad", 1)]
    assert results.normalise(Z).inverse is None
    assert_close(results.normalise(Z).y, composed_normalise(Z))
    expected = jax.grad(lambda x: jnp.sin(composed_normalise(x)).sum())
    assert_close(jax.grad(total)(Z), expected(Z))
    assert_close(jax.jit(jax.vmap(jax.grad(total)))(MANY), jax.vmap(expected)(MANY))


def test_integer_inputs_have_gradients_of_no_size():
    index = jnp.array([0, 3, 3, -1, 20])

    def total(z, index):
        return jnp.sin(choices.take(z, index)).sum()

    d_z, d_index = jax.grad(total, (0, 1), allow_int=True)(Z, index)
    assert d_index.dtype == jax.dtypes.float0
    assert_close(d_z, jax.grad(lambda z: jnp.sin(z[jnp.array([0, 3, 3])]).sum())(Z))
    each = jax.vmap(jax.grad(total), (None, 0))(Z, jnp.stack([index, index + 1]))
    assert_close(each, jnp.stack([jax.grad(total)(Z, index), jax.grad(total)(Z, index + 1)]))


def test_words_and_flags_arrive_in_kernel_and_gradient():
    mask, weight = jnp.arange(9) % 2 == 0, jnp.arange(9, dtype=jnp.uint8) * 20
    for options in ({}, {"fill": "one"}, {"invert": True}, {"fill": "one", "invert": True}):
        shown = mask ^ options.get("invert", False)
        other = float(options.get("fill") == "one")

        def blend(z, shown=shown, other=other):
            return jnp.where(shown[:, None], z * (weight / 255)[:, None], other)

        assert_close(choices.blend(Z, mask, weight, **options), blend(Z))
        found = jax.grad(lambda z, o=options: jnp.sin(choices.blend(z, mask, weight, **o)).sum())(Z)
        assert_close(found, jax.grad(lambda z, b=blend: jnp.sin(b(z)).sum())(Z))


def test_results_that_are_integers_stop_the_gradient():
    def total(z):
        return (results.count_above(z, share=0.25) * z[:, 0]).sum()

    expected = jax.grad(lambda z: ((z > 0.25).sum(-1) * z[:, 0]).sum())
    assert_close(jax.grad(total)(Z), expected(Z))


def test_ops_whose_gradients_have_gradients_are_differentiated_again():
    found = jax.jacrev(jax.grad(lambda v: results.dot(v, v) ** 2))(Z[0])
    assert_close(found, jax.hessian(lambda v: jnp.dot(v, v) ** 2)(Z[0]))


def test_zeros_stand_for_what_does_not_arrive():
    def total(x):
        return sum(o.sum() for o in results.normalise(x) if o is not None) * 0 + x.sum()

    assert_close(jax.grad(total)(Z), jnp.ones_like(Z))


def test_an_op_without_gradient_says_so():
    with pytest.raises(GradientError) as error:
        jax.grad(lambda z: results.extremes(z).least.sum())(Z)
    assert str(error.value) == results.extremes.no_gradient
    # What is not differentiated needs none.
    found = jax.grad(lambda z: (z[:, 0] * (results.extremes(z).least > 0)).sum())(Z)
    assert_close(found[:, 0], (Z.min(-1) > 0).astype(jnp.float32))


def test_wrong_gradient_rules_are_errors(monkeypatch):
    monkeypatch.setattr(results.dot, "gradient_rule", lambda x, y, d_out: (x[:2], y))
    monkeypatch.setattr(results.dot, "gradient_names", ("x", "y", "d_out"))
    with pytest.raises(TypeError, match=r"dot: the gradient rule gave float32\[2\] for an input"):
        jax.grad(results.dot)(Z[0], Z[1])
    for wrong, said in (
        (Z[:, :1], r"float32\[9, 1\] for an input of float32\[4\]"),
        (Z[0].astype(jnp.float16), r"float16\[4\] for an input of float32\[4\]"),
        (Z[0, 0], r"float32\[\] for an input of float32\[4\]"),
        (0.5, "a float for an input: give an array, or None"),
    ):
        monkeypatch.setattr(results.dot, "gradient_rule", lambda x, y, d_out, w=wrong: (w, y))
        with pytest.raises(TypeError, match=f"dot: the gradient rule gave {said}"):
            jax.grad(results.dot)(Z[0], Z[1])
    monkeypatch.setattr(results.dot, "gradient_rule", lambda x, y, d_out: (x,))
    with pytest.raises(TypeError, match="dot: the gradient rule gave 1 gradients for 2 inputs"):
        jax.grad(results.dot)(Z[0], Z[1])
    monkeypatch.setattr(results.dot, "gradient_rule", lambda x, y, d_out: None)
    with pytest.raises(TypeError, match="rule gave nothing for 2 inputs: give one gradient for"):
        jax.grad(results.dot)(Z[0], Z[1])


def twice(f):
    return lambda x: jax.grad(f)(x).sum()


@pytest.mark.parametrize(
    "second",
    [
        lambda f: jax.grad(twice(f))(X),
        lambda f: jax.jit(jax.grad(twice(f)))(X),
        lambda f: jax.jacrev(jax.jacrev(f))(X),
        lambda f: jax.vmap(jax.grad(twice(f)))(MANY),
        lambda f: jax.grad(twice(jax.checkpoint(f)))(X),
        lambda f: jax.grad(twice(jax.jit(f)))(X),
    ],
)
def test_second_derivatives_say_that_there_are_none(second):
    with pytest.raises(GradientError, match=TWICE):
        second(lambda x: loss(pairwise_l1)(x, Y))


def test_second_derivatives_through_kept_results_say_that_there_are_none():
    def total(x):
        return jnp.sin(results.normalise(x).y).sum()

    with pytest.raises(GradientError):
        jax.grad(twice(total))(Z)


@pytest.mark.parametrize(
    "forward",
    [
        lambda f: jax.jvp(f, (X,), (X,)),
        lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(X),
        lambda f: jax.jvp(jax.jit(f), (X,), (X,)),
        lambda f: jax.jacfwd(f)(X),
        lambda f: jax.linearize(f, X)[1](X),
        lambda f: jax.hessian(lambda x: jnp.sin(f(x)).sum())(X),
        lambda f: jax.jvp(jax.grad(lambda x: jnp.sin(f(x)).sum()), (X,), (X,)),
        lambda f: jax.grad(lambda x: jax.jvp(f, (x,), (X,))[1].sum())(X),
        lambda f: jax.vmap(lambda x: jax.jvp(f, (x,), (X,))[1])(MANY),
        lambda f: jax.jvp(jax.vmap(f), (MANY,), (MANY,)),
        lambda f: jax.jvp(lambda x: jax.lax.map(f, x), (MANY,), (MANY,)),
        lambda f: jax.jvp(jax.checkpoint(f), (X,), (X,)),
    ],
)
def test_forward_derivatives_say_that_there_are_none(forward):
    with pytest.raises(GradientError, match=FORWARD):
        forward(lambda x: pairwise_l1(x, Y))


def test_transposes_say_that_there_are_none():
    @jax.custom_jvp
    def slope(x):
        return pairwise_l1(x, Y)

    slope.defjvp(lambda primals, tangents: (slope(*primals), pairwise_l1(*tangents, Y)))
    for transposed in (
        lambda: jax.linear_transpose(lambda x: pairwise_l1(x, Y), X)(random(5, 6)),
        lambda: jax.grad(lambda x: slope(x).sum())(X),
    ):
        with pytest.raises(GradientError, match="pairwise_l1: cannot be transposed"):
            transposed()


def test_what_flows_back_and_what_is_kept_may_be_numpys():
    x, y, d_out = random(5, 7), random(6, 7), random(5, 6)
    expected = jax.vjp(pairwise_l1, x, y)[1](d_out)
    for found in (
        jax.vjp(pairwise_l1, x, y)[1](np.asarray(d_out)),
        jax.vjp(pairwise_l1, np.asarray(x), np.asarray(y))[1](d_out),
    ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_programs_of_old_attributes_are_given_up(monkeypatch):
    monkeypatch.setattr(jax_call, "_MOST", 4)
    x, handle = random(3, 2), connect(pairwise_lp)
    for i in range(20):
        pairwise_lp(x, x, p=2.0 + i / 8)
    assert len(handle.calls) <= 5
    assert len(handle.known) <= 5


@pytest.mark.parametrize("kind", ["grad", "vmap"])
def test_programs_of_eager_transforms_are_given_up(monkeypatch, kind):
    monkeypatch.setattr(jax_call, "_MOST", 4)
    x, handle = random(3, 2), connect(pairwise_lp)

    def run(p):
        if kind == "grad":
            jax.grad(lambda x: pairwise_lp(x, Y[:, :2], p=p).sum())(x)
        else:
            jax.vmap(lambda x: pairwise_lp(x, Y[:, :2], p=p))(x[None])

    run(2.0)
    programs = [call.applied for call in handle.calls.values()]
    assert sum(program._cache_size() for program in programs) > 0
    for i in range(20):
        run(3.0 + i / 8)
    assert sum(program._cache_size() for program in programs) == 0
