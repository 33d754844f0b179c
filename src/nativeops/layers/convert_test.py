# SPDX-License-Identifier: Apache-2.0
"""Weights in other orders: there and back, and run by the libraries whose orders they are."""

import numpy as np
import pytest

from nativeops.layers import convert
from nativeops.ops.gru import gru_layer
from nativeops.ops.lstm import lstm_layer
from nativeops.ops.rnn import rnn_layer

LAYERS = {"rnn": rnn_layer, "gru": gru_layer, "lstm": lstm_layer}
STEPS, BATCH, INPUTS, UNITS = 4, 3, 2, 5
RANDOM = np.random.default_rng(0)


def make(kind, biases=True):
    rows = convert.GATES[kind] * UNITS
    shapes = [(rows, INPUTS), (rows, UNITS), *[(rows,)] * 2 * biases]
    return convert.Weights(*(RANDOM.standard_normal(s).astype("float32") for s in shapes))


def inputs():
    return RANDOM.standard_normal((STEPS, BATCH, INPUTS)).astype("float32")


def summed(weights):
    """Both biases as the one that they amount to."""
    return weights._replace(b_ih=weights.b_ih + weights.b_hh, b_hh=np.zeros_like(weights.b_hh))


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)


@pytest.mark.parametrize("biases", [True, False], ids=["biases", "bare"])
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_return_from_keras(kind, biases):
    weights = make(kind, biases)
    expected = weights if kind == "gru" or not biases else summed(weights)
    assert_same(convert.from_keras(kind, convert.to_keras(kind, weights)), expected)


@pytest.mark.parametrize("left_away", ["b_ih", "b_hh"])
@pytest.mark.parametrize("kind", LAYERS)
def test_one_bias_goes_with_zeros_for_the_other(kind, left_away):
    whole = make(kind)
    zeros = whole._replace(**{left_away: 0 * whole.b_ih})
    one = whole._replace(**{left_away: None})
    assert_same(convert.to_keras(kind, one), convert.to_keras(kind, zeros))
    assert_same(convert.to_onnx(kind, [one]), convert.to_onnx(kind, [zeros]))
    for gate, expected in convert.to_flax(kind, zeros).items():
        found = convert.to_flax(kind, one)[gate]
        assert found.keys() == expected.keys()
        assert_same(found.values(), expected.values())


def test_weights_of_gru_with_the_reset_first_return_from_keras():
    weights = make("gru")
    there = convert.to_keras("gru", weights, reset_after=False)
    assert there[2].shape == (3 * UNITS,)
    assert_same(convert.from_keras("gru", there), summed(weights))


@pytest.mark.parametrize("biases", [True, False], ids=["biases", "bare"])
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_return_from_onnx(kind, biases):
    both = [make(kind, biases), make(kind, biases)]
    for found, expected in zip(
        convert.from_onnx(kind, *convert.to_onnx(kind, both)), both, strict=True
    ):
        assert_same(found, expected)


def test_direction_without_biases_has_zeros_in_onnx_where_the_other_has_some():
    _, _, b = convert.to_onnx("gru", [make("gru"), make("gru", biases=False)])
    assert b[0].all()
    assert not b[1].any()


NODES = {
    "rnn": ("RNN", {}, {}),
    "gru": ("GRU", {"linear_before_reset": 1}, {}),
    "gru, reset first": ("GRU", {"linear_before_reset": 0}, {"linear_before_reset": False}),
    "lstm": ("LSTM", {}, {}),
    "lstm, peepholes": ("LSTM", {}, {}),
}


def run_node(node, arrays, x, lengths=None, **attributes):
    """All outputs of a bidirectional node of ONNX, by ONNX Runtime: [t, 2, b, h]."""
    import onnx
    import onnxruntime

    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    if lengths is not None:
        arrays = {**arrays, "L": lengths}
    names = [name if name in arrays else "" for name in "WRBLICP"]
    while not names[-1]:
        names.pop()
    graph = helper.make_graph(
        [
            helper.make_node(
                node, ["X", *names], ["Y"],
                hidden_size=UNITS, direction="bidirectional", **attributes,
            )
        ],
        "layer",
        [helper.make_tensor_value_info("X", floats, x.shape)],
        [helper.make_tensor_value_info("Y", floats, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"X": x})[0]


@pytest.mark.parametrize("lengths", [None, [4, 1, 3]], ids=["whole", "lengths"])
@pytest.mark.parametrize("which", NODES)
def test_onnx_runtime_computes_the_same(which, lengths):
    pytest.importorskip("onnxruntime")
    node, attributes, options = NODES[which]
    kind, x = node.lower(), inputs()
    both = [make(kind), make(kind)]
    arrays = dict(zip("WRB", convert.to_onnx(kind, both), strict=True))
    more = [{}, {}]
    if "peepholes" in which:
        peepholes = [RANDOM.standard_normal(3 * UNITS).astype("float32") for _ in both]
        arrays["P"] = convert.peepholes_to_onnx(peepholes)
        more = [{"peepholes": own} for own in convert.peepholes_from_onnx(arrays["P"])]
        for own, given in zip(more, peepholes, strict=True):
            assert np.array_equal(own["peepholes"], given)
    given = None if lengths is None else np.array(lengths, np.int32)
    y = run_node(node, arrays, x, given, **attributes)
    for direction, own in enumerate(both):
        found = LAYERS[kind](
            x, *own, lengths=given, reverse=bool(direction), **options, **more[direction]
        ).output
        np.testing.assert_allclose(found, y[:, direction], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_torch_computes_the_same(kind):
    torch = pytest.importorskip("torch")
    weights, x = make(kind), inputs()
    layer = getattr(torch.nn, kind.upper())(INPUTS, UNITS)
    with torch.no_grad():
        for own, given in zip(layer.parameters(), weights, strict=True):
            own.copy_(torch.from_numpy(given))
    expected = layer(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(LAYERS[kind](x, *weights).output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_flax_computes_the_same(kind):
    nn = pytest.importorskip("flax.linen")
    cell = {"rnn": nn.SimpleCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind](UNITS)
    weights, x = make(kind), inputs()
    params = convert.to_flax(kind, weights)
    expected = nn.RNN(cell, time_major=True).apply({"params": {"cell": params}}, x)
    np.testing.assert_allclose(LAYERS[kind](x, *weights).output, expected, rtol=1e-4, atol=1e-5)
    back = convert.from_flax(kind, params)
    np.testing.assert_allclose(LAYERS[kind](x, *back).output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_other_arrays_stay_what_they_are(framework, kind):
    module = pytest.importorskip({"jax": "jax.numpy"}.get(framework, framework))
    name = {"torch": "from_numpy", "jax": "asarray", "tensorflow": "convert_to_tensor"}[framework]
    weights = make(kind)
    given = convert.Weights(*map(getattr(module, name), weights))
    for there, back in (
        (lambda w: convert.to_keras(kind, w), lambda w: convert.from_keras(kind, w)),
        (lambda w: convert.to_onnx(kind, [w]), lambda w: convert.from_onnx(kind, *w)[0]),
        (lambda w: convert.to_flax(kind, w), lambda w: convert.from_flax(kind, w)),
    ):
        found = back(there(given))
        assert all(isinstance(array, type(given.w_ih)) for array in found)
        assert_same(found, back(there(weights)))


def test_gradients_flow_through():
    torch = pytest.importorskip("torch")
    kernels = [
        torch.randn(size, 3 * UNITS, dtype=torch.float64, requires_grad=True)
        for size in (INPUTS, UNITS)
    ]
    bias = torch.randn(2, 3 * UNITS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *given: convert.from_keras("gru", given), [*kernels, bias]
    )


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="`kind` is 'GRU', but must be one of 'rnn', 'gru'"):
        convert.to_keras("GRU", make("gru"))
