# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers as PyTorch and JAX have them, or as one writes them there.

The arguments are those of this package's ops: ``x, w_ih, w_hh, b_ih, b_hh``, then ``lengths`` and
what flows back, where a case has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from nativeops.bench.case import OURS, Later, NdArray, Rival
from nativeops.bench.forms import jax_gradient, jax_rival, numpy_rival
from nativeops.call import Op
from nativeops.layers.convert import Kind

GATES: dict[Kind, int] = {"lstm": 4, "gru": 3, "rnn": 1}
Function = Callable[..., Any]


@dataclass(frozen=True)
class Layer:
    """A layer of this package, and what others call it."""

    kind: Kind
    op: Op[Any]
    activation: str = ""  # of `rnn`: tanh or relu
    precision: str = "default"  # of our own products

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.activation or self.kind

    @property
    def word(self) -> str:
        """What PyTorch's function is called."""
        return f"{self.kind}_{self.activation}" if self.activation else self.kind

    @property
    def options(self) -> dict[str, str]:
        """Further arguments of the op."""
        chosen = {"activation": self.activation} if self.activation else {}
        return {**chosen, "precision": self.precision} if self.precision != "default" else chosen


def numpy_ours(layer: Layer) -> Rival:
    """The op, called with NumPy arrays."""

    def outputs(*arrays: NdArray) -> Any:
        return layer.op(*arrays, **layer.options).output

    return numpy_rival(outputs, OURS, name="ours, NumPy")


def torch_ours(layer: Layer, x: Any, *weights: Any, lengths: Any = None) -> Any:
    """The op, called with PyTorch's tensors."""
    return layer.op(x, *weights, lengths=lengths, **layer.options).output


def fused(layer: Layer, x: Any, *weights: Any) -> Any:
    """``torch.nn``'s layer, by the function that it calls; the states before are zeros."""
    return _torch_layer(layer, x, None, weights)


def packed(layer: Layer, x: Any, *weights: Any, lengths: Any) -> Any:
    """The same for packed sequences; packing and unpacking count."""
    from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

    short = pack_padded_sequence(x, lengths, enforce_sorted=False)
    data = _torch_layer(layer, short.data, short.batch_sizes, weights)
    outputs = PackedSequence(data, short.batch_sizes, short.sorted_indices, short.unsorted_indices)
    return pad_packed_sequence(outputs, total_length=len(x))[0]


def masked(layer: Layer, x: Any, *weights: Any, lengths: Any) -> Any:
    """All steps of all sequences; what lies beyond the ends is set to 0."""
    import torch

    inside = torch.arange(len(x))[:, None] < lengths
    return fused(layer, x, *weights) * inside[:, :, None]


def _torch_layer(layer: Layer, x: Any, batch_sizes: Any, weights: tuple[Any, ...]) -> Any:
    import torch

    batch = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
    zeros = x.new_zeros(1, batch, weights[1].shape[1])
    state = (zeros, zeros) if layer.kind == "lstm" else zeros
    training = any(weight.requires_grad for weight in weights)
    more = (weights, True, 1, 0.0, training, False)
    function = getattr(torch, layer.word)
    if batch_sizes is None:
        return function(x, state, *more, False)[0]
    return function(x, batch_sizes, state, *more)[0]


def hoisted(layer: Layer, x: Any, *weights: Any) -> Any:
    """The input product of all steps at once, then a loop over the steps."""
    import torch

    w_ih, w_hh, b_ih, b_hh = weights
    from_x = torch.nn.functional.linear(x, w_ih, b_ih)
    words = Words(torch.sigmoid, torch.tanh, partial(torch.chunk, dim=-1))
    h = c = x.new_zeros(x.shape[1], w_hh.shape[1])
    outputs = []
    for step in from_x.unbind():
        h, c = advance(layer, words, step, torch.addmm(b_hh, h, w_hh.t()), h, c)
        outputs.append(h)
    return torch.stack(outputs)


class Words(NamedTuple):
    """What a formula is written in; `split` takes an array and how many parts it shall have."""

    sigmoid: Function
    tanh: Function
    split: Function


def advance(layer: Layer, words: Words, x: Any, y: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """The states after a step, from the products with its input and with the state before."""
    sigmoid, tanh, split = words
    if layer.kind == "lstm":
        i, f, g, o = split(x + y, 4)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c
    if layer.kind == "gru":
        (x_r, x_z, x_n), (y_r, y_z, y_n) = split(x, 3), split(y, 3)
        n = tanh(x_n + sigmoid(x_r + y_r) * y_n)
        return n + sigmoid(x_z + y_z) * (h - n), c
    return ((x + y).clip(0) if layer.activation == "relu" else tanh(x + y)), c


def cells(layer: Layer, x: Any, *weights: Any) -> Any:
    """A loop over the steps, each by PyTorch's cell."""
    import torch

    cell = getattr(torch, f"{layer.word}_cell")
    h = c = x.new_zeros(x.shape[1], weights[1].shape[1])
    outputs = []
    for step in x.unbind():
        if layer.kind == "lstm":
            h, c = cell(step, (h, c), *weights)
        else:
            h = cell(step, h, *weights)
        outputs.append(h)
    return torch.stack(outputs)


def torch_inference(
    function: Function,
    layer: Layer,
    package: str = "torch",
    name: str = "",
    *,
    lengths: bool = False,
    dtype: str = "float32",
) -> Rival:
    """The outputs, without a gradient."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import torch

        arguments, more = _tensors(arrays[: 5 + lengths], dtype)

        def call() -> Any:
            with torch.no_grad():
                return _comparable(function(layer, *arguments, **more))

        return call

    return Rival(name or function.__name__, prepare, package, "torch")


def torch_training(
    function: Function,
    layer: Layer,
    package: str = "torch",
    name: str = "",
    *,
    lengths: bool = False,
    dtype: str = "float32",
) -> Rival:
    """The outputs and then, by autograd, the gradients of inputs, weights and biases."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import torch

        arguments, more = _tensors(arrays[: 5 + lengths], dtype)
        d_output = _tensor(arrays[-1], dtype)
        arguments = [tensor.requires_grad_() for tensor in arguments]

        def call() -> Any:
            output = function(layer, *arguments, **more)
            gradients = torch.autograd.grad(output, arguments, d_output)
            return tuple(_comparable(gradient) for gradient in gradients)

        return call

    return Rival(name or function.__name__, prepare, package, "torch")


def _tensors(arrays: tuple[NdArray, ...], dtype: str) -> tuple[list[Any], dict[str, Any]]:
    """Five tensors of numbers, and the lengths, if there are any."""
    import torch

    more = {"lengths": torch.tensor(arrays[5])} if len(arrays) > 5 else {}
    return [_tensor(array, dtype) for array in arrays[:5]], more


def _tensor(array: NdArray, dtype: str) -> Any:
    import torch

    return torch.tensor(array).to(getattr(torch, dtype))


def _comparable(tensor: Any) -> Any:
    """NumPy has no bf16."""
    import torch

    narrow = tensor.dtype == torch.bfloat16
    return Later(tensor, lambda value: value.detach().float()) if narrow else tensor


def jax_scan(layer: Layer, *, training: bool) -> Rival:
    """The input product of all steps at once, then ``lax.scan``, all under one ``jit``."""

    def outputs(x: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
        import jax

        jnp = jax.numpy
        words = Words(jax.nn.sigmoid, jnp.tanh, partial(jnp.split, axis=-1))

        def step(state: Any, from_x: Any) -> Any:
            h, c = state
            state = advance(layer, words, from_x, h @ w_hh.T + b_hh, h, c)
            return state, state[0]

        zeros = jnp.zeros((x.shape[1], w_hh.shape[1]), x.dtype)
        return jax.lax.scan(step, (zeros, zeros), x @ w_ih.T + b_ih)[1]

    return (jax_gradient if training else jax_rival)(outputs, name="jax_scan")
