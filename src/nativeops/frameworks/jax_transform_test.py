# SPDX-License-Identifier: Apache-2.0
"""Ops under JAX's transforms, and in programs that are saved."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from nativeops import chunk, pairwise_l1, pairwise_lp
from nativeops.errors import ShapeError
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_jax import composed_l1, random


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), found, expected)


def loss(op):
    return lambda x, y: jnp.sin(op(x, y)).sum()


X, Y, MANY = random(5, 7), random(6, 7), random(3, 5, 7)


@pytest.mark.parametrize(
    ("x", "y", "in_axes"),
    [
        (MANY, Y, (0, None)),
        (X, random(3, 6, 7), (None, 0)),
        (jnp.moveaxis(MANY, 0, 2), random(3, 6, 7), (2, 0)),
        (jnp.moveaxis(MANY, 0, 1), random(6, 3, 7), (1, -2)),
        (random(3, 2, 5, 7), random(3, 6, 7), (0, 0)),
        (random(3, 5, 7), random(3, 4, 2, 6, 7), (0, 0)),
        (random(2, 5, 7), random(3, 6, 7), (None, 0)),
        (random(0, 5, 7), Y, (0, None)),
    ],
)
def test_vmap_is_that_of_composed_jax(x, y, in_axes):
    assert_close(jax.vmap(pairwise_l1, in_axes)(x, y), jax.vmap(composed_l1, in_axes)(x, y))
    ours = jax.vmap(jax.grad(loss(pairwise_l1), (0, 1)), in_axes)
    expected = jax.vmap(jax.grad(loss(composed_l1), (0, 1)), in_axes)(x, y)
    assert_close(ours(x, y), expected)
    assert_close(jax.jit(ours)(x, y), expected)


def test_vmap_is_one_call_of_the_op():
    assert "scan" not in str(jax.make_jaxpr(jax.vmap(pairwise_l1, (0, None)))(MANY, Y))


def test_vmaps_nest_and_put_the_axis_anywhere():
    nested = jax.vmap(jax.vmap(pairwise_l1, (0, None)), (0, None))
    assert_close(nested(random(4, 3, 5, 7), Y), composed_l1(random(4, 3, 5, 7), Y))
    crossed = jax.vmap(jax.vmap(pairwise_l1, (None, 0)), (0, None), out_axes=2)
    two = random(2, 6, 7)
    assert_close(crossed(MANY, two), jnp.moveaxis(composed_l1(MANY[:, None], two), 0, 2))


def test_vmap_leaves_out_what_nobody_wants():
    d_out = random(3, 5, 6)
    one = jax.vmap(lambda x, d: pairwise_l1_grad.only(["d_x"])(x, Y, d))(MANY, d_out)
    assert one.d_y is None
    assert_close(one.d_x, pairwise_l1_grad(MANY, Y, d_out).d_x)


def test_vmap_of_a_wrong_call_says_the_same():
    with pytest.raises(ShapeError, match="axis `d` is 7 in `x` but 3 in `y`"):
        jax.vmap(pairwise_l1, (0, None))(MANY, random(6, 3))


def test_grad_of_vmap_is_that_of_composed_jax():
    def total(op):
        return lambda many: jnp.cos(jax.vmap(lambda x: jnp.sin(op(x, Y)).sum())(many)).sum()

    assert_close(jax.grad(total(pairwise_l1))(MANY), jax.grad(total(composed_l1))(MANY))


def walk(op):
    """A scan whose steps are computed again for the gradient."""

    def step(carry, scale):
        return carry + scale * jax.checkpoint(op)(carry, Y)[:, :1], carry.sum()

    return lambda x: jnp.sin(jax.lax.scan(step, x, jnp.arange(3.0))[0]).sum()


def test_scan_and_checkpoint_are_those_of_composed_jax():
    expected = jax.grad(walk(composed_l1))
    assert_close(jax.grad(walk(pairwise_l1))(X), expected(X))
    assert_close(jax.jit(jax.vmap(jax.grad(walk(pairwise_l1))))(MANY), jax.vmap(expected)(MANY))


def test_branches_and_loops_contain_ops():
    def branches(op):
        return lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: op(x, Y).sum(), lambda x: x.sum(), x)

    for x in (X, -X):
        assert_close(jax.grad(branches(pairwise_l1))(x), jax.grad(branches(composed_l1))(x))
    loop = jax.lax.fori_loop(0, 3, lambda _, x: x + pairwise_l1(x, Y)[:, :1], X)
    expected = jax.lax.fori_loop(0, 3, lambda _, x: x + composed_l1(x, Y)[:, :1], X)
    assert_close(loop, expected)


def test_custom_batching_sees_the_op():
    @jax.custom_batching.custom_vmap
    def one(x):
        return pairwise_l1(x, Y)

    @one.def_vmap
    def _(size, mapped, xs):
        return pairwise_l1(xs, Y), True

    assert_close(jax.vmap(one)(MANY), composed_l1(MANY, Y))


def exported(function, *shapes):
    """The function with symbolic shapes, saved."""
    scope = export.SymbolicScope()
    avals = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), jnp.float32)
        for shape in shapes
    ]
    checks = [export.DisabledSafetyCheck.custom_call("nativeops")]
    return export.export(jax.jit(function), disabled_checks=checks)(*avals).serialize()


@pytest.mark.parametrize(
    ("function", "x", "y", "shapes"),
    [
        (pairwise_l1, X, Y, ("n, d", "m, d")),
        (pairwise_l1, MANY, MANY, ("b, n, d", "b, m, d")),
        (jax.vmap(pairwise_l1, (0, None)), MANY, Y, ("b, n, d", "m, d")),
        (jax.grad(loss(pairwise_l1), (0, 1)), MANY, Y, ("b, n, d", "m, d")),
        (lambda x, y: pairwise_lp(x, y, p=3.1), X, Y, ("n, 7", "6, 7")),
    ],
)
def test_saved_programs_take_any_sizes(function, x, y, shapes):
    saved = export.deserialize(exported(function, *shapes))
    assert_close(saved.call(x, y), function(x, y))


def test_saved_programs_have_sizes_of_which_nobody_can_say_that_they_are_not_negative():
    def cut(x):
        return chunk(x, chunk_size=2, chunk_step=1).chunks

    shape = export.symbolic_shape("t, b, d", constraints=["t >= 4"])  # the result has b*t - b
    checks = [export.DisabledSafetyCheck.custom_call("nativeops")]
    aval = jax.ShapeDtypeStruct(shape, jnp.float32)
    saved = export.export(jax.jit(cut), disabled_checks=checks)(aval)
    x = random(6, 5, 7)
    assert_close(saved.call(x), cut(x))


def test_saved_programs_are_checked_when_they_are_made():
    with pytest.raises(ShapeError, match="axis `d` is d in `x` but e in `y`"):
        exported(pairwise_l1, "n, d", "m, e")
    with pytest.raises(ShapeError, match=r"leading axes `\*b` are \[b\] in `x` but \[c\] in `y`"):
        exported(pairwise_l1, "b, n, d", "c, m, d")


LOAD = """
import sys
import {first}, {second}
import jax, numpy as np
from jax import export
x, y = np.load(sys.argv[2]), np.load(sys.argv[3])
saved = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
np.save(sys.argv[4], saved.call(x, y))
"""


def load(folder, saved, x, y, first="jax", second="nativeops"):
    """What a saved program gives in a fresh process; or the end of what it says."""
    paths = [folder / name for name in ("program", "x.npy", "y.npy", "out.npy")]
    paths[0].write_bytes(saved)
    np.save(paths[1], x)
    np.save(paths[2], y)
    code = LOAD.format(first=first, second=second)
    command = [sys.executable, "-c", code, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return np.load(paths[3]) if done.returncode == 0 else done.stderr[-2000:]


@pytest.mark.parametrize(
    ("first", "second"), [("jax", "nativeops"), ("nativeops", "nativeops.frameworks.jax")]
)
def test_saved_programs_run_in_a_fresh_process(tmp_path, first, second):
    function = jax.grad(lambda x, y: jnp.sin(pairwise_lp(x, y, p=3.1)).sum())
    found = load(tmp_path, exported(function, "n, d", "m, d"), X, Y, first, second)
    assert_close(found, function(X, Y))


def test_saved_programs_say_what_they_lack(tmp_path):
    saved = exported(pairwise_l1, "n, d", "m, d")
    renamed = bytes(saved).replace(b"pairwise_l1", b"pairwise_l0")
    assert renamed != bytes(saved)
    said = load(tmp_path, renamed, X, Y)
    assert "pairwise_l0: is not a known op" in said
    assert 'nativeops.frameworks.load("jax")' in said


def test_vmap_does_not_let_the_mapped_axis_stand_in_for_a_missing_one():
    x, y = random(3, 7), random(6, 7)
    for call in (
        lambda: jax.vmap(pairwise_l1)(x, x),
        lambda: jax.vmap(pairwise_l1, (0, None))(x, y),
        lambda: jax.jit(jax.vmap(pairwise_l1))(x, random(3, 6, 7)),
        lambda: jax.vmap(jax.vmap(pairwise_l1))(random(2, 3, 7), random(2, 3, 7)),
    ):
        with pytest.raises(ShapeError):
            call()
