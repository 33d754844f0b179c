# SPDX-License-Identifier: Apache-2.0
"""Drop-ins for `torch.nn.RNN`, `torch.nn.GRU` and `torch.nn.LSTM`; and for `torch.nn.CTCLoss`.

Arguments, parameters with their names and initial values, `state_dict` (either layer loads the
other's), forward method, checks and their texts are PyTorch's own; only the computation is this
package's. The layers are no instances of PyTorch's classes, but of `torch.nn.RNNBase`. Switches and
numbers of layers must be that: ``bidirectional=1`` and ``num_layers=True`` are refused.

* Sequences of no step at all are allowed; their final state is the initial one.
* GRU and LSTM take `low_memory=True`: no gates are kept for the gradient, which makes them again.
* Dropout takes one number from PyTorch's generator in each forward pass, so `torch.manual_seed`
  repeats it; its zeros are not where PyTorch's would be.
* ``precision="high"`` may take each product of two float32 as three of bf16, where that is faster
  (see `nativeops.lstm_layer`). Like a new attribute of the layer, it is not in `state_dict`.
* The gradient always reads the outputs, PyTorch's only sometimes: ``output.mul_(2)`` in front of
  `backward` is refused, ``output * 2`` is not.
* Under autocast they compute in and return autocast's dtype.
* `torch.onnx.export` sees PyTorch's layer, and makes the standard node of it.
* `torch.compile`, `torch.export` and `torch.jit.trace` take them as they are, and to
  `torch.fx.symbolic_trace` they are leaves. TorchScript (`torch.jit.script`) cannot compile them.

>>> from nativeops.layers.torch import LSTM
>>> LSTM(80, 256, num_layers=2, bidirectional=True)
LSTM(80, 256, num_layers=2, bidirectional=True)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from nativeops.layers import stack
from nativeops.layers._checks import checked
from nativeops.layers._traced import Leaf
from nativeops.layers.torch_ctc import CTCLoss
from nativeops.layers.torch_transducer import RNNTLoss
from nativeops.ops._steps import Precision

_tracing_state = torch._C._get_tracing_state
__all__ = ["GRU", "LSTM", "RNN", "CTCLoss", "RNNTLoss"]


# The base is not `torch.nn.LSTM` itself, since `torch.compile` refuses to trace anything that is an
# instance of it (torch._dynamo.config.allow_rnn). What that class adds to this one is borrowed
# function by function.
class _Fused(Leaf, torch.nn.RNNBase):
    """What the three layers share."""

    _theirs: ClassVar[Any]  # PyTorch's class of the same name
    _ops: ClassVar[stack.Layers]
    # Of layers that `accelerate` swapped or that an older version saved, too.
    low_memory = False
    precision: Precision = "default"

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        *where: Any,
        **own: Any,
    ) -> None:
        check = partial(checked, type(self).__name__)  # what PyTorch says unclearly, or not at all
        own = {word: check(word, value) for word, value in own.items()}
        super().__init__(
            mode, input_size, hidden_size, check("num_layers", num_layers), bias, batch_first,
            check("dropout", dropout), check("bidirectional", bidirectional),
            check("proj_size", proj_size), *where,
        )  # fmt: skip
        vars(self).update(own)

    def _op_attributes(self) -> dict[str, Any]:
        """What the ops of a layer are told."""
        return {"low_memory": self.low_memory, "precision": self.precision}

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Outputs and final states, as the forward method of PyTorch's layer has them."""
        is_read = torch.compiler.is_compiling() or _tracing_state() is not None
        if is_read and torch.onnx.is_in_onnx_export():
            # The exporter knows PyTorch's own layers: it makes the standard node of ONNX of them.
            return self._theirs.forward(self, input, hx)
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        states = self._states(hx)
        if input.dim() not in (2, 3) or any(s.dim() != input.dim() for s in states or ()):
            return self._theirs.forward(self, input, hx)  # which raises what PyTorch has to say
        time = 1 if self.batch_first else 0
        batched = input.dim() == 3
        if not batched:
            input = input.unsqueeze(1 - time)
            states = None if states is None else [state.unsqueeze(1) for state in states]
        self._check(input, states, None)
        output, finals = self._compute(input.transpose(0, 1) if time else input, states)
        if time:
            output = output.transpose(0, 1)
        if not batched:
            output, finals = output.squeeze(1 - time), [final.squeeze(1) for final in finals]
        return output, self._result(finals)

    def _forward_packed(self, input: PackedSequence, hx: Any) -> Any:
        """Sequences one after the other lie in a padded array while they are computed."""
        data, batch_sizes, order, back = input
        states = self._states(hx)
        if states is not None and order is not None:
            states = [state.index_select(1, order) for state in states]
        self._check(data, states, batch_sizes)
        padded, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes))
        output, finals = self._compute(
            padded, states, lengths.to(data.device, torch.int32, non_blocking=True)
        )
        if back is not None:
            finals = [final.index_select(1, back) for final in finals]
        packed = pack_padded_sequence(output, lengths).data
        return PackedSequence(packed, batch_sizes, order, back), self._result(finals)

    def _compute(self, x: Any, states: Any, lengths: Any = None) -> tuple[Any, list[Any]]:
        """The outputs ``[t, b, h]`` and the final states."""
        own = self._parameters  # what is not there (any more) is an attribute; those take longer
        weights = [
            [own[name] if name in own else getattr(self, name) for name in names]
            for names in self._all_weights
        ]
        states = states or [None] * self._count
        dropout = self.dropout if self.training and self.num_layers > 1 else 0.0
        seed = None
        if dropout:  # from PyTorch's generator, whose state so tells all masks
            seed = torch.randint(-(2**63), 2**63 - 1, (1,), device=x.device)
        told = self._op_attributes()
        more: dict[str, Any] = {
            "bidirectional": self.bidirectional,
            "dropout": dropout,
            "seed": seed,
        }
        kind = x.device.type
        if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
            return stack.run(self._ops, told, x, weights, states, lengths, **more)
        lower = partial(_lowered, torch.get_autocast_dtype(kind))
        x, states = lower(x), [*map(lower, states)]
        weights = [[*map(lower, layer)] for layer in weights]
        with torch.autocast(kind, enabled=False):  # it would raise all again to float32
            return stack.run(self._ops, told, x, weights, states, lengths, **more)

    _count = 1  # of states

    def _states(self, hx: Any) -> list[Any] | None:
        return None if hx is None else [hx]

    def _result(self, finals: Sequence[Any]) -> Any:
        return finals[0]

    def extra_repr(self) -> str:
        """The arguments, as PyTorch's layer shows them."""
        shown = super().extra_repr() + ", low_memory=True" * self.low_memory
        return shown if self.precision == "default" else f"{shown}, precision={self.precision}"

    def _check(self, input: Any, states: Any, batch_sizes: Any) -> None:
        """Raise what PyTorch has to say about sizes and dtypes."""
        first: Any = self._flat_weights[0]
        if input.dtype != first.dtype:  # the weights may have been replaced unnoticed
            self._update_flat_weights()
        if states is None:
            self.check_input(input, batch_sizes)
        else:
            self.check_forward_args(input, self._result(states), batch_sizes)


def _lowered(dtype: torch.dtype, array: Any) -> Any:
    """What autocast makes of an argument."""
    lowers = array is not None and array.is_floating_point() and array.dtype is not torch.float64
    return array.to(dtype) if lowers else array


def _refuse_projection(more: dict[str, Any]) -> None:
    """Say of further arguments what PyTorch says, or what Python says."""
    if "proj_size" in more:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
    if more:
        raise TypeError(f"unexpected keyword argument {min(more)!r}")


class LSTM(_Fused):
    """LSTM: what `torch.nn.LSTM` computes, fused."""

    _theirs, _ops, _count = torch.nn.LSTM, stack.LSTM, 2
    check_forward_args: Any = torch.nn.LSTM.check_forward_args
    get_expected_cell_size = torch.nn.LSTM.get_expected_cell_size
    permute_hidden: Any = torch.nn.LSTM.permute_hidden

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        *,
        low_memory: bool = False,
        precision: Precision = "default",
    ) -> None:
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size, device, dtype, low_memory=low_memory, precision=precision,
        )  # fmt: skip

    def _states(self, hx: Any) -> list[Any] | None:
        if hx is not None and len(hx) != 2:
            raise RuntimeError("lstm expects two hidden states")  # as PyTorch says it
        return None if hx is None else [*hx]

    def _result(self, finals: Sequence[Any]) -> Any:
        return tuple(finals)


class GRU(_Fused):
    """GRU: what `torch.nn.GRU` computes, fused."""

    _theirs, _ops = torch.nn.GRU, stack.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        low_memory: bool = False,
        precision: Precision = "default",
        **more: Any,
    ) -> None:
        _refuse_projection(more)
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            0, device, dtype, low_memory=low_memory, precision=precision,
        )  # fmt: skip


class RNN(_Fused):
    """Elman network: what `torch.nn.RNN` computes, fused."""

    _theirs, _ops = torch.nn.RNN, stack.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        precision: Precision = "default",
        **more: Any,
    ) -> None:
        _refuse_projection(more)
        if nonlinearity not in ("tanh", "relu"):
            text = f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'."
            raise ValueError(text)
        self.nonlinearity = nonlinearity
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional, 0, device, dtype, precision=precision,
        )  # fmt: skip

    def _op_attributes(self) -> dict[str, Any]:
        activation = "relu" if self.mode == "RNN_RELU" else "tanh"
        return {"activation": activation, "precision": self.precision}


# What `accelerate` puts in the place of what.
FUSED: dict[type, type[_Fused]] = {kind._theirs: kind for kind in (RNN, GRU, LSTM)}
