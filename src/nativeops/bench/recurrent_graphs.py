# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in libraries that are given a model first: ONNX Runtime, OpenVINO, Keras."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nativeops.bench.case import Later, NdArray, Rival
from nativeops.bench.recurrent_rivals import Layer
from nativeops.layers.convert import Kind, Weights, from_keras, to_keras, to_onnx


def onnx_model(layer: Layer, x: NdArray, *weights: NdArray) -> Any:
    """A model of one node, whose weights are constants."""
    from onnx import TensorProto, helper, numpy_helper

    (steps, batch, inputs), units = x.shape, weights[1].shape[1]
    more: dict[str, Any] = {"linear_before_reset": 1} if layer.kind == "gru" else {}
    if layer.activation:
        more = {"activations": [layer.activation.capitalize()]}
    names = ("W", "R", "B")
    node = helper.make_node(layer.kind.upper(), ["X", *names], ["Y"], hidden_size=units, **more)
    graph = helper.make_graph(
        [node],
        layer.name,
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [steps, batch, inputs])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [steps, 1, batch, units])],
        [
            numpy_helper.from_array(np.ascontiguousarray(array), name)
            for name, array in zip(names, to_onnx(layer.kind, [Weights(*weights)]), strict=True)
        ],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def onnx_runtime(layer: Layer) -> Rival:
    """Its own layer, with as many threads as there are CPUs."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        model = onnx_model(layer, *arrays).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        return lambda: session.run(None, {"X": arrays[0]})[0][:, 0]

    return Rival("onnx_runtime", prepare, "onnxruntime", "numpy")


def openvino(layer: Layer) -> Rival:
    """The same model; told to compute in float32, which it would not do where it finds bf16."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import openvino as ov

        core = ov.Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
        }
        model = core.read_model(onnx_model(layer, *arrays).SerializeToString())
        compiled = core.compile_model(model, "CPU", settings)
        return lambda: compiled([arrays[0]])[0][:, 0]

    return Rival("openvino", prepare, "openvino", "numpy")


def keras_layer(layer: Layer, *, training: bool = False) -> Rival:
    """Keras on TensorFlow, in a graph; its sequences come first, as it has them."""

    def prepare(x: NdArray, *others: NdArray) -> Callable[[], Any]:
        import keras
        import tensorflow as tf

        more = {"activation": layer.activation} if layer.activation else {}
        kind = {"lstm": "LSTM", "gru": "GRU", "rnn": "SimpleRNN"}[layer.kind]
        made = getattr(keras.layers, kind)(others[1].shape[1], return_sequences=True, **more)
        inputs = tf.constant(np.ascontiguousarray(x.swapaxes(0, 1)))
        made.build(inputs.shape)
        made.set_weights(to_keras(layer.kind, Weights(*others[:4])))
        call = tf.function(made)
        if not training:
            return lambda: Later(call(inputs), lambda y: y.numpy().swapaxes(0, 1))
        d_outputs = tf.constant(np.ascontiguousarray(others[4].swapaxes(0, 1)))
        variables = [variable.value for variable in made.trainable_variables]

        def gradients() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = made(inputs, training=True)
            return tape.gradient(outputs, [inputs, *variables], d_outputs)

        call_back = tf.function(gradients)

        def each() -> tuple[Later, ...]:
            found = call_back()
            return tuple(Later(found, partial(_of_ours, layer.kind, place)) for place in range(5))

        return each

    return Rival("keras", prepare, "keras", "tensorflow")


def _of_ours(kind: Kind, place: int, found: Any) -> NdArray:
    """One of our five gradients, from those of Keras, which may have a single bias for two."""
    if place == 0:
        return np.asarray(found[0].numpy().swapaxes(0, 1))
    weights = from_keras(kind, [gradient.numpy() for gradient in found[1:]])
    return np.asarray(weights[2 if place == 4 and kind != "gru" else place - 1])
