# SPDX-License-Identifier: Apache-2.0
"""Ops on arrays that are spread over devices. JAX counts devices once per process, so these tests
run as scripts of their own; this file is also what they import."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nativeops import chunk, pairwise_l1, rnn_layer
from nativeops.errors import DeviceError, NativeOpsError
from nativeops.testing.arrays_jax import composed_l1, random

COLLECTIVES = r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b"
SHARDY = "jax_use_shardy_partitioner"


def loss(op):
    return lambda x, y: jnp.sin(op(x, y)).sum()


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 2e-5, 2e-5), found, expected)


X, Y, MANY = random(8, 7), random(12, 7), random(8, 8, 7)
ours = jax.grad(loss(pairwise_l1), (0, 1))
theirs = jax.grad(loss(composed_l1), (0, 1))


def mesh_of(kind):
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=(getattr(AxisType, kind),) * 2)


def put(mesh, array, *spec):
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


def compiled(function, *args):
    """What a program gives, how that is spread, and which collectives the program contains."""
    program = jax.jit(function).lower(*args).compile()
    results = program(*args)
    specs = jax.tree.map(lambda r: tuple(r.sharding.spec), results)
    return results, specs, set(re.findall(COLLECTIVES, program.as_text()))


def strip(spec):
    """Without the axes at the end that are not spread."""
    while spec and spec[-1] is None:
        spec = spec[:-1]
    return spec


def check_values(kind):
    """Forward: nothing is communicated, and the result stays as spread as its axes."""
    mesh = mesh_of(kind)
    for x, x_spec, y_spec, spec in (
        (MANY, ("a",), (), ("a",)),
        (MANY, ("a", "b"), (), ("a", "b")),
        (X, ("a",), ("b",), ("a", "b")),
        (X, (("a", "b"),), (), (("a", "b"),)),
        (X, (), ("b",), (None, "b")),
    ):
        x_put, y_put = put(mesh, x, *x_spec), put(mesh, Y, *y_spec)
        out, found, collectives = compiled(pairwise_l1, x_put, y_put)
        assert_close(out, composed_l1(x, Y))
        assert strip(found) == spec, (found, spec)
        assert not collectives, collectives
        assert_close(pairwise_l1(x_put, y_put), composed_l1(x, Y))


def check_gradients(kind):
    """Backward: what must be summed is summed, and nothing is gathered."""
    mesh = mesh_of(kind)
    for x, x_spec, y_spec in (
        (X, ("a",), ()),
        (X, ("a",), ("b",)),
        (MANY, ("a",), ()),
        (MANY, ("a", "b"), ()),
    ):
        found, specs, collectives = compiled(ours, put(mesh, x, *x_spec), put(mesh, Y, *y_spec))
        assert_close(found, theirs(x, Y))
        assert [strip(spec) for spec in specs] == [x_spec, y_spec], specs
        assert collectives == {"all-reduce"}, collectives


def check_needs(kind):
    """An axis that the op needs as a whole is gathered: right, if not fast."""
    mesh = mesh_of(kind)
    x, y = random(8, 6), random(12, 6)
    found, _, collectives = compiled(pairwise_l1, put(mesh, x, None, "a"), put(mesh, y))
    assert_close(found, composed_l1(x, y))
    assert collectives
    many = put(mesh, MANY, "a")
    assert_close(
        jax.jit(jax.vmap(pairwise_l1, (0, None)))(many, put(mesh, Y)), composed_l1(MANY, Y)
    )


def check_uneven(kind):
    """Parts that are not alike: 6 rows over 4 places."""
    mesh = mesh_of(kind)
    spec = NamedSharding(mesh, PartitionSpec(("a", "b")))

    def total(x, y):
        return loss(pairwise_l1)(jax.lax.with_sharding_constraint(x * 2, spec), y)

    x = random(6, 7)
    found = jax.jit(jax.grad(total, (0, 1)))(put(mesh, x), put(mesh, Y))
    expected = jax.grad(lambda x, y: loss(composed_l1)(x * 2, y), (0, 1))(x, Y)
    assert_close(found, expected)


def check_shard_map(kind):
    """Each device calls the op itself; the gradient of what all share is summed."""
    mesh = mesh_of(kind)
    rows, whole = PartitionSpec("a"), PartitionSpec()
    x, y = put(mesh, X, "a"), put(mesh, Y)
    mapped = partial(jax.shard_map, mesh=mesh, in_specs=(rows, whole))
    assert_close(jax.jit(mapped(pairwise_l1, out_specs=rows))(x, y), composed_l1(X, Y))
    outer = jax.grad(lambda x, y: jnp.sin(mapped(pairwise_l1, out_specs=rows)(x, y)).sum(), (0, 1))
    assert_close(jax.jit(outer)(x, y), theirs(X, Y))
    inner = mapped(ours, out_specs=(rows, whole))
    assert_close(jax.jit(inner)(x, y), theirs(X, Y))
    partly = mapped(pairwise_l1, out_specs=rows, axis_names={"a"})
    if getattr(jax.config, SHARDY):
        assert_close(jax.jit(partly)(x, y), composed_l1(X, Y))
        return
    with pytest.raises(DeviceError, match=SHARDY):
        jax.jit(partly)(x, y)


def check_loops(kind):
    """An op without leading axes is called per item: if the items are spread, where they are."""

    def cut(x):
        return chunk(x, chunk_size=2, chunk_step=1).chunks

    mesh, many = mesh_of(kind), random(8, 5, 2, 3)
    for spec in ("a", ("a", "b")):
        mapped, collectives = compiled(jax.vmap(cut), put(mesh, many, spec))[::2]
        assert_close(mapped, jnp.stack([cut(item) for item in many]))
        gradient = jax.grad(lambda x: (jax.vmap(cut)(x) ** 2).sum())
        found, spread, _ = compiled(gradient, put(mesh, many, spec))
        assert_close(found, gradient(many))
        if kind == "Explicit":
            assert strip(spread) == (spec,)
            assert not collectives or jax.__version_info__[:2] == (0, 8), "which collects the items"


def check_shared(kind):
    """An op with an axis that items may share: whether they, or what is in each, is spread."""

    def total(x):
        return (jax.vmap(lambda x: rnn_layer(x, *weights).output)(x) ** 2).sum()

    weights = [random(2, 3), random(2, 2)]
    mesh, many = mesh_of(kind), random(8, 5, 4, 3)
    for spec in (("a",), (None, None, "b"), ("a", None, "b")):
        found, *_ = compiled(jax.grad(total), put(mesh, many, *spec))
        assert_close(found, jax.grad(total)(many))


def check(kind):
    checks = (check_values, check_gradients, check_needs, check_shard_map, check_loops)
    for one in (*checks, check_shared):
        one(kind)
    if kind == "Auto":
        check_uneven(kind)


def run(expression, devices=4):
    """Evaluate an expression over this file in a process that has several devices."""
    folder, module = Path(__file__).parent, Path(__file__).stem
    code = f"import sys; sys.path.append({str(folder)!r}); import {module} as t; {expression}"
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shardy"), [("Auto", True), ("Auto", False), ("Explicit", True)])
def test_arrays_may_be_spread_over_devices(kind, shardy):
    run(f"t.jax.config.update('{SHARDY}', {shardy}); t.check('{kind}')")


def test_independent_axes_must_stand_alone():
    from nativeops.declare import Array, Float, op

    def halves(x: Float[Array, "n"], y: Float[Array, "2*n"]) -> Float[Array, "n"]:  # noqa: F821
        """No documentation."""
        return x

    for names, text in (("n", "not independent where sizes"), ("m", "no input has")):
        with pytest.raises((TypeError, NativeOpsError), match=text):
            op(kernel="none.h", independent=names)(halves)
