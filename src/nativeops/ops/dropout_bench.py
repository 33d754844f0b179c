# SPDX-License-Identifier: Apache-2.0
"""Dropout against the frameworks' own, whose random numbers are others."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nativeops.bench.case import OURS, Bench, Known, NdArray
from nativeops.bench.forms import (
    jax_gradient,
    jax_rival,
    numpy_rival,
    ours_in,
    tensorflow_rival,
    torch_gradient,
    torch_rival,
)
from nativeops.ops.dropout import dropout

SIZES = [{"t": 50, "b": 8, "h": 256}, {"t": 300, "b": 20, "h": 800}, {"t": 500, "b": 64, "h": 1024}]
P = 0.1
BETWEEN = 1.0001  # the tolerance: a number may be anywhere from 0 to 1 / (1 - p)


def ones(random: np.random.Generator, t: int, b: int, h: int) -> tuple[NdArray, NdArray]:
    """Ones, and a seed."""
    return np.ones((t, b, h), np.float32), random.integers(0, 1 << 30, 1)


def ones_both_ways(random: np.random.Generator, t: int, b: int, h: int) -> tuple[NdArray, NdArray]:
    """Ones, and ones that flow back."""
    x = ones(random, t, b, h)[0]
    return x, x


def middle(x: NdArray, _: NdArray) -> list[Known]:
    """Half of what is kept: masks differ, so results do, but none is further from here."""
    return [Known(..., x / (2 * (1 - P)))]


def ours(x: Any, seed: Any) -> Any:
    """The op."""
    return dropout(x, seed, p=P)


def ours_seeded(x: Any) -> Any:
    """The op with a seed that is drawn as the layers draw it."""
    import torch

    return dropout(x, torch.randint(0, 1 << 30, (1,)), p=P)


def numpy_where(x: NdArray, seed: NdArray) -> NdArray:
    """A random number for each, and a comparison."""
    kept = np.random.default_rng(seed).random(x.shape, np.float32) >= P
    return np.where(kept, x * np.float32(1 / (1 - P)), np.float32(0))


def functional_dropout(x: Any, *_: Any) -> Any:
    """PyTorch's op."""
    import torch

    return torch.nn.functional.dropout(x, P, training=True)


@cache
def compiled() -> Callable[..., Any]:
    """The same by PyTorch's compiler, whose generator is Philox, too."""
    import torch

    return torch.compile(functional_dropout)


def dropout_compiled(x: Any, *_: Any) -> Any:
    """Compiled."""
    return compiled()(x)


def jax_bernoulli(x: Any, seed: Any) -> Any:
    """What flax's layer does."""
    import jax

    kept = jax.random.bernoulli(jax.random.key(seed[0]), 1 - P, x.shape)
    return jax.numpy.where(kept, x / (1 - P), 0)


def jax_constant_seed(x: Any) -> Any:
    """The same, one mask for all calls."""
    import jax

    return jax_bernoulli(x, jax.numpy.zeros(1, int))


def stateless_dropout(x: Any, seed: Any) -> Any:
    """TensorFlow's op."""
    import tensorflow as tf

    return tf.nn.experimental.stateless_dropout(x, P, tf.concat([seed, seed], 0))


BENCHES = [
    Bench(
        "forward",
        "a mask, and what it leaves; every rival draws another one",
        sizes=SIZES,
        inputs=ones,
        expected=middle,
        tolerance=BETWEEN,
        work=lambda t, b, h: t * b * h,
        seconds=3,
        rivals=[
            *ours_in(ours, "numpy"),
            numpy_rival(numpy_where, "numpy"),
            *ours_in(ours, "torch"),
            torch_rival(functional_dropout),
            torch_rival(dropout_compiled),
            *ours_in(ours, "jax"),
            jax_rival(jax_bernoulli),
            *ours_in(ours, "tensorflow"),
            tensorflow_rival(stateless_dropout),
        ],
    ),
    Bench(
        "training",
        "the same, and the gradient",
        sizes=SIZES,
        inputs=ones_both_ways,
        expected=middle,
        tolerance=BETWEEN,
        work=lambda t, b, h: t * b * h,
        memory_sizes=SIZES[-1:],
        seconds=3,
        rivals=[
            torch_gradient(ours_seeded, OURS, name="ours, torch"),
            torch_gradient(functional_dropout),
            torch_gradient(dropout_compiled),
            jax_gradient(jax_constant_seed),
        ],
    ),
]
