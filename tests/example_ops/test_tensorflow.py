# SPDX-License-Identifier: Apache-2.0
"""Users' ops in TensorFlow's graphs: kept and optional results, attributes that tell sizes."""

import os

import numpy as np
import pytest

from nativeops import registry
from nativeops.errors import GradientError, ShapeError

from . import choices, results, windows

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="2", TF_NUM_INTEROP_THREADS="2")
tf = pytest.importorskip("tensorflow")

for name in [op.name for op in registry.ops() if not op.built_in]:
    del registry._OPS[name]  # other tests look at the ops of the package


def random(*shape):
    return tf.constant(np.random.default_rng(sum(shape)).standard_normal(shape))


def normalised(x):
    return results.normalise(x).y


def composed(x):
    return x / tf.sqrt(tf.reduce_sum(x * x, -1, keepdims=True) + 1)


def gradient(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.sin(function(x)))
    return tape.gradient(loss, x).numpy()


def masks(function):
    return [
        node.get_attr("want")
        for node in function.graph.get_operations()
        if node.type.startswith("Nativeops_normalise_v")
    ]


@pytest.mark.parametrize("shape", [[5, 7], [None, 7], None])
def test_kept_result_is_made_only_if_a_graph_is_differentiated(shape):
    x = random(5, 7)
    function = tf.function(normalised, input_signature=[tf.TensorSpec(shape, tf.float64)])
    np.testing.assert_allclose(function(x), composed(x))
    concrete = function.get_concrete_function()
    assert masks(concrete) == [0b01]
    np.testing.assert_allclose(gradient(function, x), gradient(composed, x))
    assert masks(concrete) == [0b11]
    np.testing.assert_allclose(function(x), composed(x))


def test_kept_results_of_loops_branches_and_maps_are_found():
    def repeated(x, step):
        for i in tf.range(3):
            if i > 0:
                x = step(x) * tf.cast(i, x.dtype)
        return x

    def mapped(x, step):
        return tf.map_fn(step, x)

    x = random(4, 5, 7)
    for way in (repeated, mapped):
        ours, theirs = (tf.function(lambda x, s=s, w=way: w(x, s)) for s in (normalised, composed))
        np.testing.assert_allclose(gradient(ours, x), gradient(theirs, x), atol=1e-12)
    vectorized = tf.function(lambda x: tf.vectorized_map(normalised, x))
    np.testing.assert_allclose(gradient(vectorized, x), gradient(composed, x), atol=1e-12)


def test_loaded_program_is_differentiated(tmp_path):
    module = tf.Module()
    module.run = tf.function(normalised, input_signature=[tf.TensorSpec([None, 7], tf.float64)])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path)).run
    x = random(5, 7)
    assert loaded.get_concrete_function().structured_outputs.shape.as_list() == [None, 7]
    np.testing.assert_allclose(gradient(loaded, x), gradient(composed, x))


def test_optional_results_are_none_where_nobody_wants_them():
    x = random(5, 7)
    only = results.extremes.only(["largest"])

    @tf.function
    def chosen(x):
        return only(x)

    least, largest = chosen(x)
    assert least is None
    assert np.array_equal(largest, x.numpy().max(-1))
    function = tf.function(results.extremes, input_signature=[tf.TensorSpec([None, 7])])
    assert function.get_concrete_function().structured_outputs.least.shape.as_list() == [None]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_missing_gradient_is_an_error(wrap):
    with pytest.raises(GradientError, match="extremes: has no gradient"):
        gradient(wrap(lambda x: results.extremes(x).largest), random(5, 7))


def test_integers_get_no_gradient():
    x, index = random(4, 2), tf.constant([3, 0, 3])
    for take in (choices.take, tf.function(choices.take)):
        with tf.GradientTape() as tape:
            tape.watch([x, index])
            out = take(x, index)
        found, none = tape.gradient(out, [x, index])
        assert none is None
        assert found.numpy().tolist() == [[1, 1], [0, 0], [0, 0], [2, 2]]


def test_attributes_tell_sizes_of_a_graph():
    def summed(k, shape=(None, 9, 4)):
        specs = [tf.TensorSpec(shape)]
        return tf.function(lambda x: windows.moving_sum(x, k=k), input_signature=specs)

    assert summed(3).get_concrete_function().structured_outputs.shape.as_list() == [None, 7, 4]
    with pytest.raises(ShapeError, match=r"axis `t-k\+1` of the result would be -2"):
        summed(12).get_concrete_function()
    with pytest.raises(tf.errors.InvalidArgumentError, match="would be -2"):
        summed(12, None)(tf.zeros((1, 9, 4)))


def test_second_and_forward_derivatives_of_linear_ops():
    x = random(2, 6, 2)

    def twice(function):
        return lambda x: gradient_of_square(function, x)

    def gradient_of_square(function, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) ** 3)
        return tape.gradient(loss, x)

    def composed_sum(x):
        return x[:, :-2] + x[:, 1:-1] + x[:, 2:]

    def ours(x):
        return windows.moving_sum(x, k=3)

    expected = gradient(twice(composed_sum), x)
    np.testing.assert_allclose(gradient(twice(ours), x), expected)
    np.testing.assert_allclose(gradient(twice(tf.function(ours)), x), expected)
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
        out = tf.function(ours)(x)  # TensorFlow transposes the gradient, which has one itself
    np.testing.assert_allclose(forward.jvp(out), tf.fill(out.shape, np.float64(3)))
