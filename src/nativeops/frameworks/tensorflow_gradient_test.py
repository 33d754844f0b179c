# SPDX-License-Identifier: Apache-2.0
"""Gradients of ops with tensors: right, only where needed, and never silently missing."""

import gc
import os
import re
import weakref
from functools import partial, wraps

import numpy as np
import pytest

from nativeops import pairwise_l1, pairwise_lp, rnn_layer
from nativeops.errors import GradientError
from nativeops.ops.pairwise_l1 import pairwise_l1_grad

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="2", TF_NUM_INTEROP_THREADS="2")
tf = pytest.importorskip("tensorflow")

from nativeops.testing import arrays_tensorflow  # noqa: E402
from nativeops.testing.arrays_tensorflow import composed_l1  # noqa: E402

random = partial(arrays_tensorflow.random, dtype=tf.float64)


def gradients(op, *inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(tf.sin(op(*inputs)))
    return tape.gradient(loss, inputs)


def assert_all_close(found, expected, tolerance=1e-12):
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            tf.cast(one, tf.float64).numpy(), tf.cast(other, tf.float64).numpy(), 0, tolerance
        )


SHAPES = [
    ((5, 7), (6, 7)),
    ((3, 1, 5, 7), (2, 6, 7)),
    ((4, 5, 7), (6, 7)),
    ((1, 5, 7), (4, 6, 7)),
    ((0, 7), (6, 7)),
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_gradient_is_that_of_composed_tensorflow_also_after_broadcasting(shapes):
    inputs = [random(*shape) for shape in shapes]
    expected = gradients(composed_l1, *inputs)
    assert_all_close(gradients(pairwise_l1, *inputs), expected)
    whole = tf.function(gradients)
    assert_all_close(whole(pairwise_l1, *inputs), expected)
    unknown = [tf.TensorSpec([None] * len(shape), tf.float64) for shape in shapes]
    for specs in (unknown, [tf.TensorSpec(None, tf.float64)] * 2):
        inside = tf.function(lambda *a: gradients(pairwise_l1, *a), input_signature=specs)
        assert_all_close(inside(*inputs), expected)
        outside = tf.function(pairwise_l1, input_signature=specs)
        assert_all_close(gradients(outside, *inputs), expected)


def test_halves_are_summed_in_single_precision():
    x, y = tf.ones((3000, 1, 2), tf.float16), tf.zeros((1, 2), tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(y)
        out = pairwise_l1(x, y)
    assert tape.gradient(out, y).numpy().tolist() == [[-3000, -3000]]


def test_gradient_agrees_with_differences():
    x, y = random(3, 4), random(2, 4)
    analytic, numeric = tf.test.compute_gradient(lambda x, y: pairwise_lp(x, y, p=3.0), [x, y])
    for one, other in zip(analytic, numeric, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_jacobian_is_that_of_composed_tensorflow():
    def jacobian(op, x, y):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            out = op(x, y)
        return tape.jacobian(out, x)

    x, y = random(4, 3), random(2, 3)
    assert_all_close([jacobian(pairwise_l1, x, y)], [jacobian(composed_l1, x, y)])


def test_persistent_and_nested_tapes_and_variables():
    x, y = tf.Variable(random(5, 7)), random(6, 7)
    with tf.GradientTape(persistent=True) as outer, tf.GradientTape() as inner:
        out = tf.function(pairwise_l1)(x, y)
        squares = out * out
    with tf.GradientTape(persistent=True) as tape:
        reference = composed_l1(x, y)
        reference_squares = reference * reference
    for target, other in ((out, reference), (squares, reference_squares)):
        assert_all_close([outer.gradient(target, x)], [tape.gradient(other, x)])
    assert_all_close([inner.gradient(out, x)], [tape.gradient(reference, x)])


@pytest.fixture
def recorded_calls(monkeypatch):
    """The names of the gradients that are asked of the gradient rule."""
    calls, rule = [], pairwise_l1.gradient_rule

    def record(x, y, d_out, needs):
        calls.append(needs)
        return rule(x, y, d_out, needs)

    monkeypatch.setattr(pairwise_l1, "gradient_rule", record)
    return calls


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_only_needed_gradients_are_computed(recorded_calls, wrap):
    x, y = random(5, 7), random(6, 7)

    @wrap
    def gradient(watch_x, watch_y):
        with tf.GradientTape() as tape:
            tape.watch([x] * watch_x + [y] * watch_y)
            out = pairwise_l1(x, y)
        return tape.gradient(out, [x, y])

    d_x, d_y = gradient(True, False)
    assert d_y is None
    assert_all_close([d_x], [pairwise_l1_grad(x, y, tf.ones((5, 6), x.dtype)).d_x])
    assert gradient(False, True)[0] is None
    assert recorded_calls == [("d_x",), ("d_y",)]


def test_tape_keeps_nothing_that_the_rule_does_not_ask_for():
    x, y = random(5, 7), random(6, 7)
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = pairwise_l1(x, y)
        total = tf.identity(out)
    watched = weakref.ref(out)
    del out
    gc.collect()
    assert watched() is None
    assert tape.gradient(total, x).shape == x.shape


def test_gradient_of_both_biases_is_freed():
    given = [tf.Variable(random(*shape)) for shape in ((3, 2, 4), (5, 4), (5, 5), (5,), (5,))]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(rnn_layer(*given).output)
    found = tape.gradient(total, given)
    np.testing.assert_array_equal(found[3], found[4])
    watched = [weakref.ref(gradient) for gradient in found]
    del found
    gc.collect()
    assert [gone() for gone in watched] == [None] * 5


def test_sparse_gradient_that_arrives_is_made_dense():
    def loss(op, x, y):
        return tf.gather(op(x, y), [1, 3, 1])

    x, y = random(5, 7), random(6, 7)
    expected = gradients(lambda x, y: loss(composed_l1, x, y), x, y)
    assert_all_close(gradients(lambda x, y: loss(pairwise_l1, x, y), x, y), expected)
    inside = tf.function(lambda x, y: gradients(lambda x, y: loss(pairwise_l1, x, y), x, y))
    assert_all_close(inside(x, y), expected)


def second(x, y):
    with tf.GradientTape() as outer:
        outer.watch(x)
        (first, _) = gradients(pairwise_l1, x, y)
    return outer.gradient(first, x)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_second_derivative_is_refused(wrap):
    with pytest.raises(GradientError, match="pairwise_l1_grad: has no gradient, so it cannot"):
        wrap(second)(random(5, 7), random(6, 7))


def test_second_derivative_through_a_function_is_refused():
    x, y = random(5, 7), random(6, 7)
    compiled = tf.function(pairwise_l1)
    with tf.GradientTape() as outer:
        outer.watch(x)
        # TensorFlow prepares the second one as soon as the first one is recorded.
        with pytest.raises(GradientError, match="cannot be differentiated twice"):
            gradients(compiled, x, y)


def test_forward_mode_is_refused():
    x, y = random(5, 7), random(6, 7)
    with (
        tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)),
        pytest.raises(GradientError, match=re.escape(pairwise_l1.no_forward_mode)),
    ):
        pairwise_l1(x, y)
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as other:
        assert pairwise_l1(random(2, 7), y).shape == (2, 6)  # does not depend on x
        through = tf.function(lambda y: pairwise_l1(y, y))(y)
    assert other.jvp(through) is None


def test_forward_mode_through_a_function_is_refused():
    x, y = random(5, 7), random(6, 7)
    compiled = tf.function(pairwise_l1)
    compiled(x, y)
    # TensorFlow differentiates the gradient of a function instead, which is refused as well.
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)), pytest.raises(GradientError):
        compiled(x, y)


def test_constant_results_pass_stop_gradient():
    x, y = random(5, 7), random(6, 7)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            out = pairwise_l1(x, y)
        total = tf.reduce_sum(x) + tf.reduce_sum(tf.stop_gradient(inner.gradient(out, x)))
    assert_all_close([tape.gradient(total, x)], [tf.ones_like(x)])


def test_mapped_ops_are_recorded_by_tapes_inside_of_functions():
    x, y = random(4, 5, 7), random(6, 7)

    def gradients(function):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            mapped = tf.vectorized_map(lambda a: function(a, y) + tf.reduce_sum(a), x)
            loss = tf.reduce_sum(tf.sin(mapped))
        return tape.gradient(loss, [x, y])

    expected = gradients(composed_l1)
    for found in (gradients(pairwise_l1), tf.function(lambda: gradients(pairwise_l1))()):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_attributes_whose_texts_are_rounded_are_told_apart():
    x, y = tf.cast(random(5, 7), tf.float64), tf.cast(random(6, 7), tf.float64)
    pairwise_lp(x, y, p=np.array(1.000000001))
    found = pairwise_lp(x, y, p=np.array(1.0))
    np.testing.assert_array_equal(found, pairwise_lp(x, y, p=1.0))


def test_graphs_of_tensorflow_1_differentiate_optional_inputs_of_unknown_sizes():
    x, w_ih, w_hh = (random(*shape) for shape in ((5, 3, 4), (2, 4), (2, 2)))
    with tf.GradientTape() as tape:
        tape.watch(h_0 := random(3, 2))
        loss = tf.reduce_sum(rnn_layer(x, w_ih, w_hh, h_0=h_0).output)
    expected = tape.gradient(loss, h_0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.float64, [None, None])
        arrays = [tf.constant(one.numpy()) for one in (x, w_ih, w_hh)]
        loss = tf.reduce_sum(rnn_layer(*arrays, h_0=given).output)
        found = session.run(tf.gradients(loss, given), {given: h_0.numpy()})
    assert_all_close(found, [expected.numpy()])


WRONG_RULES = {
    "dtype": (lambda x: tf.cast(x, tf.float32), r"float32[5, 7] for an input of float64[5, 7]"),
    "size": (lambda x: x[:, :1], r"float64[5, 1] for an input of float64[5, 7]"),
    "axes": (lambda x: x[0], r"float64[7] for an input of float64[5, 7]"),
    "kind": (lambda x: 0.5, "a float for an input: give an array, or None"),
}


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("wrong", WRONG_RULES)
def test_wrong_gradient_rules_are_errors(monkeypatch, wrong, wrap):
    make, said = WRONG_RULES[wrong]
    rule = wraps(pairwise_l1.gradient_rule)(lambda x, y, *_, **__: (make(x), y))
    monkeypatch.setattr(pairwise_l1, "gradient_rule", rule)
    x, y = random(5, 7), random(6, 7)
    with pytest.raises(TypeError, match=re.escape(f"pairwise_l1: the gradient rule gave {said}")):
        gradients(wrap(pairwise_l1), x, y)


def test_gradients_of_unknown_sizes_are_not_taken_for_wrong_ones():
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64), tf.TensorSpec([None, None])])
    def found(x, y):
        return gradients(pairwise_l1, x, tf.cast(y, tf.float64))

    x, y = random(3, 5, 7), random(6, 7)
    expected = gradients(composed_l1, x, tf.cast(tf.cast(y, tf.float32), tf.float64))
    assert_all_close(found(x, tf.cast(y, tf.float32)), expected)
