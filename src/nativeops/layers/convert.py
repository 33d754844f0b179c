# SPDX-License-Identifier: Apache-2.0
"""The weights of one recurrent layer in one direction, in the orders of different libraries.

The hub is `Weights`: shapes and order of gates as in PyTorch and cuDNN, which is what the ops of
this package take. Each other library has a pair of functions, from it and to it:

========  ================  ==============================  =====================================
library   rows or columns   gates of LSTM, of GRU           biases
========  ================  ==============================  =====================================
PyTorch   rows              i, f, g, o      r, z, n         two
Keras     columns           i, f, g, o      z, r, n         one; GRU with ``reset_after``: two rows
ONNX      rows              i, o, f, g      z, r, n         both, one behind the other
Flax      columns           a matrix each   a matrix each   where a second would add nothing, one
========  ================  ==============================  =====================================

A GRU is of one of two variants, which have the same weights: what is ``linear_before_reset`` here
and in ONNX is ``reset_after`` in Keras. PyTorch and Flax have only the one where it is true.

All functions take NumPy arrays and the arrays of PyTorch, JAX and TensorFlow; they slice, join and
transpose only, so that gradients flow through them. Two biases that are one elsewhere are added:
the layer computes the same, but the way back gives their sum and zeros.

>>> import numpy as np
>>> kernel, recurrent_kernel, bias = np.ones((2, 12)), np.ones((3, 12)), np.zeros(12)
>>> weights = from_keras("lstm", [kernel, recurrent_kernel, bias])
>>> weights.w_ih.shape, weights.w_hh.shape
((12, 2), (12, 3))
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from nativeops.arrays import join, namespace, stacked

Kind = Literal["rnn", "gru", "lstm"]


class Weights(NamedTuple):
    """What the ops take: ``[gates*h, i]``, ``[gates*h, h]``, and two ``[gates*h]`` or None."""

    w_ih: Any
    w_hh: Any
    b_ih: Any = None
    b_hh: Any = None


# Which of PyTorch's gates stands where in the other order.
_KERAS = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 1, 2, 3)}
_ONNX = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
_PEEPHOLES = (0, 2, 1)  # i, f, o here and i, o, f in ONNX
_FLAX = {"rnn": ("",), "gru": ("r", "z", "n"), "lstm": ("i", "f", "g", "o")}
GATES = {kind: len(gates) for kind, gates in _FLAX.items()}


def from_keras(kind: Kind, weights: Sequence[Any]) -> Weights:
    """What ``get_weights()`` of a layer of Keras gives: kernel, recurrent kernel, perhaps bias.

    A GRU with ``reset_after=False`` has one bias; the op computes it without
    ``linear_before_reset``.
    """
    _check_kind(kind)
    order = _inverse(_KERAS[kind])
    w_ih, w_hh = (_reorder(_transpose(kernel), order) for kernel in weights[:2])
    if len(weights) == 2:
        return Weights(w_ih, w_hh)
    bias = weights[2]
    if kind != "gru" or len(bias.shape) == 1:
        return Weights(w_ih, w_hh, _reorder(bias, order), namespace(bias).zeros_like(bias))
    return Weights(w_ih, w_hh, _reorder(bias[0], order), _reorder(bias[1], order))


def to_keras(kind: Kind, weights: Weights, *, reset_after: bool = True) -> list[Any]:
    """What ``set_weights()`` of a layer of Keras takes; `reset_after` is the GRU's."""
    _check_kind(kind)
    order = _KERAS[kind]
    kernels = [_transpose(_reorder(w, order)) for w in weights[:2]]
    if not _has_biases(weights):
        return kernels
    weights = _with_biases(weights)
    if kind != "gru" or not reset_after:
        return [*kernels, _reorder(weights.b_ih + weights.b_hh, order)]
    return [*kernels, stacked([_reorder(bias, order) for bias in weights[2:]])]


def from_onnx(kind: Kind, w: Any, r: Any, b: Any = None) -> list[Weights]:
    """The weights of each direction of a node; of its ``P`` see `peepholes_from_onnx`."""
    _check_kind(kind)
    order, size = _inverse(_ONNX[kind]), w.shape[1]
    return [
        Weights(
            _reorder(w[direction], order),
            _reorder(r[direction], order),
            None if b is None else _reorder(b[direction][:size], order),
            None if b is None else _reorder(b[direction][size:], order),
        )
        for direction in range(w.shape[0])
    ]


def to_onnx(kind: Kind, directions: Sequence[Weights]) -> tuple[Any, Any, Any]:
    """The inputs ``W, R, B`` of a node; its ``P`` makes `peepholes_to_onnx`.

    Where no direction has biases, ``B`` is None; where only some have, the others' are zeros.
    """
    _check_kind(kind)
    order = _ONNX[kind]
    w, r = (stacked([_reorder(own[i], order) for own in directions]) for i in (0, 1))
    if not any(map(_has_biases, directions)):
        return w, r, None
    both = [_with_biases(own)[2:] for own in directions]
    return w, r, stacked([join([_reorder(bias, order) for bias in own], 0) for own in both])


def peepholes_from_onnx(p: Any) -> list[Any]:
    """What the ops take as ``peepholes``, of each direction of a node of LSTM, from its ``P``."""
    return [_reorder(p[direction], _PEEPHOLES) for direction in range(p.shape[0])]


def peepholes_to_onnx(peepholes: Sequence[Any]) -> Any:
    """The input ``P`` of a node of LSTM, from the ``peepholes`` of each direction."""
    return stacked([_reorder(own, _PEEPHOLES) for own in peepholes])


def from_flax(kind: Kind, params: Mapping[str, Mapping[str, Any]]) -> Weights:
    """The parameters of a cell of Flax: ``{"ii": {"kernel": ...}, "hi": {...}, ...}``.

    Those of cells that hold all gates in one matrix are named ``dense_i`` and ``dense_h``.
    """
    _check_kind(kind)
    sides = [[f"{side}{gate}" for gate in _FLAX[kind]] for side in "ih"]
    if "dense_i" in params:
        sides = [["dense_i"], ["dense_h"]]
    kernels = [_transpose(join([params[n]["kernel"] for n in names], 1)) for names in sides]
    biases = [join([_bias(params[name]) for name in names], 0) for names in sides]
    return Weights(*kernels, *biases)


def to_flax(kind: Kind, weights: Weights) -> dict[str, dict[str, Any]]:
    """The parameters of ``flax.linen``'s ``SimpleCell``, ``GRUCell`` or ``LSTMCell``."""
    _check_kind(kind)
    params: dict[str, dict[str, Any]] = {}
    weights = _with_biases(weights)
    w_ih, w_hh, b_ih, b_hh = (_blocks(array, len(_FLAX[kind])) for array in weights)
    for n, gate in enumerate(_FLAX[kind]):
        here, state = {"kernel": _transpose(w_ih[n])}, {"kernel": _transpose(w_hh[n])}
        if gate == "n":  # behind the reset gate
            here["bias"], state["bias"] = b_ih[n], b_hh[n]
        else:
            (state if kind == "lstm" else here)["bias"] = b_ih[n] + b_hh[n]
        params |= {f"i{gate}": here, f"h{gate}": state}
    return params


def _check_kind(kind: str) -> None:
    if kind not in _KERAS:
        raise ValueError(f"`kind` is {kind!r}, but must be one of 'rnn', 'gru', 'lstm'.")


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def _blocks(array: Any, count: int) -> list[Any]:
    """The parts of an array along its first axis, one for each gate."""
    size = array.shape[0] // count
    return [array[i * size : (i + 1) * size] for i in range(count)]


def _reorder(array: Any, order: tuple[int, ...]) -> Any:
    if order == tuple(range(len(order))):
        return array
    blocks = _blocks(array, len(order))
    return join([blocks[i] for i in order], 0)


def _has_biases(weights: Weights) -> bool:
    return weights.b_ih is not None or weights.b_hh is not None


def _with_biases(weights: Weights) -> Weights:
    """The same with zeros for each bias that is left away."""
    zeros = _zero_bias(_transpose(weights.w_hh))
    return Weights(*weights[:2], *(zeros if bias is None else bias for bias in weights[2:]))


def _bias(dense: Mapping[str, Any]) -> Any:
    return dense["bias"] if "bias" in dense else _zero_bias(dense["kernel"])


def _zero_bias(kernel: Any) -> Any:
    return namespace(kernel).zeros_like(kernel[0])


def _transpose(matrix: Any) -> Any:
    return matrix.T if hasattr(matrix, "T") else namespace(matrix).transpose(matrix)
