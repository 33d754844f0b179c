# SPDX-License-Identifier: Apache-2.0
"""ctc_loss against its rivals: the loss of each sequence and the gradient to the logits."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.ops import _ctc

SIZES = [
    {"t": 400, "b": 32, "c": 80, "s": 50},
    {"t": 100, "b": 256, "c": 32, "s": 20},
    {"t": 1500, "b": 16, "c": 1024, "s": 200},
    {"t": 1000, "b": 8, "c": 5000, "s": 120},
]


def problem(random: np.random.Generator, t: int, b: int, c: int, s: int) -> tuple[NdArray, ...]:
    """Logits and targets; the last class is the blank, as TensorFlow's kernel wants it."""
    logits = random.standard_normal((t, b, c), dtype=np.float32)
    return logits, random.integers(0, c - 1, (b, s))


def known(logits: NdArray, targets: NdArray) -> list[Known]:
    """Losses and gradients of the first and the last sequence."""
    some = [0, logits.shape[1] - 1]
    given = _ctc.Problem(logits[:, some], targets[some], None, None, logits.shape[2] - 1, True)
    loss, *kept = _ctc.losses(given, normalized=False, zero_infinity=False)
    gradient = _ctc.gradient(given, *kept, normalized=False)
    return [Known(some, loss), Known((slice(None), some), gradient)]


def _torch(loss_of: Callable[[Any, Any], Any]) -> Callable[..., Callable[[], Any]]:
    def prepare(logits: NdArray, targets: NdArray) -> Callable[[], Any]:
        import torch

        x, labels = torch.tensor(logits).requires_grad_(), torch.tensor(targets)

        def call() -> Any:
            loss = loss_of(x, labels)
            return loss, *torch.autograd.grad(loss.sum(), x)

        return call

    return prepare


def ours(x: Any, labels: Any) -> Any:
    """From logits."""
    return nativeops.ctc_loss(x, labels, blank=x.shape[2] - 1, reduction="none")


def torch_ctc(x: Any, labels: Any) -> Any:
    """PyTorch's own kernel behind its log_softmax."""
    import torch

    (t, b, c), s = x.shape, labels.shape[1]
    lengths = torch.full((b,), t), torch.full((b,), s)
    log_probs = torch.log_softmax(x, 2)
    return torch.nn.functional.ctc_loss(log_probs, labels, *lengths, blank=c - 1, reduction="none")


class Swapped:
    """A batch-major array, read time by time."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, *_: Any, **__: Any) -> NdArray:
        return np.asarray(self.array).swapaxes(0, 1)


def optax_ctc(logits: NdArray, targets: NdArray) -> Callable[[], Any]:
    """Optax under one jit, with logits in the order of axes that it wants."""
    import jax
    import optax

    c = logits.shape[2]
    x, labels = jax.numpy.asarray(logits.swapaxes(0, 1)), jax.numpy.asarray(targets, "int32")
    no_frame, no_label = jax.numpy.zeros(x.shape[:2]), jax.numpy.zeros(labels.shape)

    def both(x: Any) -> Any:
        def total(x: Any) -> Any:
            loss = optax.ctc_loss(x, no_frame, labels, no_label, blank_id=c - 1)
            return loss.sum(), loss

        gradient, loss = jax.grad(total, has_aux=True)(x)
        return loss, gradient

    compiled = jax.jit(both).lower(x).compile()

    def call() -> Any:
        loss, gradient = jax.block_until_ready(compiled(x))
        return loss, Swapped(gradient)

    return call


def tensorflow_ctc(logits: NdArray, targets: NdArray) -> Callable[[], Any]:
    """TensorFlow with sparse labels; with dense ones it needs over 20 GB at the last size."""
    import tensorflow as tf

    x, labels = tf.constant(logits), tf.sparse.from_dense(tf.constant(targets + 1, tf.int32))
    labels = tf.sparse.map_values(lambda values: values - 1, labels)  # 0 would not be stored
    frames = tf.fill([logits.shape[1]], logits.shape[0])

    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.nn.ctc_loss(labels, x, None, frames, blank_index=logits.shape[2] - 1)
        return loss, tape.gradient(loss, x)

    compiled = tf.function(both)
    return lambda: compiled(x)


def copied() -> float:
    """Bytes of a large array that are copied in a second."""
    array = np.ones(1 << 25, np.float32)
    target = array.copy()
    started = time.perf_counter()
    np.copyto(target, array)
    return array.nbytes / (time.perf_counter() - started)


BENCHES = [
    Bench(
        "training",
        "from logits to the losses and to the gradient of their sum; the limit copies the logits",
        sizes=SIZES,
        memory_sizes=SIZES[:3],
        inputs=problem,
        expected=known,
        tolerance=2e-5,
        peer_tolerance=2e-2,  # their sums of logarithms lose a digit every few hundred frames
        work=lambda t, b, c, s: 4.0 * t * b * c,
        limit=copied,
        rivals=[
            Rival("ours, torch", _torch(ours), OURS, "torch"),
            Rival("torch", _torch(torch_ctc), "torch", "torch"),
            Rival("optax", optax_ctc, "optax", "jax"),
            Rival("tensorflow, sparse", tensorflow_ctc, "tensorflow", "tensorflow"),
        ],
    )
]
