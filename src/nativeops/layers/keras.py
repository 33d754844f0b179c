# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for `keras.layers.LSTM`, `GRU` and `SimpleRNN` of Keras 3; and for `keras.losses.CTC`.

The layers run with PyTorch, JAX and TensorFlow behind Keras. Each is Keras's own layer with another
`inner_loop`, the method that Keras itself replaces where cuDNN can run: constructor, weights,
states, dropout's random numbers and files of weights stay Keras's by construction, in any version;
whoever loads a whole model imports this module before.
One argument is new, ``precision``: see `nativeops.lstm_layer`.

`Model.export` writes Keras's own steps where a runtime has no such op: as ONNX with PyTorch, as a
SavedModel with JAX. A SavedModel with TensorFlow names the op, so `nativeops` is imported before it
is loaded. Other formats need Keras's layers in the model, with these weights.
"""

import sys
import warnings
from typing import Any

import keras
from keras import ops

from nativeops.layers._checks import checked
from nativeops.layers.convert import Kind, from_keras
from nativeops.layers.keras_ctc import CTC
from nativeops.ops._steps import Precision
from nativeops.ops.gru import gru_layer
from nativeops.ops.lstm import lstm_layer
from nativeops.ops.rnn import rnn_layer

__all__ = ["CTC", "GRU", "LSTM", "SimpleRNN"]

_TANH = (keras.activations.tanh, ops.tanh)
_SIGMOID = (keras.activations.sigmoid, ops.sigmoid)
_RELU = (keras.activations.relu, ops.relu)


class _Fused:
    """What the layers share: how Keras's conventions become a call of an op."""

    _kind: Kind
    _layer: Any  # the op
    _activations: tuple[tuple[Any, ...], tuple[Any, ...]]  # which of them it has, for what

    def __init__(self, *args: Any, precision: Precision = "default", **options: Any) -> None:
        given = {**dict(zip(("units",), args, strict=False)), **options}
        for word in given.keys() & {"units", "dropout", "recurrent_dropout"}:
            checked(type(self).__name__, word, given[word])
        super().__init__(*args, **options)
        self.precision = checked(type(self).__name__, "precision", precision)
        if getattr(self, "use_cudnn", None) == "auto":
            # Or `keras.layers.Bidirectional` would hand the weights to cuDNN without asking.
            self.use_cudnn = False

    def get_config(self) -> dict[str, Any]:
        """What the constructor was given; see `keras.layers.Layer`."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        own = {} if self.precision == "default" else {"precision": self.precision}
        return {**config, **own}  # without a word that Keras does not know, where it can be

    @property
    def supports_jit(self) -> bool:
        """Whether Keras may choose XLA as compiler: in TensorFlow, XLA runs no ops from outside."""
        return bool(keras.backend.backend() != "tensorflow")

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        pass  # Keras's constructors set it, for its own computation

    def build(self: Any, sequences_shape: Any, initial_state_shape: Any = None) -> None:
        """Make the weights; see `keras.layers.Layer`."""
        super().build(sequences_shape, initial_state_shape)  # type: ignore[misc]
        why = self.unfused(training=True)
        if why:
            text = f"Layer {self.name!r} of nativeops is computed by Keras's own steps, because"
            warnings.warn(f"{text} {why}.", stacklevel=2)

    def unfused(self: Any, training: bool = False) -> str:
        """Why Keras's own steps compute this layer; empty where the fused op does."""
        activations, gates = self._activations
        if self.activation not in activations:
            return f"its activation is {_name(self.activation)}"
        if gates and self.recurrent_activation not in gates:
            return f"its recurrent activation is {_name(self.recurrent_activation)}"
        if getattr(self, "use_cudnn", "auto") is True:
            return "it has `use_cudnn=True`"
        if training and self.recurrent_dropout:
            return f"it has `recurrent_dropout={self.recurrent_dropout}` (in training only)"
        if training and self.dropout and getattr(self.cell, "implementation", 2) == 1:
            return "it has `dropout` with `implementation=1` (in training only)"
        return ""

    def inner_loop(
        self: Any, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        """All steps: the last output, all outputs, the last states."""
        if self.unfused(bool(training)) or _is_written_down():
            return super().inner_loop(  # type: ignore[misc]
                sequences, initial_state, mask, training=training
            )
        if training and self.dropout:  # one mask for all steps
            dropped = self.cell.get_dropout_mask(sequences[:, 0, :])
            sequences = sequences * ops.expand_dims(dropped, 1)
        states = list(initial_state) if keras.tree.is_nested(initial_state) else [initial_state]
        names = "[h, c]" if self._kind == "lstm" else "[h]"
        if len(states) != len(self.state_size):
            text = f"`initial_state` must have {len(self.state_size)} states {names}, but has"
            raise ValueError(f"Layer {self.name!r}: {text} {len(states)}.")
        batch = ops.shape(sequences)[0]
        states = [
            ops.broadcast_to(state, (batch, *state.shape[1:]))
            if state.shape[0] in (1, None)
            else state
            for state in states
        ]
        if self.stateful and keras.backend.backend() == "torch":
            # Keras writes the new states where the old ones are, which the gradient still needs.
            states = [ops.copy(state) for state in states]
        if keras.tree.is_nested(mask):
            mask = mask[0]
        steps = self._all_steps if mask is None else self._valid_steps
        return steps(sequences, states, mask)

    def _all_steps(self: Any, sequences: Any, states: list[Any], _: None) -> Any:
        x = ops.transpose(sequences, (1, 0, 2))
        outputs, states = self._run(x, states, None, bool(self.go_backwards))
        if not self.return_sequences:
            return states[0], ops.expand_dims(states[0], 1), states
        outputs = ops.flip(outputs, axis=0) if self.go_backwards else outputs
        return states[0], ops.transpose(outputs, (1, 0, 2)), states

    def _valid_steps(self: Any, sequences: Any, states: list[Any], mask: Any) -> Any:
        """Only the steps that any mask leaves, gathered to the front, in one call with lengths.

        A masked step gives the output before it again: what Keras does, and no check whether a
        mask is one of right padding is needed.
        """
        batch, steps = ops.shape(sequences)[:2]
        if getattr(mask.shape, "rank", 2) is not None:  # else only TensorFlow's run knows
            _check_mask(self.name, tuple(mask.shape), tuple(sequences.shape[:2]))
        valid = ops.broadcast_to(ops.reshape(ops.cast(mask, "bool"), (-1, steps)), (batch, steps))
        valid = ops.flip(valid, axis=1) if self.go_backwards else valid
        counts = ops.cumsum(ops.cast(valid, "int32"), axis=1)
        b = ops.expand_dims(ops.arange(batch, dtype="int32"), 1)
        order = _valid_first(valid, steps, self.go_backwards)
        frames = ops.reshape(sequences, (batch * steps, sequences.shape[-1]))
        x = _rows(frames, ops.transpose(b * steps + order))
        h_0 = states[0]
        outputs, states = self._run(x, states, counts[:, -1], False)
        # What a step before the first valid one gives differs among Keras's backends.
        before = h_0 if keras.backend.backend() == "jax" else ops.zeros_like(h_0)
        if not self.return_sequences:
            last = self._held(states[0], before, valid[:, -1:], counts[:, -1:])
            return last, ops.expand_dims(last, 1), states
        frames = ops.reshape(outputs, (steps * batch, self.units))
        held = _rows(frames, ops.maximum(counts - 1, 0) * batch + b)
        valid, counts, before = (ops.expand_dims(a, -1) for a in (valid, counts, before))
        held = self._held(held, ops.transpose(before, (0, 2, 1)), valid, counts)
        return held[:, -1], held, states

    def _held(self: Any, outputs: Any, before: Any, valid: Any, counts: Any) -> Any:
        """The outputs, with what masked steps give."""
        if self.zero_output_for_mask:
            return ops.where(valid, outputs, ops.zeros_like(outputs))
        return ops.where(counts > 0, outputs, before)

    def _run(
        self: Any, x: Any, states: list[Any], lengths: Any, reverse: bool
    ) -> tuple[Any, list[Any]]:
        """The outputs and the last states of the op, all of them time by time."""
        cell = self.cell
        arrays = [cell.kernel, cell.recurrent_kernel, *([cell.bias] if cell.use_bias else [])]
        x, *arrays = (ops.convert_to_tensor(a, dtype=cell.compute_dtype) for a in (x, *arrays))
        weights = from_keras(self._kind, arrays)
        options = {"reverse": reverse, "precision": self.precision, **self._options()}
        output, *states = self._layer(x, *weights, *states, lengths, **options)
        return output, states[: len(self.state_size)]

    def _options(self) -> dict[str, Any]:
        return {}


def _is_written_down() -> bool:
    """Whether Keras makes a program for a runtime without the op: ONNX's, or of JAX TensorFlow's.

    JAX's program becomes TensorFlow's while a function of TensorFlow is traced.
    """
    if keras.backend.backend() == "torch":
        return bool(sys.modules["torch"].onnx.is_in_onnx_export())
    tensorflow = sys.modules.get("tensorflow") if keras.backend.backend() == "jax" else None
    return tensorflow is not None and bool(tensorflow.inside_function())


def _check_mask(name: str, shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Refuse a mask whose sizes, as far as they are known, are not [batch, steps] or [.., 1]."""
    sizes = shape[:-1] if len(shape) == 3 and shape[-1] == 1 else shape
    pairs = [*zip(sizes, wanted, strict=False)][sizes[:1] == (1,) :]  # one for the whole batch
    if len(sizes) != 2 or any(None not in pair and pair[0] != pair[1] for pair in pairs):
        text = f"the mask must have the sizes [batch, steps], here {list(wanted)}, but has"
        raise ValueError(f"Layer {name!r}: {text} {list(shape)}.")


def _valid_first(valid: Any, steps: Any, backwards: bool) -> Any:
    """The times of each sequence's valid steps, in order, then those of the others."""
    time = ops.arange(steps, dtype="int32")
    order = ops.argsort(ops.where(valid, time, time + steps), axis=1)
    return steps - 1 - order if backwards else order


def _rows(matrix: Any, index: Any) -> Any:
    """The rows that each index names; along one axis first, for Keras's sake where it is empty."""
    rows = ops.take(matrix, ops.reshape(index, (-1,)), axis=0)
    return ops.reshape(rows, (*ops.shape(index), matrix.shape[-1]))


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


class _LowMemory(_Fused):
    """A layer that may keep less for its gradient."""

    def __init__(self, *args: Any, low_memory: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.low_memory = checked(type(self).__name__, "low_memory", low_memory)

    def get_config(self: Any) -> dict[str, Any]:
        """Keras's own configuration, unless `low_memory` is set."""
        config = super().get_config()
        return {**config, "low_memory": True} if self.low_memory else dict(config)

    def _options(self) -> dict[str, Any]:
        return {"low_memory": self.low_memory}


@keras.saving.register_keras_serializable("nativeops")
class LSTM(_LowMemory, keras.layers.LSTM):  # type: ignore[misc]
    """`keras.layers.LSTM`, computed by `nativeops.lstm_layer`.

    Arguments, weights, masks, states and files of weights are Keras's; ``unroll`` changes nothing,
    also where Keras's own unrolled steps treat masked ones otherwise, as with JAX.
    With ``low_memory=True`` no gates are kept for the gradient, which computes them again.
    Keras's own steps compute it with other activations than the default ones, with
    ``use_cudnn=True``, and in training with ``recurrent_dropout``: a warning says so when the
    layer is built, and the method `unfused` says why.
    """

    _kind, _layer = "lstm", lstm_layer
    _activations = (_TANH, _SIGMOID)


@keras.saving.register_keras_serializable("nativeops")
class GRU(_LowMemory, keras.layers.GRU):  # type: ignore[misc]
    """`keras.layers.GRU`, computed by `nativeops.gru_layer`.

    As `LSTM` of this module.
    """

    _kind, _layer = "gru", gru_layer
    _activations = (_TANH, _SIGMOID)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "linear_before_reset": self.cell.reset_after}


@keras.saving.register_keras_serializable("nativeops")
class SimpleRNN(_Fused, keras.layers.SimpleRNN):  # type: ignore[misc]
    """`keras.layers.SimpleRNN` with tanh or relu, computed by `nativeops.rnn_layer`.

    As `LSTM` of this module.
    """

    _kind, _layer = "rnn", rnn_layer
    _activations = ((*_TANH, *_RELU), ())

    def _options(self) -> dict[str, Any]:
        return {"activation": "relu" if self.activation in _RELU else "tanh"}
