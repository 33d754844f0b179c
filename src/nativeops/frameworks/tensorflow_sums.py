# SPDX-License-Identifier: Apache-2.0
"""Gradients of broadcast inputs: their sums to the shape of the input."""

from typing import Any

import tensorflow as tf

_HALVES = (tf.bfloat16, tf.float16)


def like_of(tensor: Any) -> Any:
    """The shape; in a graph that does not know it, the tensor, from which it is taken later."""
    return tensor.shape if tensor.shape.is_fully_defined() else tensor


def shape_of(like: Any) -> Any:
    """The shape of a tensor, or a shape."""
    return getattr(like, "shape", like)


def summed(gradient: Any, like: Any) -> Any:
    """Undo broadcasting: the sum over the axes that the input lacks or has with size 1."""
    wanted = shape_of(like)
    if wanted.is_fully_defined() and wanted == gradient.shape:
        return gradient
    shape = tf.constant(wanted.as_list(), tf.int32) if like is wanted else tf.shape(like)
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=shape, s1=tf.shape(gradient))
    # Sums of many halves are kept in single precision, as in the kernels.
    exact = tf.cast(gradient, tf.float32) if gradient.dtype in _HALVES else gradient
    return tf.cast(tf.reshape(tf.reduce_sum(exact, axes), shape), gradient.dtype)


def summed_if_there(gradient: Any, like: Any) -> Any:
    """The same for an optional input: a graph may see only when it runs that there is none."""
    if isinstance(like, tf.TensorShape):
        return summed(gradient, like)
    # In a graph of TensorFlow 1, `==` would ask whether two tensors are the same object.
    gone = tf.equal(tf.size(like), 0)
    return tf.cond(gone, lambda: tf.zeros_like(like), lambda: summed(gradient, like))
