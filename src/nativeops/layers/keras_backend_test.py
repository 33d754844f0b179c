# SPDX-License-Identifier: Apache-2.0
"""The layers for Keras against Keras's own, with the backend that KERAS_BACKEND names."""

import os

import numpy as np
import pytest

if "KERAS_BACKEND" not in os.environ:
    pytest.skip("keras_test.py runs this file, once for each backend", allow_module_level=True)

import keras
from keras import ops

import nativeops
import nativeops.layers.keras as fused
from nativeops.errors import DtypeError
from nativeops.testing import keras_pair
from nativeops.testing.keras_pair import assert_close, gradients, normal, numbers, tensor

# Keras's variables are older than NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

BACKEND = keras.backend.backend()
STEPS, BATCH, INPUTS, UNITS = 6, 4, 3, 5
# Each with two of the ways to run a layer: backwards, all outputs, zeros for masked steps.
WAYS = {
    "none": ((0, 1, 0), (1, 1, 0)),
    "right": ((0, 1, 0), (1, 0, 1)),
    "left": ((1, 1, 0), (0, 1, 1)),
    "holes": ((1, 1, 1), (0, 0, 0)),
}
MASKS = {
    "none": None,
    "right": np.arange(STEPS) < np.array([6, 3, 0, 1])[:, None],
    "left": np.arange(STEPS) >= np.array([0, 3, 6, 5])[:, None],
    "holes": np.array([[1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 1, 0], [0] * 6, [1] * 6], bool),
}
LAYERS = {
    "LSTM": ("LSTM", {}),
    "LSTM bare": ("LSTM", {"use_bias": False}),
    "GRU": ("GRU", {}),
    "GRU bare": ("GRU", {"use_bias": False}),
    "GRU reset first": ("GRU", {"reset_after": False}),
    "GRU reset first, bare": ("GRU", {"reset_after": False, "use_bias": False}),
    "SimpleRNN": ("SimpleRNN", {}),
    "SimpleRNN relu": ("SimpleRNN", {"activation": "relu"}),
}
PLAIN = ("LSTM", "GRU", "SimpleRNN")
plain_layers = pytest.mark.parametrize("name", PLAIN)


def pair(name, **options):
    return keras_pair.pair(name, UNITS, (BATCH, STEPS, INPUTS), **options)


@pytest.fixture
def no_steps_of_keras(monkeypatch):
    """Keras's own computation fails: what runs then is the op."""
    for base in (keras.layers.LSTM, keras.layers.GRU, keras.layers.RNN):
        monkeypatch.setattr(base, "inner_loop", None)


@pytest.mark.parametrize(
    ("which", "mask"),
    [(which, mask) for which in LAYERS for mask in MASKS if which in PLAIN or mask == "holes"],
)
def test_values_are_those_of_keras(which, mask):
    name, options = LAYERS[which]
    x, ways, mask = tensor(normal(BATCH, STEPS, INPUTS)), WAYS[mask], tensor(MASKS[mask])
    for backwards, sequences, zero in ways:
        own, ours = pair(
            name,
            go_backwards=bool(backwards),
            return_sequences=bool(sequences),
            zero_output_for_mask=bool(zero),
            return_state=True,
            **options,
        )
        states = [tensor(normal(BATCH, UNITS, seed=7 + n)) for n in range(len(own.state_size))]
        expected = own(x, mask=mask, initial_state=states)
        assert_close(ours(x, mask=mask, initial_state=states), expected)


@plain_layers
def test_one_state_and_one_mask_may_be_those_of_the_whole_batch(name):
    own, ours = pair(name, return_sequences=True)
    x = tensor(normal(BATCH, STEPS, INPUTS))
    states = [tensor(normal(1, UNITS, seed=n)) for n in range(len(own.state_size))]
    for_each = [ops.broadcast_to(state, (BATCH, UNITS)) for state in states]  # as JAX's Keras asks
    for mask in (None, tensor(np.arange(STEPS)[None] < 4)):
        masks = None if mask is None else ops.broadcast_to(mask, (BATCH, STEPS))
        found = ours(x, mask=mask, initial_state=states)
        assert_close(found, own(x, mask=masks, initial_state=for_each))


@plain_layers
def test_op_computes(name, no_steps_of_keras):
    layer = getattr(fused, name)(UNITS, return_sequences=True)
    for mask in MASKS.values():
        assert layer(tensor(normal(BATCH, STEPS, INPUTS)), mask=tensor(mask)).shape[2] == UNITS


@pytest.mark.parametrize(
    ("name", "shape", "units"),
    [
        ("LSTM", (2, 1, 1), 1),
        ("LSTM", (3, 5, 2), 17),
        ("GRU", (1, 1, 2), 3),
        ("SimpleRNN", (3, 5, 2), 17),
    ],
)
def test_sizes(name, shape, units):
    own, ours = (getattr(m, name)(units, return_sequences=True) for m in (keras.layers, fused))
    ours.build(shape)
    own.build(shape)
    own.set_weights(ours.get_weights())
    x = tensor(normal(*shape))
    assert_close(ours(x), own(x))


@pytest.mark.parametrize("masked", [False, True])
@plain_layers
def test_empty_batch(name, masked):
    layer = getattr(fused, name)(UNITS, return_sequences=True, return_state=True)
    mask = tensor(np.zeros((0, STEPS), bool)) if masked else None
    outputs, *states = layer(tensor(normal(0, STEPS, INPUTS)), mask=mask)
    assert outputs.shape == (0, STEPS, UNITS)
    assert all(state.shape == (0, UNITS) for state in states)


@plain_layers
def test_masked_steps_are_not_read(name):
    _, layer = pair(name, return_sequences=True)
    x, mask = normal(BATCH, STEPS, INPUTS), MASKS["holes"]
    expected = layer(tensor(x), mask=tensor(mask))
    x[~mask] = np.nan
    assert_close(layer(tensor(x), mask=tensor(mask)), expected)


@pytest.mark.parametrize(
    ("which", "mask"),
    [
        ("LSTM", "none"),
        ("LSTM", "holes"),
        ("GRU", "holes"),
        ("GRU bare", "none"),
        ("GRU reset first", "holes"),
        ("GRU reset first, bare", "none"),
        ("SimpleRNN", "none"),
        ("SimpleRNN relu", "holes"),
    ],
)
def test_gradients_are_those_of_keras(which, mask):
    name, options = LAYERS[which]
    own, ours = pair(name, return_sequences=True, go_backwards=mask == "holes", **options)
    x, mask = normal(BATCH, STEPS, INPUTS), tensor(MASKS[mask])
    weight = tensor(normal(BATCH, STEPS, UNITS, seed=3))
    found, expected = (gradients(layer, x, mask, weight) for layer in (ours, own))
    assert len(found) == 1 + len(ours.weights)
    assert_close(found, expected, 1e-4)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_low_memory_has_the_same_gradients_and_is_saved(name):
    layers = getattr(fused, name)
    own, _ = pair(name)
    low = layers.from_config(layers(UNITS, low_memory=True).get_config())
    assert low.low_memory
    low.build((BATCH, STEPS, INPUTS))
    low.set_weights(own.get_weights())
    x, weight = normal(BATCH, STEPS, INPUTS), tensor(normal(BATCH, UNITS, seed=3))
    assert low._options()["low_memory"]
    assert_close(gradients(low, x, None, weight), gradients(own, x, None, weight), 1e-4)


def learnt(module, weights, **options):
    """A model of all layers after two passes over some data: its losses and weights."""
    given = keras.Input((None, INPUTS))
    y = keras.layers.Masking()(given)
    y = keras.layers.Bidirectional(module.GRU(4, return_sequences=True, **options))(y)
    y = module.LSTM(5, return_sequences=True)(y)
    y = module.SimpleRNN(3)(y)
    model = keras.Model(given, keras.layers.Dense(2)(y))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    if weights:
        model.set_weights(weights)
    before = model.get_weights()
    x, y = normal(8, 7, INPUTS), normal(8, 2, seed=1)
    x[:, 5:] = x[3, 2] = x[4] = 0
    history = model.fit(x, y, epochs=2, batch_size=4, shuffle=False, verbose=0)
    return model, before, history.history["loss"], x


def test_model_learns_as_with_keras_and_is_saved(tmp_path):
    own, weights, expected, x = learnt(keras.layers, None)
    model, _, losses, _ = learnt(fused, weights)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for found, other in zip(model.get_weights(), own.get_weights(), strict=True):
        np.testing.assert_allclose(found, other, atol=1e-4)

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)
    model.save_weights(tmp_path / "ours.weights.h5")
    own.load_weights(tmp_path / "ours.weights.h5")
    np.testing.assert_allclose(own.predict(x, verbose=0), expected, atol=1e-5)
    own.save_weights(tmp_path / "own.weights.h5")
    loaded.load_weights(tmp_path / "own.weights.h5")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), expected, atol=1e-6)


def test_subclassed_model_learns():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer, self.head = fused.LSTM(8), keras.layers.Dense(1)

        def call(self, x):
            return self.head(self.layer(x))

    model = Model()
    model.compile(keras.optimizers.Adam(0.05), "mse")
    x = normal(32, STEPS, INPUTS)
    losses = model.fit(x, x[:, 0, :1], epochs=15, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


@plain_layers
def test_weights_and_configuration_are_those_of_keras(name):
    own, ours = pair(name, kernel_regularizer="l2", recurrent_constraint="max_norm")
    assert [w.name for w in ours.weights] == [w.name for w in own.weights]
    assert [w.shape for w in ours.weights] == [w.shape for w in own.weights]
    of_keras = own.get_config() | {"name": "same"}
    assert ours.get_config() | {"name": "same"} == of_keras
    assert fused.__dict__[name].from_config(of_keras).get_config() == of_keras


@plain_layers
def test_precision_is_kept_and_reaches_the_op(name):
    layer = getattr(fused, name)(UNITS, precision="high")
    layer = type(layer).from_config(layer.get_config())
    assert layer.precision == "high"
    assert layer(normal(BATCH, STEPS, INPUTS)).shape == (BATCH, UNITS)
    layer.precision = "low"
    with pytest.raises(ValueError, match=r"`precision` must be one of \['default', 'highest', 'hi"):
        layer(normal(BATCH, STEPS, INPUTS))
    with pytest.raises(ValueError, match=rf"{name}: `precision` must be one of \['default', 'high"):
        getattr(fused, name)(UNITS, precision="low")


@plain_layers
def test_state_lasts_from_batch_to_batch(name):
    layer = getattr(fused, name)(UNITS, stateful=True, return_sequences=True)
    x = normal(2, 6, INPUTS)
    first, second = (layer(tensor(part)) for part in (x[:, :2], x[:, 2:]))
    once = getattr(fused, name)(UNITS, return_sequences=True)
    once.build(x.shape)
    once.set_weights(layer.get_weights())
    assert_close(ops.concatenate([first, second], 1), once(tensor(x)))
    layer.reset_state()
    assert_close(layer(tensor(x[:, :2])), first)


@plain_layers
def test_stateful_model_learns(name):
    given = keras.Input(batch_shape=(2, 4, INPUTS))
    layer = getattr(fused, name)(1, stateful=True)
    model = keras.Model(given, layer(given))
    model.compile("sgd", "mse")
    before = layer.get_weights()[0]
    model.fit(normal(6, 4, INPUTS), normal(6, 1), batch_size=2, shuffle=False, verbose=0)
    assert np.isfinite(layer.get_weights()[0]).all()
    assert (layer.get_weights()[0] != before).any()


@plain_layers
def test_dropout_draws_what_keras_draws(name):
    own, ours = pair(name, dropout=0.5, seed=3, return_sequences=True)
    x = tensor(normal(BATCH, STEPS, INPUTS))
    trained = ours(x, training=True)
    assert_close(trained, own(x, training=True))
    assert_close(ours(x), own(x))
    assert abs(numbers(trained)[0] - numbers(ours(x))[0]).max() > 0.01


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("LSTM", {"activation": "relu"}, "its activation is relu"),
        ("SimpleRNN", {"activation": None}, "its activation is linear"),
        ("GRU", {"recurrent_activation": "hard_sigmoid"}, "recurrent activation is hard_sigmoid"),
        ("LSTM", {"recurrent_dropout": 0.5, "seed": 3}, "`recurrent_dropout=0.5`"),
    ],
)
def test_what_the_op_does_not_compute_keras_computes_and_says_so(name, options, why):
    with pytest.warns(UserWarning, match=why):
        own, ours = pair(name, **options)
    x = tensor(normal(BATCH, STEPS, INPUTS))
    for training in (False, True):
        assert_close(ours(x, training=training), own(x, training=training))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"use_cudnn": True}, "`use_cudnn=True`"),
        ({"dropout": 0.5, "implementation": 1}, "`implementation=1`"),
    ],
)
def test_what_keras_itself_cannot_compute_here_is_left_to_it(options, why):
    with pytest.warns(UserWarning, match=why):
        fused.LSTM(UNITS, **options).build((BATCH, STEPS, INPUTS))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-9), ("mixed_bfloat16", 0.03), ("mixed_float16", 0.004)]
)
@plain_layers
def test_dtypes(name, dtype, tolerance):
    if BACKEND == "jax" and dtype == "float64":
        pytest.skip("Keras with JAX has no float64 unless it is switched on")
    own, ours = pair(name, dtype=dtype, return_sequences=True, return_state=True)
    x = tensor(normal(BATCH, STEPS, INPUTS))
    made, expected = ours(x), own(x)
    kinds = [keras.backend.standardize_dtype(array.dtype) for array in made]
    assert kinds == [ours.compute_dtype] * len(made)
    assert_close(made, expected, max(tolerance, 1e-6))


def test_layer_says_what_keras_says_of_wrong_input():
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=2"):
        fused.LSTM(UNITS)(tensor(normal(2, 3)))
    with pytest.raises(ValueError, match="expected a positive integer"):
        fused.GRU(0)


def test_op_on_what_is_no_array_yet_names_the_way_out():
    symbol = keras.Input((3,))
    with pytest.raises(TypeError, match="call the op in the `call` of a layer"):
        nativeops.pairwise_l1(symbol, symbol)


@plain_layers
@pytest.mark.parametrize("masked", [False, True])
def test_states_of_another_number_are_refused(name, masked):
    x, state = tensor(normal(BATCH, STEPS, INPUTS)), tensor(normal(BATCH, UNITS))
    layer, mask = pair(name)[1], tensor(MASKS["holes"]) if masked else None
    wanted = r"2 states \[h, c\]" if name == "LSTM" else r"1 states \[h\]"
    for count in {1, 2, 3} - {2 if name == "LSTM" else 1}:
        with pytest.raises(ValueError, match=f"must have {wanted}, but has {count}"):
            layer(x, initial_state=[state] * count, mask=mask)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("`units` must be int, but is '4'", {"units": "4"}),
        ("`units` must be int, but is 2.5", {"units": 2.5}),
        ("`dropout` must be float, but is 'a'", {"dropout": "a"}),
        ("`recurrent_dropout` must be float, but is None", {"recurrent_dropout": None}),
        ("`low_memory` must be bool, but is 'no'", {"low_memory": "no"}),
    ],
)
def test_arguments_that_keras_does_not_explain_are_named(text, options):
    with pytest.raises(DtypeError, match=f"LSTM: {text}"):
        fused.LSTM(**{"units": UNITS, **options})


@plain_layers
@pytest.mark.parametrize("shape", [(STEPS, BATCH), (BATCH * STEPS,), (1, BATCH, STEPS)])
def test_mask_of_other_axes_is_refused(name, shape):
    x, mask = tensor(normal(BATCH, STEPS, INPUTS)), tensor(np.ones(shape, bool))
    with pytest.raises(ValueError, match="the mask must have the sizes"):
        pair(name)[1](x, mask=mask)


@plain_layers
def test_mask_may_have_a_last_axis_of_one(name):
    x, mask, layer = tensor(normal(BATCH, STEPS, INPUTS)), MASKS["holes"], pair(name)[1]
    expected = layer(x, mask=tensor(mask))
    assert_close(layer(x, mask=tensor(mask[..., None])), expected)


def run_onnx(model, path, x):
    """What ONNX's runtime makes of the model."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model.export(f"{path}.onnx", format="onnx", verbose=False)
    session = runtime.InferenceSession(f"{path}.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def run_saved_model(model, path, x):
    """What TensorFlow alone makes of the model: one of JAX may not name the op."""
    tensorflow = pytest.importorskip("tensorflow")
    model.export(str(path), verbose=False)
    loaded = tensorflow.saved_model.load(str(path))
    return loaded.serve(x).numpy()


@pytest.mark.filterwarnings("ignore")  # those of the exporters
def test_exported_model_computes_the_same(tmp_path):
    run = run_onnx if BACKEND == "torch" else run_saved_model
    layers = [keras.layers.Masking(), keras.layers.Bidirectional(fused.GRU(4, return_sequences=1))]
    layers += [fused.SimpleRNN(3, return_sequences=True), fused.LSTM(2, go_backwards=True)]
    model = keras.Sequential([keras.Input((STEPS, INPUTS)), *layers])
    x = normal(BATCH, STEPS, INPUTS)
    x[:2, 4:] = 0
    expected = numbers(model(x))[0]
    np.testing.assert_allclose(run(model, tmp_path / "made", x), expected, atol=1e-5)
