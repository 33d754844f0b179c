# SPDX-License-Identifier: Apache-2.0
"""A drop-in for `flax.linen.RNN`."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np

from nativeops.layers._checks import checked
from nativeops.layers.convert import GATES, Weights, from_flax, to_flax
from nativeops.layers.flax import _sequence
from nativeops.layers.flax._sequence import Wanted
from nativeops.ops._steps import Precision


class RNN(nn.RNN):  # type: ignore[misc]
    """`flax.linen.RNN`, computed by `nativeops.lstm_layer`, `gru_layer` or `rnn_layer`.

    Cells, parameters, arguments and results are Flax's, with two exceptions: outputs beyond
    ``seq_lengths`` are 0, where Flax goes on computing with the padding; and a sequence of length
    0 ends with its initial carry. ``unroll`` and ``split_rngs`` change nothing.

    The cell may be an `LSTMCell`, `OptimizedLSTMCell`, `GRUCell` or `SimpleCell` with its default
    activations (`SimpleCell` also with relu). With any other, or with ``variable_axes``, Flax's own
    scan computes the layer, and a warning says so.

    A carry that is wider than the cell's ``dtype``, as with ``dtype=bfloat16`` alone, is kept: all
    steps are computed in its dtype, of inputs and weights that are rounded to ``dtype``.

    With ``low_memory=True`` no gates are kept for the gradient, which computes them again.
    ``precision`` is that of `nativeops.lstm_layer`.
    """

    low_memory: bool = False
    precision: Precision = "default"

    def __post_init__(self) -> None:
        checked("RNN", "low_memory", self.low_memory)
        checked("RNN", "precision", self.precision)
        super().__post_init__()

    @nn.nowrap  # type: ignore[untyped-decorator]
    def unfused(self) -> str:
        """Why Flax's own scan computes this layer; empty where the fused op does."""
        if self.variable_axes or self.variable_broadcast != "params" or self.variable_carry:
            return "the collections of its variables are lifted in another way than by default"
        return _sequence.unfused(self.cell, nn)

    def __call__(
        self,
        inputs: Any,
        *,
        initial_carry: Any = None,
        init_key: Any = None,
        seq_lengths: Any = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Apply the layer to a batch of sequences; see `flax.linen.RNN`."""
        wanted = Wanted(return_carry, time_major, reverse, keep_order)
        why = self.unfused()
        if why:
            _sequence.warn(why)
        params = {} if why or self.is_initializing() else self.cell.variables.get("params", {})
        params = nn.meta.unbox(params)  # of what says how they are spread over devices
        if not self._are_whole(params, inputs):  # Flax makes them, or says what is missing
            return super().__call__(
                inputs,
                initial_carry=initial_carry,
                init_key=init_key,
                seq_lengths=seq_lengths,
                **wanted._asdict(),
            )
        wanted = wanted.of(self)
        if initial_carry is None:
            key = jax.random.key(0) if init_key is None else init_key
            sizes = _sequence.frame(inputs, wanted)
            initial_carry = self.cell.initialize_carry(key, sizes)
        weights = from_flax(_sequence.kind_of(self.cell), params)
        return _sequence.run(self, weights, inputs, initial_carry, seq_lengths, wanted)

    def _are_whole(self, params: Any, inputs: Any) -> bool:
        """Whether the parameters are those of the cell, by their names and shapes."""
        if not params:
            return False
        kind = _sequence.kind_of(self.cell)
        rows, columns = GATES[kind] * self.cell.features, (inputs.shape[-1], self.cell.features)
        sizes = (*((rows, each) for each in columns), (rows,), (rows,))
        wanted = to_flax(kind, Weights(*(np.broadcast_to(np.float32(0), size) for size in sizes)))
        found, expected = jax.tree.map(np.shape, (dict(params), wanted))
        return bool(found == expected)
