# SPDX-License-Identifier: Apache-2.0
"""Calls with JAX arrays: values, errors, and what JAX's users do around a call."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nativeops import ctc_prefixes, lstm_layer, pairwise_l1, pairwise_lp
from nativeops.errors import (
    AllocationError,
    ArgumentError,
    BuildError,
    DeviceError,
    DtypeError,
    RangeError,
    ShapeError,
)
from nativeops.frameworks import jax_absent
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_jax import composed_l1, enabled_64_bits, random


def assert_close(found, expected, rtol=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol, 1e-5
        ),
        found,
        expected,
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_value_is_that_of_composed_jax(dtype):
    x, y = random(3, 1, 5, 7, dtype=dtype), random(2, 6, 7, dtype=dtype)
    out = pairwise_l1(x, y)
    assert isinstance(out, jax.Array)
    assert out.dtype == dtype
    expected = composed_l1(x.astype(jnp.float32), y.astype(jnp.float32))
    assert_close(out, expected.astype(dtype), rtol=float(4 * jnp.finfo(dtype).eps))
    assert_close(jax.jit(pairwise_l1)(x, y), out, rtol=0)


def test_float64_is_computed_in_float64():
    with enabled_64_bits():
        x, y = random(5, 7, dtype=jnp.float64), random(6, 7, dtype=jnp.float64)
        out = pairwise_lp(x, y, p=3.1)
        assert out.dtype == jnp.float64
        expected = pairwise_lp.reference(np.asarray(x), np.asarray(y), p=3.1)
        np.testing.assert_allclose(out, expected, rtol=1e-13)


@pytest.mark.parametrize("p", [1, 1.0, 2.0, 3.1, float("inf"), np.float32(3), np.int64(2)])
def test_attributes_arrive_as_written(p):
    x, y = random(5, 7), random(6, 7)
    expected = pairwise_lp.reference(np.float64(x), np.float64(y), p=float(p))
    assert_close(pairwise_lp(x, y, p=p), expected)
    assert_close(pairwise_lp(y=y, x=x, p=p), expected)
    assert_close(jax.jit(lambda x, y: pairwise_lp(x, y=y, p=p))(x, y), expected)
    assert_close(jax.jit(pairwise_lp, static_argnames="p")(x, y, p=p), expected)
    assert_close(pairwise_lp(x, y), pairwise_lp(x, y, p=2.0))


def test_numbers_that_compare_equal_are_told_apart():
    x, y = random(5, 7), random(6, 7)
    pairwise_lp(x, y, p=1)
    pairwise_lp(x, y, p=1.0)
    with pytest.raises(DtypeError, match="`p` must be float, but is True"):
        pairwise_lp(x, y, p=True)


def test_arrays_are_no_attributes_while_they_are_traced():
    x, y = random(5, 7), random(6, 7)
    assert_close(pairwise_lp(x, y, p=jnp.float32(3)), pairwise_lp(x, y, p=3.0))
    with pytest.raises(DtypeError, match="`p` must be float, but is"):
        jax.jit(lambda p: pairwise_lp(x, y, p=p))(3.0)
    # One that is known is a number, and no step of the program reads it.
    known = jnp.float32(3)
    program = jax.make_jaxpr(lambda x: pairwise_lp(x, y, p=known))(x)
    assert [str(step.primitive) for step in program.eqns] == ["nativeops"]


def test_variables_of_other_libraries_are_the_arrays_they_hold():
    class Variable:
        def __init__(self, value):
            self.value, self.dtype = value, value.dtype

        def __jax_array__(self):
            return self.value

    x, y = random(5, 7), random(6, 7)
    assert_close(pairwise_l1(x, Variable(y)), composed_l1(x, y))
    assert_close(pairwise_l1(y=Variable(y), x=x), composed_l1(x, y))
    assert_close(pairwise_l1(Variable(x), y), composed_l1(x, y))
    assert_close(pairwise_l1(Variable(x), Variable(y)), composed_l1(x, y))
    slope = jax.jit(jax.grad(lambda y: pairwise_l1(x, Variable(y)).sum()))
    assert_close(slope(y), jax.grad(lambda y: composed_l1(x, y).sum())(y))
    with pytest.raises(ShapeError, match="axis `d` is 7 in `x` but 3 in `y`"):
        pairwise_l1(x, Variable(random(6, 3)))


def test_results_that_nobody_wants_are_not_made():
    x, y, d_out = random(5, 7), random(6, 7), random(5, 6)
    both = pairwise_l1_grad(x, y, d_out)
    only = pairwise_l1_grad.only(["d_x"])
    for call in (only, jax.jit(only), lambda *a: pairwise_l1_grad(*a, want=["d_x"])):
        one = call(x, y, d_out)
        assert type(one) is type(both)
        assert one.d_y is None
        assert_close(one.d_x, both.d_x, rtol=0)
    assert_close(pairwise_l1_grad.only("d_x")(x, y, d_out=d_out).d_x, both.d_x, rtol=0)
    assert_close(pairwise_l1_grad.only(["d_y"])(x, y, d_out=d_out).d_y, both.d_y, rtol=0)
    [equation] = jax.make_jaxpr(pairwise_l1_grad.only(["d_y"]))(x, y, d_out).eqns
    assert [v.aval.shape for v in equation.outvars] == [(6, 7)]


@pytest.mark.parametrize(
    ("x", "y"), [((0, 7), (3, 7)), ((3, 0), (2, 0)), ((0, 2, 3), (4, 3)), ((2, 0, 3), (4, 3))]
)
def test_empty_arrays_give_empty_or_zero_results(x, y):
    x, y = jnp.zeros(x), jnp.zeros(y)
    assert_close(pairwise_l1(x, y), composed_l1(x, y))
    assert pairwise_l1(x, y).shape == composed_l1(x, y).shape


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda x, y, make: (make(x), make(y[:, :3])), ShapeError),
        (lambda x, y, make: (make(x[0]), make(y)), ShapeError),
        (
            lambda x, y, make: (make(x[None, None].repeat(2, 1)), make(y[None].repeat(3, 0))),
            ShapeError,
        ),
        (lambda x, y, make: (make(x), make(y.astype(np.float16))), DtypeError),
        (lambda x, y, make: (make(x.astype(np.int32)), make(y)), DtypeError),
    ],
)
def test_errors_say_what_they_say_for_numpy(make, error):
    x, y = np.zeros((5, 7), np.float32), np.zeros((6, 7), np.float32)
    with pytest.raises(error) as expected:
        pairwise_l1(*make(x, y, np.asarray))
    arrays = make(x, y, jnp.asarray)
    for call in (pairwise_l1, jax.jit(pairwise_l1), lambda *a: jax.eval_shape(pairwise_l1, *a)):
        with pytest.raises(error) as found:
            call(*arrays)
        assert str(found.value) == str(expected.value)
    with pytest.raises(error) as eager:
        pairwise_l1(*arrays)
    assert not getattr(eager.value, "__notes__", None), "JAX added words of its own"


def test_out_and_other_frameworks_are_refused():
    x, y = random(5, 7), random(6, 7)
    with pytest.raises(ArgumentError, match="`out` is for NumPy arrays"):
        pairwise_l1(x, y, out=x)
    with pytest.raises(ArgumentError, match="`x` is a jax array but `y` is a numpy array"):
        pairwise_l1(x, np.asarray(y))
    with pytest.raises(ArgumentError, match="`x` is a numpy array but `y` is a jax array"):
        pairwise_l1(np.asarray(x), y)
    with pytest.raises(ArgumentError, match="`x` is a jax array but `y` is a numpy array"):
        jax.jit(lambda x: pairwise_l1(x, np.asarray(y)))(x)
    with pytest.raises(ArgumentError, match="`y` must be an array, but is list"):
        pairwise_l1(x, [[1.0]])
    with pytest.raises(RangeError, match="`want` must be among"):
        pairwise_l1_grad(x, y, random(5, 6), want=["d_z"])


def test_too_large_a_result_says_so():
    x = jnp.zeros((2**21, 1))
    with pytest.raises(AllocationError, match=r"float32\[2097152, 2097152\] has 17592186044416"):
        pairwise_l1(x, x)


def test_abstract_arrays_give_the_shape_alone():
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((3, 1, 5, 7), (2, 6, 7))]
    out = jax.eval_shape(pairwise_l1, *shapes)
    assert (out.shape, out.dtype) == ((3, 2, 5, 6), jnp.bfloat16)


def test_calls_after_the_first_go_straight_to_the_compiled_function(monkeypatch):
    x, y = random(5, 7), random(6, 7)
    expected = pairwise_l1(x, y)
    handle = pairwise_l1.handles["jax"]
    made = []
    n, compiled = handle.direct
    monkeypatch.setattr(handle, "direct", (n, lambda *arrays: made.append(arrays) or "made"))
    assert pairwise_l1(x, y) == "made"
    assert made == [(x, y)]
    # All else takes the long way: keywords, NumPy's arrays, traced ones, too many or too few.
    np.testing.assert_array_equal(pairwise_l1(x, y=y), expected)
    np.testing.assert_array_equal(jax.jit(pairwise_l1)(x, y), expected)
    for arrays in [(x, np.asarray(y)), (x,), (x, y, y)]:
        with pytest.raises((ArgumentError, TypeError), match="pairwise_l1: "):
            pairwise_l1(*arrays)
    assert len(made) == 1
    # Where the function fails, the long way says why.
    monkeypatch.setattr(handle, "direct", (n, compiled))
    with pytest.raises(ShapeError, match=r"axis `d` is 7 in `x` but 5 in `y`"):
        pairwise_l1(x, x.T)


def test_an_interrupt_is_not_taken_for_an_error(monkeypatch):
    x = random(5, 7)
    pairwise_l1(x, x)
    handle = pairwise_l1.handles["jax"]

    def interrupt(*arrays):
        raise KeyboardInterrupt

    monkeypatch.setattr(handle, "direct", (handle.direct[0], interrupt))
    with pytest.raises(KeyboardInterrupt):
        pairwise_l1(x, x)


def test_results_are_not_weakly_typed():
    x = jnp.broadcast_to(jnp.asarray(1.0), (5, 7))
    assert jax.typeof(x).weak_type
    assert not jax.typeof(pairwise_l1(x, x)).weak_type
    assert not jax.jit(pairwise_l1).eval_shape(x, x).weak_type


def test_transposed_inputs_are_read_in_their_order():
    x, y = random(7, 5), random(6, 7)
    assert_close(jax.jit(lambda x, y: pairwise_l1(x.T, y))(x, y), composed_l1(x.T, y))


def test_donated_arrays_may_be_inputs():
    donate = jax.jit(lambda x, y: (pairwise_l1(x, y), x + 1), donate_argnums=0)
    x, y = random(5, 7), random(6, 7)
    expected = composed_l1(x, y), x + 1
    assert_close(donate(x + 0, y), expected)


def test_nans_are_found_where_jax_looks_for_them():
    x = random(5, 7)
    bad = jax.device_put(np.full((6, 7), np.nan, np.float32))
    with jax.debug_nans(True):
        assert_close(jax.jit(pairwise_l1)(x, x), composed_l1(x, x))
        for call in (pairwise_l1, jax.jit(pairwise_l1)):
            with pytest.raises(FloatingPointError, match="nan"):
                call(x, bad)
        with pytest.raises(FloatingPointError, match="in pairwise_l1"):
            jax.grad(lambda x: pairwise_l1(x, bad).sum())(x)


def test_without_jit_it_computes_the_same():
    x, y = random(5, 7), random(6, 7)
    with jax.disable_jit():
        assert_close(pairwise_l1(x, y), composed_l1(x, y))
        assert_close(
            jax.grad(lambda x: pairwise_l1(x, y).sum())(x), jnp.sign(x[:, None] - y).sum(1)
        )


def test_threads_may_call_at_once():
    def work(seed):
        x, y = random(17, 9) + seed, random(13, 9)
        gradient = jax.grad(lambda x: jnp.sin(pairwise_lp(x, y, p=2.0 + seed)).sum())
        for _ in range(20):
            found = pairwise_l1(x, y), gradient(x), jax.jit(pairwise_l1)(y, x)
        return found

    alone = [work(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert_close(list(pool.map(work, range(8))), alone, rtol=0)


def test_ops_copy_and_pickle():
    assert pickle.loads(pickle.dumps(pairwise_l1)) is pairwise_l1
    assert copy.deepcopy(pairwise_l1) is pairwise_l1


def test_profilers_see_the_name():
    text = jax.jit(pairwise_l1).lower(random(5, 7), random(6, 7)).as_text()
    assert 'op.key = "pairwise_l1"' in text
    assert "pairwise_l1" in str(jax.make_jaxpr(pairwise_l1)(random(5, 7), random(6, 7)))


def test_a_build_without_jaxlib_says_what_to_do(monkeypatch):
    from nativeops.errors import BuildError
    from nativeops.frameworks import jax as adapter

    class Extension:
        @staticmethod
        def xla_handler(platform):
            return None

    monkeypatch.setattr(adapter, "extension", Extension)
    with pytest.raises(BuildError, match="jaxlib was not installed") as error:
        adapter.Jax()
    assert "install jaxlib" in str(error.value)


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ("there is no memory for a workspace.", AllocationError, "no memory for a workspace"),
        ("RESOURCE_EXHAUSTED: Out of memory", AllocationError, r"the result: float32\[4, 5\]"),
        ("there is no kernel for these dtypes on this device", BuildError, "on cpu that fits"),
        ("`x[1]` is 7, but must be from 0 to 5, the x.", RangeError, r"`x\[1\]` is 7"),
        ("something else", RuntimeError, "something else"),
    ],
)
def test_failures_are_those_of_other_frameworks(monkeypatch, said, error, text):
    def fail(*_):
        raise RuntimeError(f"INTERNAL: pairwise_l1: {said}")

    x, y = random(4, 3), random(5, 3)
    pairwise_l1(x, y)
    handle = pairwise_l1.handles["jax"]
    monkeypatch.setattr(handle, "direct", (2, fail))
    with pytest.raises(error, match=text):
        pairwise_l1(x, y)


def test_op_of_the_cpu_is_refused_where_a_program_is_lowered_for_cuda():
    program = jax.jit(ctc_prefixes).trace(jnp.zeros((3, 1, 4)))
    with pytest.raises(DeviceError, match="ctc_beam_search: it runs on the CPU only"):
        program.lower(lowering_platforms=("cuda",))


def test_call_where_there_are_no_64_bits_leaves_later_ones_alone(monkeypatch) -> None:
    monkeypatch.setattr(jax_absent, "_made", {})
    with enabled_64_bits():
        given = [jnp.ones(shape, "float64") for shape in ((5, 3, 4), (24, 4), (24, 6))]
        with ThreadPoolExecutor(1) as pool:  # 64 bits are of this thread only
            assert isinstance(pool.submit(lstm_layer, *given).exception(), DtypeError)
        assert lstm_layer(*given).output.dtype == "float64"
