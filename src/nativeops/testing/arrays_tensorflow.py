# SPDX-License-Identifier: Apache-2.0
"""TensorFlow tensors for tests; see `nativeops.testing.arrays`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from nativeops.call import Op
from nativeops.testing.arrays import Placed, numpy_dtype


def random(*shape: int, dtype: Any = tf.float32) -> Any:
    """Normal numbers, the same for a shape each time."""
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape)
    return tf.cast(tf.constant(numbers), dtype)


def composed_l1(x: Any, y: Any) -> Any:
    """What `pairwise_l1` is, in TensorFlow's own functions."""
    return tf.reduce_sum(tf.abs(x[..., :, None, :] - y[..., None, :, :]), -1)


class TensorFlowArrays:
    """TensorFlow, on a device."""

    def __init__(self, device: str) -> None:
        self.device = device.replace("cuda", "gpu")

    def place(self, values: Any, dtype: str, layout: str = "contiguous") -> Placed:
        """See `Arrays`. A tensor has one layout."""
        with tf.device(self.device):
            array = tf.constant(np.asarray(values).astype(numpy_dtype(dtype)))
        return Placed(array, array)

    def values(self, array: Any) -> Any:
        """See `Arrays`."""
        numbers = array.numpy()
        return numbers.astype(np.float64) if array.dtype == tf.bfloat16 else numbers

    def dtype(self, array: Any) -> str:
        """See `Arrays`."""
        return str(array.dtype.name)

    def gradients(
        self,
        op: Op[Any],
        arguments: Mapping[str, Any],
        d_outputs: Sequence[Any],
        names: Sequence[str],
    ) -> dict[str, Any]:
        """See `Arrays`."""
        leaves = [arguments[name] for name in names]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            result = op(**arguments)
            outputs = [o for o in (result if op.result else [result]) if o is not None]
        pairs = [(o, d) for o, d in zip(outputs, d_outputs, strict=True) if o.dtype.is_floating]
        found = tape.gradient(
            [o for o, _ in pairs],
            leaves,
            [tf.cast(tf.constant(np.asarray(d)), o.dtype) for o, d in pairs],
        )
        return {
            name: np.zeros(leaf.shape) if gradient is None else self.values(gradient)
            for name, leaf, gradient in zip(names, leaves, found, strict=True)
        }

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See `Arrays`."""
        made: Callable[..., Any] = tf.function(function)
        return made

    def scope(self, dtypes: Collection[str]) -> AbstractContextManager[Any]:
        """See `Arrays`."""
        return nullcontext()
