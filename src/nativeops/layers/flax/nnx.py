# SPDX-License-Identifier: Apache-2.0
"""A drop-in for `flax.nnx.RNN`."""

import inspect
from typing import Any

from flax import nnx

from nativeops.layers._checks import checked
from nativeops.layers.convert import Kind, Weights, from_flax
from nativeops.layers.flax import _sequence
from nativeops.layers.flax._sequence import Wanted
from nativeops.ops._steps import Precision


class RNN(nnx.RNN):  # type: ignore[misc]
    """`flax.nnx.RNN`, computed by `nativeops.lstm_layer`, `gru_layer` or `rnn_layer`.

    Cells, state, arguments and results are Flax's, with two exceptions: outputs beyond
    ``seq_lengths`` are 0, where Flax goes on computing with the padding; and a sequence of length
    0 ends with its initial carry. ``unroll`` changes nothing.

    The cell may be an `LSTMCell`, `OptimizedLSTMCell`, `GRUCell` or `SimpleCell` with its default
    activations (`SimpleCell` also with relu). With any other, or with ``state_axes``, Flax's own
    scan computes the layer, and a warning says so.

    A carry that is wider than the cell's ``dtype``, as with ``dtype=bfloat16`` alone, is kept: all
    steps are computed in its dtype, of inputs and weights that are rounded to ``dtype``.

    With ``low_memory=True`` no gates are kept for the gradient, which computes them again.
    ``precision`` is that of `nativeops.lstm_layer`.
    """

    def __init__(
        self,
        cell: Any,
        *,
        low_memory: bool = False,
        precision: Precision = "default",
        **more: Any,
    ) -> None:
        super().__init__(cell, **more)
        self.low_memory = checked("RNN", "low_memory", low_memory)
        self.precision = checked("RNN", "precision", precision)

    def unfused(self) -> str:
        """Why Flax's own scan computes this layer; empty where the fused op does."""
        if self.state_axes != nnx.StateAxes({...: nnx.Carry}):
            return "it has `state_axes`"
        why = _sequence.unfused(self.cell, nnx)
        if not why and not _is_default(self.cell, "promote_dtype"):
            return "`promote_dtype` of its cell is not Flax's own"
        return why or _unusual_part(self.cell)

    def __call__(
        self,
        inputs: Any,
        *,
        initial_carry: Any = None,
        seq_lengths: Any = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Any = None,
    ) -> Any:
        """Apply the layer to a batch of sequences; see `flax.nnx.RNN`."""
        wanted = Wanted(return_carry, time_major, reverse, keep_order)
        why = self.unfused()
        if why:
            _sequence.warn(why)
            return super().__call__(
                inputs,
                initial_carry=initial_carry,
                seq_lengths=seq_lengths,
                rngs=rngs,
                **wanted._asdict(),
            )
        wanted = wanted.of(self)
        if initial_carry is None:
            sizes = _sequence.frame(inputs, wanted)
            initial_carry = self.cell.initialize_carry(sizes, self._stream(rngs))
        weights = _weights(self.cell, _sequence.kind_of(self.cell))
        return _sequence.run(self, weights, inputs, initial_carry, seq_lengths, wanted)

    def _stream(self, rngs: Any) -> Any:
        """The random numbers of the initial carry, taken as Flax takes them."""
        rngs = self.rngs if rngs is None else rngs
        return rngs.carry.fork() if isinstance(rngs, nnx.Rngs) else rngs


def _is_default(part: Any, word: str) -> bool:
    """Whether a part of a model is as its constructor makes it without this argument."""
    return getattr(part, word) is inspect.signature(type(part).__init__).parameters[word].default


def _names(cell: Any) -> tuple[str, ...]:
    """The attributes of a cell that are its matrices."""
    if hasattr(cell, "dense_i"):
        return ("dense_i", "dense_h")
    return ("ii", "if_", "ig", "io", "hi", "hf", "hg", "ho")  # `if` is a word of Python


def _unusual_part(cell: Any) -> str:
    """Which of a cell's matrices does something that the op would not; empty for none."""
    for name in _names(cell):
        dense = getattr(cell, name)
        if type(dense) is not nnx.Linear:
            return f"`{name}` of its cell is a `{type(dense).__name__}`"
        if not all(_is_default(dense, word) for word in ("dot_general", "promote_dtype")):
            return f"`{name}` of its cell has a `dot_general` or `promote_dtype` of its own"
        if dense.dtype != cell.dtype or dense.preferred_element_type is not None:
            return f"`{name}` of its cell computes in another dtype"
    return ""


def _weights(cell: Any, kind: Kind) -> Weights:
    denses = {name.removesuffix("_"): getattr(cell, name) for name in _names(cell)}
    params = {
        name: {"kernel": dense.kernel[...]}
        | ({} if dense.bias is None else {"bias": dense.bias[...]})
        for name, dense in denses.items()
    }
    return from_flax(kind, params)
