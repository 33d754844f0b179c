# SPDX-License-Identifier: Apache-2.0
"""The sparse ops against each framework's operations with index arrays."""

from typing import Any

import numpy as np

from nativeops.bench.case import Bench, Known, NdArray
from nativeops.bench.forms import (
    jax_rival,
    numpy_rival,
    ours_in,
    tensorflow_rival,
    torch_gradient,
    torch_rival,
    with_arriving,
)
from nativeops.ops.sparse import max_and_argmax_sparse, sparse_to_dense, subtensor_batched_index

# Phonemes and words of a batch of utterances, three entries to a frame.
PICKED = [{"t": 500, "b": 16, "d": 128}, {"t": 300, "b": 16, "d": 4000}]
ENTRIES = [{"t": 500, "b": 16, "d": 128, "n": 1500}, {"t": 300, "b": 16, "d": 4000, "n": 900}]
FRAMES = [{"t": 500, "b": 16, "n": 1500}, {"t": 2000, "b": 128, "n": 6000}]


def vectors(random: np.random.Generator, t: int, b: int, d: int) -> tuple[NdArray, NdArray]:
    """Logits, and a class of each frame."""
    return random.standard_normal((t, b, d), np.float32), random.integers(0, d, (t, b))


def entries(random: np.random.Generator, t: int, b: int, d: int, n: int) -> tuple[NdArray, ...]:
    """What they are added to, and entries in the order of time."""
    time = np.sort(random.integers(0, t, (n, b)), 0)
    label = random.integers(0, d, (n, b))
    initial = random.standard_normal((t, b, d), np.float32)
    return initial, time, label, random.random((n, b), np.float32)


def frames(random: np.random.Generator, t: int, b: int, n: int) -> tuple[NdArray, ...]:
    """Entries in the order of time; no two weights are equal where that matters."""
    time = np.sort(random.integers(0, t, (n, b)), 0)
    weight = random.permuted(np.linspace(0, 1, n * b, dtype=np.float32)).reshape(n, b)
    label = random.integers(0, 4000, (n, b))
    return time, label, weight, np.full((t, b), -1, np.float32), np.full((t, b), -1)


def picked(x: NdArray, index: NdArray) -> list[Known]:
    """By NumPy."""
    return [Known(..., np.take_along_axis(x, index[..., None], 2)[..., 0])]


def spread(x: NdArray, index: NdArray, d_out: NdArray) -> list[Known]:
    """By NumPy."""
    d_x = np.zeros(x.shape)
    np.put_along_axis(d_x, index[..., None], d_out[..., None], 2)
    return [Known(..., d_x)]


def sums(initial: NdArray, time: NdArray, label: NdArray, weight: NdArray) -> list[Known]:
    """By NumPy, in float64."""
    return [Known(..., add_at(initial.astype(np.float64), time, label, weight))]


def largest(time: NdArray, label: NdArray, weight: NdArray, *initial: NdArray) -> list[Known]:
    """By the definition, of some sequences."""
    some = slice(0, 8)
    arrays = (array[:, some] for array in (time, label, weight, *initial))
    made = max_and_argmax_sparse.reference(*arrays)
    return [Known((slice(None), some), made.largest), Known((slice(None), some), made.argmax)]


def take_along_axis(x: NdArray, index: NdArray) -> NdArray:
    """NumPy's way."""
    return np.take_along_axis(x, index[..., None], 2)[..., 0]


def gather(x: Any, index: Any) -> Any:
    """PyTorch's op."""
    return x.gather(2, index[..., None])[..., 0]


def jax_take_along_axis(x: Any, index: Any) -> Any:
    """JAX's way."""
    import jax

    return jax.numpy.take_along_axis(x, index[..., None], 2)[..., 0]


def batched_gather(x: Any, index: Any) -> Any:
    """TensorFlow's op."""
    import tensorflow as tf

    return tf.gather(x, index, batch_dims=2)


def add_at(initial: NdArray, time: NdArray, label: NdArray, weight: NdArray) -> NdArray:
    """NumPy's way."""
    out = initial.copy()
    np.add.at(out, (time, np.arange(out.shape[1]), label), weight)
    return out


def index_put(initial: Any, time: Any, label: Any, weight: Any) -> Any:
    """PyTorch's op."""
    import torch

    sequence = torch.arange(initial.shape[1], device=initial.device).expand_as(time)
    return initial.index_put((time, sequence, label), weight, accumulate=True)


def scatter_add(initial: Any, time: Any, label: Any, weight: Any) -> Any:
    """PyTorch's other op, on the flat array."""
    import torch

    _, b, d = initial.shape
    place = (time * b + torch.arange(b, device=time.device)) * d + label
    flat = initial.reshape(-1).scatter_add(0, place.reshape(-1), weight.reshape(-1))
    return flat.reshape(initial.shape)


def jax_add(initial: Any, time: Any, label: Any, weight: Any) -> Any:
    """JAX's way."""
    import jax

    return initial.at[time, jax.numpy.arange(initial.shape[1]), label].add(weight)


def tensor_scatter(initial: Any, time: Any, label: Any, weight: Any) -> Any:
    """TensorFlow's op."""
    import tensorflow as tf

    sequence = tf.broadcast_to(tf.range(initial.shape[1], dtype=time.dtype), time.shape)
    places = tf.stack([time, sequence, label], -1)
    return tf.tensor_scatter_nd_add(initial, places, weight)


def ours_largest(*arrays: Any) -> Any:
    """The op."""
    return tuple(max_and_argmax_sparse(*arrays))


def torch_largest(time: Any, label: Any, weight: Any, initial: Any, labels: Any) -> Any:
    """The largest by a scattered maximum, then the label of whoever equals it."""
    best = initial.scatter_reduce(0, time, weight, "amax")
    wins = weight == best.gather(0, time)
    rest = label.new_zeros(()).expand_as(label)
    found = labels.scatter_reduce(0, time, label.where(wins, rest - 1), "amax")
    return best, found


def jax_largest(time: Any, label: Any, weight: Any, initial: Any, labels: Any) -> Any:
    """The same in JAX."""
    import jax.numpy as jnp

    sequence = jnp.arange(initial.shape[1])
    best = initial.at[time, sequence].max(weight)
    wins = weight == best[time, sequence]
    return best, labels.at[time, sequence].max(jnp.where(wins, label, -1))


BENCHES = [
    Bench(
        "picked",
        "one number of each vector, by its index",
        sizes=PICKED,
        inputs=vectors,
        expected=picked,
        work=lambda t, b, d: t * b,
        seconds=3,
        rivals=[
            *ours_in(subtensor_batched_index, "numpy"),
            numpy_rival(take_along_axis, "numpy"),
            *ours_in(subtensor_batched_index, "torch"),
            torch_rival(gather),
            *ours_in(subtensor_batched_index, "jax"),
            jax_rival(jax_take_along_axis),
            *ours_in(subtensor_batched_index, "tensorflow"),
            tensorflow_rival(batched_gather),
        ],
    ),
    Bench(
        "picked, gradient",
        "the same, and the gradient of the vectors",
        sizes=PICKED,
        inputs=with_arriving(vectors, "tb"),
        expected=spread,
        work=lambda t, b, d: t * b * d,
        seconds=3,
        rivals=[
            *ours_in(subtensor_batched_index, "torch", gradient=True),
            torch_gradient(gather),
        ],
    ),
    Bench(
        "dense",
        "entries added to a dense array",
        sizes=ENTRIES,
        inputs=entries,
        expected=sums,
        work=lambda t, b, d, n: t * b * d,
        seconds=3,
        rivals=[
            *ours_in(sparse_to_dense, "numpy"),
            numpy_rival(add_at, "numpy"),
            *ours_in(sparse_to_dense, "torch"),
            torch_rival(index_put),
            torch_rival(scatter_add),
            *ours_in(sparse_to_dense, "jax"),
            jax_rival(jax_add),
            *ours_in(sparse_to_dense, "tensorflow"),
            tensorflow_rival(tensor_scatter),
        ],
    ),
    Bench(
        "largest",
        "the entry of the largest weight in each frame, and its label",
        sizes=FRAMES,
        inputs=frames,
        expected=largest,
        work=lambda t, b, n: (t + n) * b,
        seconds=3,
        rivals=[
            *ours_in(ours_largest, "numpy", "torch"),
            torch_rival(torch_largest),
            *ours_in(ours_largest, "jax"),
            jax_rival(jax_largest),
        ],
    ),
]
