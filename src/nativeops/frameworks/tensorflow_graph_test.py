# SPDX-License-Identifier: Apache-2.0
"""Ops in graphs: unknown sizes, loops, data sets, saved programs, Keras, replicas, XLA."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nativeops
from nativeops import pairwise_l1, pairwise_lp
from nativeops.errors import AllocationError, DeviceError, DtypeError, ShapeError

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="2", TF_NUM_INTEROP_THREADS="2")
tf = pytest.importorskip("tensorflow")

from nativeops.testing.arrays_tensorflow import composed_l1, random  # noqa: E402


def assert_close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected.numpy(), tolerance, tolerance)


UNKNOWN = [
    ([5, 7], [6, 7], [5, 6]),
    ([None, 7], [6, None], [None, 6]),
    ([None, None], [None, None], [None, None]),
    ([None, 1, 5, None], [2, 6, 7], [None, 2, 5, 6]),
    ([None, 5, 7], [None, 6, 7], [None, 5, 6]),
    ([1, 5, 7], [None, 6, 7], [None, 5, 6]),
    (None, [6, 7], None),
    ([5, 7], None, None),
]


@pytest.mark.parametrize(("x_shape", "y_shape", "out_shape"), UNKNOWN)
def test_what_is_known_of_the_shape_is_inferred(x_shape, y_shape, out_shape):
    specs = [tf.TensorSpec(shape) for shape in (x_shape, y_shape)]
    function = tf.function(pairwise_l1, input_signature=specs)
    found = function.get_concrete_function().structured_outputs.shape
    assert found.as_list() == out_shape if out_shape else found.rank is None
    x, y = (
        random(*[3 if size is None and i < len(s) - 2 else size or 7 for i, size in enumerate(s)])
        for s in (x_shape or [5, 7], y_shape or [6, 7])
    )
    assert_close(function(x, y), composed_l1(x, y))


@pytest.mark.parametrize("y_shape", [[6, 8], [8]])
def test_graph_with_a_mistake_is_not_built(y_shape):
    with pytest.raises(ShapeError) as ours:
        pairwise_l1(np.zeros((5, 7), np.float32), np.zeros(y_shape, np.float32))
    for x_shape, shown in (([5, 7], "5, 7"), ([None, 7], "None, 7")):
        specs = [tf.TensorSpec(shape) for shape in (x_shape, y_shape)]
        with pytest.raises(ShapeError) as error:
            tf.function(pairwise_l1, input_signature=specs).get_concrete_function()
        text = str(ours.value).replace("float32[5, 7]", f"float32[{shown}]")
        assert [line.split() for line in text.splitlines()] == [
            line.split() for line in str(error.value).splitlines()[-len(text.splitlines()) :]
        ]


def test_mistake_of_dtype_is_found_with_unknown_shapes():
    specs = [tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.float64)]
    with pytest.raises(DtypeError, match="`x` is float32 but `y` is float64"):
        tf.function(pairwise_l1, input_signature=specs).get_concrete_function()


@pytest.mark.parametrize("y_shape", [(6, 8), (7,)])
def test_mistake_that_only_a_run_shows_has_the_same_text(y_shape):
    with pytest.raises(ShapeError) as ours:
        pairwise_l1(np.zeros((5, 7), np.float32), np.zeros(y_shape, np.float32))
    function = tf.function(pairwise_l1, input_signature=[tf.TensorSpec(None)] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        function(tf.zeros((5, 7)), tf.zeros(y_shape))
    assert str(ours.value) in str(error.value)
    assert_close(function(random(5, 7), random(6, 7)), composed_l1(random(5, 7), random(6, 7)))


def test_result_that_no_machine_can_hold_has_the_same_text_in_a_run():
    with pytest.raises(AllocationError) as ours:
        pairwise_l1(*[np.zeros((1 << 33, 0), np.float32)] * 2)
    function = tf.function(pairwise_l1, input_signature=[tf.TensorSpec(None)] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        function(*[tf.zeros((1 << 33, 0))] * 2)
    assert str(ours.value) in str(error.value)


def test_autograph_keeps_the_class_of_an_error_and_converts_none_of_our_code():
    @tf.function
    def wrong(x, y):
        if tf.reduce_sum(x) > 0:
            x = x + 1
        return pairwise_l1(x, y)

    with pytest.raises(ShapeError, match="axis `d` is 7 in `x` but 8 in `y`"):
        wrong(tf.zeros((5, 7)), tf.zeros((6, 8)))


def test_graph_names_ops_and_spells_attributes():
    function = tf.function(lambda x: pairwise_lp(x, x, p=1.5))
    graph = function.get_concrete_function(random(5, 7)).graph
    [node] = [node for node in graph.get_operations() if "Nativeops" in node.type]
    assert node.type == "Nativeops_pairwise_lp"
    assert node.get_attr("attributes") == [b"p=1.5"]


@pytest.mark.parametrize("mapped", [tf.map_fn, tf.vectorized_map], ids=["map_fn", "vectorized"])
def test_maps_give_the_value_and_gradient_of_each_item(mapped):
    x, y = random(4, 3, 5, 7), random(2, 1, 6, 7)
    for function in (
        lambda a: pairwise_l1(a, y[0, 0]),
        lambda a: pairwise_l1(y, a),
        lambda a: pairwise_l1(a[0], a) * tf.reduce_sum(pairwise_l1(a[0, 1:2], y[0])),
    ):
        items = tf.unstack(x)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([x, *items])
            found = mapped(function, x)
            each = tf.stack([function(item) for item in items])
        assert_close(found, each)
        assert_close(tape.gradient(found, x), tf.stack(tape.gradient(each, items)), 1e-4)


def test_vectorized_map_needs_no_loop():
    x, y = random(4, 5, 7), random(6, 7)
    function = tf.function(lambda x: tf.vectorized_map(lambda a: pairwise_l1(a, y), x))
    types = {node.type for node in function.get_concrete_function(x).graph.get_operations()}
    assert "Nativeops_pairwise_l1" in types
    assert not {"While", "StatelessWhile"} & types


def test_loops_and_branches_are_differentiated():
    @tf.function
    def repeated(x, y):
        total = tf.zeros(())
        for i in tf.range(3):
            if i < 2:
                total += tf.reduce_sum(tf.sin(pairwise_l1(x * tf.cast(i + 1, x.dtype), y)))
        return total

    x, y = random(5, 7), random(6, 7)
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        value = repeated(x, y)
    found = tape.gradient(value, [x, y])
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        value = sum(tf.reduce_sum(tf.sin(composed_l1(x * i, y))) for i in (1.0, 2.0))
    for one, other in zip(found, tape.gradient(value, [x, y]), strict=True):
        assert_close(one, other, 1e-4)


def test_data_sets_map_in_parallel():
    x, y = random(64, 5, 7), random(6, 7)
    data = tf.data.Dataset.from_tensor_slices(x)
    found = list(data.map(lambda a: pairwise_l1(a, y), num_parallel_calls=4).batch(16))
    assert_close(tf.concat(found, 0), composed_l1(x, y))


def test_many_nodes_may_run_at_once():
    x, y = random(8, 100, 40, dtype=tf.float64), random(90, 40, dtype=tf.float64)

    @tf.function
    def wide(x):
        return tf.stack([pairwise_l1(item, y) for item in tf.unstack(x)])

    expected = tf.stack([pairwise_l1(item, y) for item in tf.unstack(x)])
    for _ in range(20):
        assert np.array_equal(wide(x).numpy(), expected.numpy())


def test_xla_is_refused():
    @tf.function(jit_compile=True)
    def compiled(x, y):
        return pairwise_l1(x, y)

    with pytest.raises(DeviceError, match=r"cannot be compiled by XLA in TensorFlow"):
        compiled(random(5, 7), random(6, 7))
    inner = tf.function(pairwise_l1).get_concrete_function(random(5, 7), random(6, 7))
    with pytest.raises(tf.errors.OpError, match="Nativeops_pairwise_l1"):
        tf.function(inner, jit_compile=True)(random(5, 7), random(6, 7))


LOAD = """
import sys
import numpy as np
import tensorflow as tf
import nativeops
loaded = tf.saved_model.load(sys.argv[1])
x, y, expected, d_x = np.load(sys.argv[1] + "/numbers.npz").values()
x = tf.constant(x)
with tf.GradientTape() as tape:
    tape.watch(x)
    out = loaded.distances(x, tf.constant(y))
np.testing.assert_array_equal(out, expected)
np.testing.assert_array_equal(tape.gradient(out, x), d_x)
shape = loaded.signatures["serving_default"].structured_outputs["output_0"].shape
assert shape.as_list() == [None, 6], shape
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import tensorflow", "import nativeops"])
def test_saved_model_runs_in_another_process(tmp_path: Path, first):
    class Distances(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 7]), tf.TensorSpec([6, 7])])
        def distances(self, x, y):
            return pairwise_lp(x, y, p=1.5)

    module, x, y = Distances(), random(5, 7), random(6, 7)
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = module.distances(x, y)
    folder = str(tmp_path / "model")
    tf.saved_model.save(module, folder)
    np.savez(f"{folder}/numbers.npz", x=x, y=y, out=out, d_x=tape.gradient(out, x))
    load = "nativeops.frameworks.load('tensorflow')\n" if "nativeops" in first else ""
    code = f"{first}\n{load}{LOAD}"
    subprocess.run([sys.executable, "-c", code, folder], check=True, timeout=300)


def prototypes():
    import keras

    class Prototypes(keras.layers.Layer):
        def __init__(self, n, **options):
            super().__init__(**options)
            self.n = n

        def build(self, shape):
            self.centers = self.add_weight(shape=(self.n, shape[-1]), name="centers")

        def call(self, x):
            return -pairwise_l1(x, self.centers)

        def compute_output_shape(self, shape):
            return (*shape[:-1], self.n)

    return Prototypes


@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_keras_models_learn(kind):
    import keras

    keras.utils.set_random_seed(0)
    layer = prototypes()(3)
    if kind == "functional":
        given = keras.Input((2,))
        model = keras.Model(given, layer(given))
    else:

        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def call(self, x):
                return self.layer(x)

        model = Model()
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 300)
    x = (np.array([[0, 0], [3, 0], [0, 3]])[labels] + random.normal(0, 0.3, (300, 2))).astype("f4")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.1), loss=loss, metrics=["accuracy"])
    model.fit(x, labels, epochs=8, batch_size=50, verbose=0)
    assert model.evaluate(x, labels, verbose=0)[1] > 0.95


REPLICAS = """
import numpy as np
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import nativeops
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    centers = tf.Variable(np.random.default_rng(0).standard_normal((6, 7)), dtype=tf.float32)
x = np.random.default_rng(1).standard_normal((8, 7)).astype("f4")
data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(8))
@tf.function
def step(part):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(nativeops.pairwise_l1(part, centers)))
    return loss, tape.gradient(loss, centers)
for part in data:
    loss, gradient = strategy.run(step, args=(part,))
    loss = strategy.reduce("SUM", loss, None)
    gradient = strategy.reduce("SUM", gradient, None)
with tf.GradientTape() as tape:
    distances = tf.reduce_sum(tf.abs(x[:, None] - centers[None]), -1)
    expected = tf.reduce_sum(tf.sin(distances))
np.testing.assert_allclose(loss, expected, rtol=1e-5)
np.testing.assert_allclose(gradient, tape.gradient(expected, centers), atol=1e-4)
"""


@pytest.mark.slow
def test_replicas_add_up():
    subprocess.run([sys.executable, "-c", REPLICAS], check=True, timeout=300)


def test_eager_functions_are_the_same():
    tf.config.run_functions_eagerly(True)
    try:
        out = tf.function(pairwise_l1)(random(5, 7), random(6, 7))
    finally:
        tf.config.run_functions_eagerly(False)
    assert_close(out, composed_l1(random(5, 7), random(6, 7)))


def test_errors_are_errors_of_the_package():
    with pytest.raises(nativeops.NativeOpsError):
        tf.function(pairwise_l1)(random(5, 7), random(7))
