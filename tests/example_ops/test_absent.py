# SPDX-License-Identifier: Apache-2.0
"""Optional inputs beyond the generated cases: the fast path, and what is done to programs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nativeops import library, registry
from nativeops.errors import ArgumentError, DtypeError, ShapeError
from nativeops.frameworks import numpy as numpy_adapter
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import installed
from nativeops.testing.arrays import arrays_of

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="2", TF_NUM_INTEROP_THREADS="2")

from .absent import outer, pool, project

for name in [op.name for op in registry.ops() if not op.built_in]:
    del registry._OPS[name]  # other tests look at the ops of the package
PRESENT = [framework for framework in FRAMEWORKS if installed(framework)]

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 4)).astype("float32")
LENGTHS = np.array([2, 3], "int32")
WEIGHT = RANDOM.standard_normal(3).astype("float32")
CHOICES = [
    {},
    {"lengths": LENGTHS},
    {"weight": WEIGHT},
    {"lengths": LENGTHS, "weight": WEIGHT},
]
each_choice = pytest.mark.parametrize("given", CHOICES, ids=lambda given: "+".join(given) or "none")


def expected(given, scale=1):
    return pool.reference(scale * X, **given)


def slope(given):
    """The gradient of Σ out with respect to x."""
    shown = np.ones((2, 3)) if "lengths" not in given else np.arange(3) < LENGTHS[:, None]
    factors = given.get("weight", np.ones(3))
    return np.broadcast_to((shown * factors)[..., None], X.shape)


def assert_close(found, wanted):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)


@each_choice
def test_fast_path_of_numpy_takes_none_and_keywords(given, monkeypatch):
    pool(X)  # defines it

    def refuse(*_):
        raise AssertionError("the slow path was taken")

    core = library.extension()
    dtypes = tuple(None if d == "bfloat16" else np.dtype(d) for d in library.DTYPES)
    core.connect_numpy(np.ndarray, np.empty, dtypes, refuse)
    try:
        named = core.fast(pool, (X,), given)
        placed = core.fast(pool, (X, given.get("lengths"), given.get("weight")), {})
    finally:
        type(numpy_adapter.framework)()  # connects the adapter again
    assert_close(named, expected(given))
    assert_close(placed, expected(given))


@pytest.mark.parametrize("framework", PRESENT)
def test_none_may_be_said_or_left_away(framework):
    arrays = arrays_of(framework, "cpu")
    x, weight = (arrays.place(a, "float32").array for a in (X, WEIGHT))
    for _ in range(2):  # also what was remembered of the first call
        for found in (pool(x, None, weight), pool(x, weight=weight), pool(x=x, weight=weight)):
            assert_close(arrays.values(found), expected({"weight": WEIGHT}))
        for found in (pool(x), pool(x, None), pool(x, None, None), pool(x, weight=None)):
            assert_close(arrays.values(found), expected({}))


@pytest.mark.parametrize("framework", PRESENT)
def test_size_that_only_an_absent_input_tells_is_missed(framework):
    x = arrays_of(framework, "cpu").place(X[0, 0], "float32").array
    with pytest.raises(ShapeError) as error:
        outer(x)
    assert str(error.value) == (
        "outer: nothing tells the size `m` of the result.\n"
        "    x: float32[4]   declared Float[n]\n"
        "    y: None         declared Float[m] | None\n"
        "  hint: give `y`."
    )
    project(x)  # where no certain result needs the size, it is not missed


@pytest.mark.parametrize("framework", PRESENT)
def test_wrong_optional_inputs_are_explained_alike(framework):
    arrays = arrays_of(framework, "cpu")
    x, long = arrays.place(X, "float32").array, arrays.place(np.ones(7), "float32").array
    with pytest.raises(ShapeError) as error:
        pool(x, weight=long)
    assert str(error.value) == (
        "pool: axis `t` is 3 in `x` but 7 in `weight`.\n"
        "    x: float32[2, 3, 4]   declared Float[*n b t d]\n"
        "    lengths: None         declared Int[*n b] | None\n"
        "    weight: float32[7]    declared Float[*n t] | None\n"
        "  hint: give `weight` the size 3 along `t`."
    )
    with pytest.raises(ArgumentError, match="`lengths` must be an array, but is list"):
        pool(x, [1.0, 2.0])
    with pytest.raises(ArgumentError, match="multiple values for argument 'lengths'"):
        pool(x, None, lengths=None)


@each_choice
def test_torch_transforms_and_programs(given):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    given = {name: torch.from_numpy(array) for name, array in given.items()}
    plain = {name: tensor.numpy() for name, tensor in given.items()}

    def total(x, given):
        return pool(x, **given).sum()

    many = torch.stack([x, 2 * x])
    mapped = torch.func.vmap(lambda x: pool(x, **given))(many)
    assert_close(mapped, [expected(plain), expected(plain, 2)])
    per_item = torch.func.vmap(torch.func.grad(total), (0, None))(many, given)
    assert_close(per_item, [slope(plain)] * 2)
    compiled = torch.compile(torch.func.grad(total), fullgraph=True, backend="aot_eager")
    assert_close(compiled(x, given), slope(plain))
    leaf = x.clone().requires_grad_()
    traced = torch.fx.experimental.proxy_tensor.make_fx(
        lambda x, given: torch.autograd.grad(total(x, given), x)[0], tracing_mode="symbolic"
    )(leaf, given)
    assert_close(traced(x, given), slope(plain))
    with torch.inference_mode():
        assert_close(pool(x, **given), expected(plain))
    total(leaf, given).backward()  # an empty tensor of inference mode could not be kept
    assert_close(leaf.grad, slope(plain))


@pytest.mark.parametrize("dtype", ["float64", "bool", "complex64"])
@pytest.mark.parametrize("name", ["lengths", "weight"])
def test_an_empty_array_of_a_wrong_dtype_is_refused_alike(name, dtype):
    said = set()
    for framework in PRESENT:
        array = arrays_of(framework, "cpu").place
        if dtype == "float64" and framework == "jax":
            continue  # it has no such array as long as it has no 64-bit numbers
        shape = (0, 0) if name == "lengths" else (0,)
        empty = array(np.zeros(shape), dtype).array
        with pytest.raises(DtypeError) as error:
            pool(array(X, "float32").array, **{name: empty})
        said.add(str(error.value))
    assert len(said) == 1
    assert f"{name}: {dtype}{list(shape)}" in said.pop()


def test_torch_exports_with_a_dynamic_size():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x):
            return pool(x, weight=torch.ones(3))

    x = torch.from_numpy(X)
    size = torch.export.Dim("size", min=1, max=99)
    program = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: size}})
    assert_close(program.module()(torch.cat([x, x])), np.tile(X.sum(1), (2, 1)))


def test_torch_gives_the_gradient_of_an_empty_tensor():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X).requires_grad_()
    weight = torch.zeros(0, requires_grad=True)
    d_x, d_weight = torch.autograd.grad(pool(x, None, weight).sum(), [x, weight])
    assert_close(d_x, slope({}))
    assert d_weight.shape == (0,)


def test_torch_checks_of_a_registered_op_pass():
    torch = pytest.importorskip("torch")
    from torch.library import opcheck

    x, weight = torch.from_numpy(X).requires_grad_(), torch.from_numpy(WEIGHT).requires_grad_()
    pool(x)
    run = pool.handles["torch"].full
    opcheck(run, (x, torch.from_numpy(LENGTHS), weight))
    opcheck(run, (x, torch.zeros(0, dtype=torch.int32), torch.zeros(0)))


@each_choice
def test_jax_transforms(given):
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X)
    given = {name: jax.numpy.asarray(array) for name, array in given.items()}
    plain = {name: np.asarray(array) for name, array in given.items()}

    def total(x, given):
        return pool(x, **given).sum()

    many = jax.numpy.stack([x, 2 * x])
    assert_close(jax.vmap(lambda x: pool(x, **given))(many), [expected(plain), expected(plain, 2)])
    per_item = jax.jit(jax.vmap(jax.grad(total), (0, None)))(many, given)
    assert_close(per_item, [slope(plain)] * 2)
    assert_close(jax.checkpoint(jax.grad(total))(x, given), slope(plain))
    size = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3, 4"), "float32")
    allowed = [jax.export.DisabledSafetyCheck.custom_call("nativeops")]
    if "lengths" not in given:
        exported = jax.export.export(jax.jit(lambda x: pool(x, **given)), disabled_checks=allowed)(
            size
        )
        both = jax.numpy.concatenate([x, x])
        assert_close(exported.call(both), np.tile(expected(plain), (2, 1)))


def test_jax_spreads_what_is_there(cache):
    pytest.importorskip("jax")
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n" + SPREAD
    options = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "NATIVEOPS_CACHE": str(cache)
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], env=options, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


SPREAD = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from example_ops.absent import pool

random = np.random.default_rng(0)
x = random.standard_normal((4, 2, 3, 4)).astype("float32")
weight = random.standard_normal(3).astype("float32")
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        put = jax.device_put(x, NamedSharding(mesh, PartitionSpec("a")))
        whole = NamedSharding(mesh, PartitionSpec())
        for given in ({}, {"weight": weight}):
            held = {name: jax.device_put(value, whole) for name, value in given.items()}
            program = jax.jit(lambda x: pool(x, **held)).lower(put).compile()
            assert "all-gather" not in program.as_text()
            np.testing.assert_allclose(program(put), pool.reference(x, **given), 1e-5, 1e-5)
            np.testing.assert_allclose(pool(put, **held), pool.reference(x, **given), 1e-5, 1e-5)
            factors = given.get("weight", np.ones(3))[:, None]
            slope = jax.jit(jax.grad(lambda x: pool(x, **held).sum()))(put)
            np.testing.assert_allclose(slope, np.broadcast_to(factors, x.shape), 1e-5, 1e-5)
mesh = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,))
spec = PartitionSpec("a")
mapped = jax.jit(jax.shard_map(pool, mesh=mesh, in_specs=spec, out_specs=spec))(x)
np.testing.assert_allclose(mapped, pool.reference(x), 1e-5, 1e-5)
"""


@each_choice
def test_tensorflow_graphs_and_saved_programs(given, tmp_path):
    tf = pytest.importorskip("tensorflow")
    x = tf.constant(X)
    given = {name: tf.constant(array) for name, array in given.items()}
    plain = {name: tensor.numpy() for name, tensor in given.items()}

    def gradient(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x))
        return tape.gradient(total, x)

    module = tf.Module()
    for shape in ([2, 3, 4], [None, None, 4], None):
        spec = tf.TensorSpec(shape, tf.float32)
        module.run = tf.function(lambda x: pool(x, **given), input_signature=[spec])
        assert_close(module.run(x), expected(plain))
        assert_close(gradient(module.run), slope(plain))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path)).run
    assert_close(loaded(x), expected(plain))
    assert_close(gradient(loaded), slope(plain))
    many = tf.stack([x, 2 * x])
    mapped = tf.vectorized_map(lambda x: pool(x, **given), many)
    assert_close(mapped, [expected(plain), expected(plain, 2)])


@pytest.mark.parametrize("tape", ["inside", "outside"])
@pytest.mark.parametrize("weight", [WEIGHT, WEIGHT[:0]], ids=["given", "absent"])
def test_tensorflow_graphs_may_see_when_they_run_that_an_input_is_absent(weight, tape):
    tf = pytest.importorskip("tensorflow")
    specs = [tf.TensorSpec([None] * 3, tf.float32), tf.TensorSpec([None], tf.float32)]

    def total(x, weight):
        return tf.reduce_sum(pool(x, None, weight))

    def gradients(x, weight, function=total):
        with tf.GradientTape() as tape:
            tape.watch([x, weight])
            loss = function(x, weight)
        return tape.gradient(loss, [x, weight])

    if tape == "inside":
        d_x, d_weight = tf.function(gradients, input_signature=specs)(X, weight)
    else:
        compiled = tf.function(total, input_signature=specs)
        d_x, d_weight = gradients(tf.constant(X), tf.constant(weight), compiled)
    assert_close(d_x, slope({"weight": weight} if len(weight) else {}))
    assert_close(d_weight, X.sum((0, 2)) if len(weight) else weight)
