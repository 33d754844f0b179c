# SPDX-License-Identifier: Apache-2.0
"""A layer of Keras and ours in its place, with any of Keras's backends: made, run, compared."""

from typing import Any

import keras
import numpy as np
from keras import ops

import nativeops.layers.keras as fused


def normal(*shape: int, seed: int = 0) -> Any:
    """Random numbers, in NumPy."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def tensor(array: Any) -> Any:
    """A tensor of the backend; None stays None."""
    return None if array is None else ops.convert_to_tensor(array)


def pair(name: str, units: int, shape: tuple[int, ...], **options: Any) -> tuple[Any, Any]:
    """Keras's layer and ours, with the same weights: random ones, biases too."""
    own, ours = (getattr(module, name)(units, **options) for module in (keras.layers, fused))
    for layer in (own, ours):
        layer.build(shape)
        weights = layer.get_weights()
        layer.set_weights([0.5 * normal(*w.shape, seed=n) for n, w in enumerate(weights)])
    return own, ours


def numbers(made: Any) -> list[Any]:
    """All tensors of a result, in NumPy."""
    return [ops.convert_to_numpy(ops.cast(array, "float32")) for array in keras.tree.flatten(made)]


def assert_close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Two results have the same shapes and nearly the same numbers."""
    for a, b in zip(numbers(found), numbers(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def gradients(layer: Any, x: Any, mask: Any, weight: Any) -> list[Any]:
    """Of the sum of the outputs times `weight`: for the inputs and all trainable weights."""
    variables = [v.value for v in layer.trainable_variables]
    if keras.backend.backend() == "jax":
        import jax

        other = [v.value for v in layer.non_trainable_variables]

        def function(x: Any, variables: Any) -> Any:
            return ops.sum(layer.stateless_call(variables, other, x, mask=mask)[0] * weight)

        return list(keras.tree.flatten(jax.jit(jax.grad(function, (0, 1)))(x, variables)))
    if keras.backend.backend() == "torch":
        import torch

        x = torch.tensor(x, requires_grad=True)
        return list(torch.autograd.grad(ops.sum(layer(x, mask=mask) * weight), [x, *variables]))
    import tensorflow as tf

    x = tf.Variable(x)
    with tf.GradientTape() as tape:
        made = ops.sum(layer(x, mask=mask) * weight)
    return list(tape.gradient(made, [x, *variables]))
