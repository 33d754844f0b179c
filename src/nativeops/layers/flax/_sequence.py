# SPDX-License-Identifier: Apache-2.0
"""What the layers for `flax.linen` and `flax.nnx` share: Flax's conventions as a call of an op."""

import warnings
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nativeops.arrays import integers
from nativeops.errors import ArgumentError, ShapeError, message
from nativeops.layers.convert import Kind, Weights
from nativeops.ops.gru import gru_layer
from nativeops.ops.lstm import lstm_layer
from nativeops.ops.rnn import rnn_layer

_LAYERS: dict[Kind, Any] = {"rnn": rnn_layer, "gru": gru_layer, "lstm": lstm_layer}
_KINDS: dict[str, Kind] = {
    "SimpleCell": "rnn",
    "GRUCell": "gru",
    "LSTMCell": "lstm",
    "OptimizedLSTMCell": "lstm",
}


class Wanted(NamedTuple):
    """What a caller says beside the arrays; None stands for what the layer was made with."""

    return_carry: bool | None
    time_major: bool | None
    reverse: bool | None
    keep_order: bool | None

    def of(self, layer: Any) -> "Wanted":
        """The same with the layer's own settings in place of None."""
        pairs = zip(self._fields, self, strict=True)
        return Wanted(*(getattr(layer, name) if own is None else own for name, own in pairs))


def kind_of(cell: Any) -> Kind:
    """Which of the ops computes a cell that `unfused` has no objection to."""
    return _KINDS[type(cell).__name__]


def unfused(cell: Any, module: Any) -> str:
    """Why Flax must compute a cell itself; empty where an op does."""
    name = type(cell).__name__
    if name not in _KINDS or type(cell) is not getattr(module, name):
        return f"its cell is `{name}`"
    activations = (jnp.tanh, jax.nn.relu) if name == "SimpleCell" else (jnp.tanh,)
    if cell.activation_fn not in activations:
        return f"`activation_fn` of its cell is {cell.activation_fn}"
    if getattr(cell, "gate_fn", jax.nn.sigmoid) is not jax.nn.sigmoid:
        return f"`gate_fn` of its cell is {cell.gate_fn}"
    if getattr(cell, "residual", False):
        return "its cell is residual"
    return ""


def warn(why: str) -> None:
    """Say that Flax computes a layer itself."""
    text = f"A layer `RNN` of nativeops is computed by Flax's own scan, because {why}."
    warnings.warn(text, stacklevel=3)


def frame(inputs: Any, wanted: Wanted) -> tuple[int, ...]:
    """The sizes of one step of all sequences."""
    sizes = inputs.shape
    if len(sizes) < 2:
        axes = "[t, .., i]" if wanted.time_major else "[.., t, i]"
        text = f"`inputs` must have at least 2 axes {axes}, but has {len(sizes)}."
        raise ShapeError(message("RNN", text))
    return sizes[1:] if wanted.time_major else (*sizes[:-2], sizes[-1])


def run(
    layer: Any, weights: Weights, inputs: Any, carry: Any, seq_lengths: Any, wanted: Wanted
) -> Any:
    """What a layer returns: the outputs, or the last carry and the outputs."""
    cell = layer.cell
    dtype = jnp.dtype(cell.dtype or jnp.result_type(inputs, *weights))
    batch = frame(inputs, wanted)[:-1]
    lstm = kind_of(cell) == "lstm"
    states = _states(carry, lstm, (*batch, weights.w_hh.shape[1]))
    made = jnp.result_type(dtype, *states)
    x = inputs if wanted.time_major else jnp.moveaxis(inputs, -2, 0)
    # Flax rounds what is multiplied by a matrix to `dtype`, but never the carry.
    x, *rounded = (jnp.asarray(array, dtype).astype(made) for array in (x, *weights))
    states = [jnp.broadcast_to(jnp.asarray(s, made), (*batch, s.shape[-1])) for s in states]
    x, states = _flat(x, 1), [_flat(state, 0) for state in states]
    lengths = None if seq_lengths is None else _lengths(seq_lengths, batch, x)
    options: dict[str, Any] = {"reverse": bool(wanted.reverse), "precision": layer.precision}
    if cell.activation_fn is jax.nn.relu:
        options["activation"] = "relu"
    if kind_of(cell) != "rnn":  # of which nothing is kept but the outputs
        options["low_memory"] = layer.low_memory
    outputs, *final = _LAYERS[kind_of(cell)](x, *rounded, *states, lengths, **options)
    if wanted.reverse and not wanted.keep_order:
        outputs = _reversed(outputs, lengths)
    outputs = _unflat(outputs, 1, batch)
    outputs = outputs if wanted.time_major else jnp.moveaxis(outputs, 0, -2)
    states = [_unflat(state, 0, batch) for state in final[: len(states)]]
    if not wanted.return_carry:
        return outputs
    return (tuple(states[::-1]) if lstm else states[0]), outputs


def _states(carry: Any, lstm: bool, wanted: tuple[int, ...]) -> list[Any]:
    """The output, and of an LSTM the cell, before the first step."""
    what = "a pair of arrays (c, h)" if lstm else "an array"
    if isinstance(carry, (tuple, list)) != lstm or (lstm and len(carry) != 2):
        has = f"{len(carry)} of them" if isinstance(carry, (tuple, list)) else "one array"
        raise ArgumentError(message("RNN", f"`initial_carry` must be {what}, but is {has}."))
    states = [*carry[::-1]] if lstm else [carry]  # Flax has the cell before the output
    for state in states:
        if not _fits(jnp.shape(state), wanted) or jnp.shape(state)[-1:] != wanted[-1:]:
            text = f"`initial_carry` must be {what} with the axes {list(wanted)}, but one has"
            raise ShapeError(message("RNN", f"{text} {list(jnp.shape(state))}."))
    return states


def _flat(array: Any, first: int) -> Any:
    """The array with one axis for all of the batch, which begins at axis `first`."""
    sizes = array.shape
    return array.reshape(*sizes[:first], prod(sizes[first:-1]), sizes[-1])


def _unflat(array: Any, first: int, batch: tuple[int, ...]) -> Any:
    """The array with the axes of the batch in place of axis `first`."""
    return array.reshape(*array.shape[:first], *batch, array.shape[-1])


def _lengths(seq_lengths: Any, batch: tuple[int, ...], like: Any) -> Any:
    lengths = integers("RNN", "seq_lengths", seq_lengths, like)
    if not _fits(lengths.shape, batch):
        text = f"`seq_lengths` must have the axes of the batch, {list(batch)}, but has"
        raise ShapeError(message("RNN", f"{text} {list(lengths.shape)}."))
    return jnp.broadcast_to(lengths, batch).reshape(-1)


def _fits(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    """Whether one size stands for each axis of the batch: as many, or 1."""
    pairs = zip(reversed(shape), reversed(batch), strict=False)
    return len(shape) <= len(batch) and all(own in (1, size) for own, size in pairs)


def _reversed(outputs: Any, lengths: Any) -> Any:
    """Each sequence from its own end to its beginning; what lies beyond the end stays there."""
    if lengths is None:
        return jnp.flip(outputs, 0)
    time = jnp.arange(outputs.shape[0])[:, None]
    index = jnp.where(time < lengths, lengths - 1 - time, time)
    return jnp.take_along_axis(outputs, index[:, :, None], axis=0)
