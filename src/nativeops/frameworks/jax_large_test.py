# SPDX-License-Identifier: Apache-2.0
"""Large results of eager calls in JAX: memory that is ready, and otherwise as XLA makes them."""

import gc
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nativeops import lstm_layer, pairwise_l1, pairwise_lp
from nativeops.errors import AllocationError, ShapeError
from nativeops.frameworks import jax_large
from nativeops.testing.arrays_jax import enabled_64_bits, random

ROWS = 1449  # results of more than 8 MB


@pytest.fixture
def ways(monkeypatch):
    """The ops that were computed in memory that is ready, one for each such call."""
    for op in (pairwise_l1, pairwise_lp):
        op(random(ROWS, 3), random(ROWS, 3))  # the first large result is XLA's
    taken, compute = [], jax_large.compute
    monkeypatch.setattr(
        jax_large, "compute", lambda op, *rest: (taken.append(op.name), compute(op, *rest))[1]
    )
    return taken


def by_xla(op, *arrays, **attributes):
    return jax.jit(lambda *a: op(*a, **attributes))(*arrays)


def test_next_result_lies_where_the_last_one_was(ways):
    x, places = random(ROWS, 3), set()
    for _ in range(4):
        result = pairwise_l1(x, x)
        places.add(result.unsafe_buffer_pointer())
        del result
        gc.collect()
    assert len(places) == 1
    assert ways == ["pairwise_l1"] * 4


def test_a_program_is_traced_as_if_there_had_been_none(ways):
    x = random(ROWS, 3)
    program = str(jax.make_jaxpr(lambda p: (pairwise_l1(x, x) * p).sum())(1.0))
    assert "nativeops[" in program
    assert not ways


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_they_equal_those_of_xla(ways, dtype):
    x, y = random(ROWS, 3, dtype=dtype), random(ROWS + 1, 3, dtype=dtype)
    for op, attributes in ((pairwise_l1, {}), (pairwise_lp, {"p": 3.0})):
        found, expected = op(x, y, **attributes), by_xla(op, x, y, **attributes)
        assert type(found) is type(expected)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.sharding == expected.sharding
        assert found.weak_type == expected.weak_type
        assert np.array_equal(found, expected)
    made = ["pairwise_l1", "pairwise_lp"]
    assert ways == ([] if dtype == jnp.bfloat16 else made)  # NumPy itself has no bfloat16


@pytest.mark.parametrize("bound", [False, True])
def test_they_are_bound_to_the_device_as_those_of_xla(ways, bound):
    """A program would be compiled again for arguments that are not."""
    x = jax.device_put(random(ROWS, 3), jax.devices()[0] if bound else None)
    program = jax.jit(lambda z: z + 1)
    program(by_xla(pairwise_l1, x, x))
    for y in (x, random(ROWS, 3)):
        found = pairwise_l1(x, y)
        assert found.committed == by_xla(pairwise_l1, x, y).committed == bound
        program(found)
    assert program._cache_size() == 1
    assert ways == ["pairwise_l1"] * 2


def test_double_precision_stays_with_xla(ways):
    with enabled_64_bits():
        x = random(ROWS, 3, dtype=jnp.float64)
        assert pairwise_l1(x, x).dtype == jnp.float64
        assert pairwise_l1(x.astype(jnp.float32), x.astype(jnp.float32)).dtype == jnp.float32
    assert ways == ["pairwise_l1"]


def test_several_results_and_absent_inputs(ways):
    steps, batch, units = 600, 8, 256  # 4.9 MB of outputs
    x, weights = random(steps, batch, 16), (random(4 * units, 16), random(4 * units, units))
    for want in (None, ("output", "h_n", "c_n")):
        for _ in range(2):
            found = lstm_layer(x, *weights, want=want)
        expected = by_xla(lstm_layer, x, *weights, want=want)
        assert type(found) is type(expected)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or np.array_equal(one, other)
    assert "lstm_layer" in ways


def test_small_results_stay_with_xla(ways):
    assert pairwise_l1(random(5, 3), random(6, 3)).shape == (5, 6)
    assert not ways


def test_results_are_like_any_array(ways):
    x = random(ROWS, 3)
    result = pairwise_l1(x, x)
    before = np.array(result)
    assert np.array_equal(jax.jit(operator.neg, donate_argnums=0)(result), -before)
    held = pairwise_l1(x, x)
    others = [pairwise_l1(x + 1, x) for _ in range(3)]
    assert len({a.unsafe_buffer_pointer() for a in (held, *others)}) == 4
    row = held[7]
    del held
    gc.collect()
    pairwise_l1(x + 2, x).block_until_ready()
    assert np.array_equal(row, before[7])
    assert len(ways) == 6
    summed = jax.grad(lambda x: pairwise_l1(x, x + 1).sum())(x)  # traced: nothing of this applies
    assert np.isfinite(summed).all()


def test_what_looks_at_programs_still_sees_them(ways):
    x = jnp.full((ROWS, 3), jnp.nan)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        pairwise_l1(x, x).block_until_ready()
    assert not ways
    with jax.transfer_guard("disallow_explicit"):
        pairwise_l1(x, x).block_until_ready()
    assert not ways
    with jax.transfer_guard("disallow"):
        pairwise_l1(x, x).block_until_ready()
    assert ways


def test_errors_are_the_same(ways):
    x = random(ROWS, 3)
    with pytest.raises(ShapeError, match="`y`"):
        pairwise_l1(x, random(ROWS, 4))
    with pytest.raises(AllocationError, match="no memory for the result: float32"):
        pairwise_l1(jnp.zeros((2**22, 1)), jnp.zeros((2**22, 1)))
    assert pairwise_l1(x, x)[3, 3] == 0
