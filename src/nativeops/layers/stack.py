# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks of several layers, in one or both directions, in any framework."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Generic, Literal, NamedTuple

import numpy as np

from nativeops.arrays import integers, stacked, swap_first
from nativeops.declare import Array
from nativeops.layers._checks import check, check_dropout, checked, own_weights
from nativeops.lists import is_list_of_integers
from nativeops.ops._steps import Precision
from nativeops.ops.dropout import dropout as drop
from nativeops.ops.gru import bidirectional_gru_layer, gru_layer, two_gru_layers
from nativeops.ops.lstm import bidirectional_lstm_layer, lstm_layer, two_lstm_layers
from nativeops.ops.lstm_projected import (
    bidirectional_lstm_projected_layer,
    lstm_projected_layer,
    two_lstm_projected_layers,
)
from nativeops.ops.rnn import bidirectional_rnn_layer, rnn_layer, two_rnn_layers


class Ops(NamedTuple):
    """The ops of a layer in one direction, of one in both, and of two layers in one direction."""

    one: Any
    both: Any
    two: Any


class Layers(NamedTuple):
    """The ops of layers without a projection, and of those with one."""

    plain: Ops
    projected: Ops | None = None


LSTM = Layers(
    Ops(lstm_layer, bidirectional_lstm_layer, two_lstm_layers),
    Ops(lstm_projected_layer, bidirectional_lstm_projected_layer, two_lstm_projected_layers),
)
GRU = Layers(Ops(gru_layer, bidirectional_gru_layer, two_gru_layers))
RNN = Layers(Ops(rnn_layer, bidirectional_rnn_layer, two_rnn_layers))
_LENGTHS = next(spec for spec in lstm_layer.signature.inputs if spec.lengths)


class Lstm(NamedTuple, Generic[Array]):
    """What `lstm` returns: the last layer's outputs, and the final states of all layers."""

    output: Array
    h_n: Array
    c_n: Array


class Recurrent(NamedTuple, Generic[Array]):
    """What `gru` and `rnn` return: the last layer's outputs, and all layers' final states."""

    output: Array
    h_n: Array


def lstm(
    x: Array,
    weights: Sequence[Sequence[Array | None]],
    h_0: Array | None = None,
    c_0: Array | None = None,
    lengths: Array | None = None,
    *,
    peepholes: Sequence[Array | None] | None = None,
    bidirectional: bool = False,
    dropout: float = 0.0,
    seed: Array | None = None,
    batch_first: bool = False,
    low_memory: bool = False,
    precision: Precision = "default",
) -> Lstm[Array]:
    """LSTM of any number of layers, in one or both directions.

    Each layer computes, with ``z = W_ih x[t] + b_ih + W_hh h + b_hh`` in four blocks
    ``i, f, g, o`` of ``h`` rows: ``i, f, o = σ(z_i), σ(z_f), σ(z_o)``, ``g = tanh(z_g)``,
    ``c' = f·c + i·g``, ``output[t] = h' = o·tanh(c')``, or with a projection
    ``h' = W_hr (o·tanh(c'))`` of ``p`` numbers; peepholes add ``p_i·c``, ``p_f·c`` and ``p_o·c'``
    to ``z_i``, ``z_f`` and ``z_o``. The outputs of a layer, with both directions one behind the
    other, are the inputs of the next.

    Args:
        x: Inputs ``[t, b, i]``, or ``[b, t, i]`` with ``batch_first``.
        weights: One ``(w_ih, w_hh)`` or ``(w_ih, w_hh, b_ih, b_hh)`` for each layer, with
            ``bidirectional`` for each layer and direction: ``w_ih [4·h, i]`` (of later layers
            ``[4·h, d·h]``), ``w_hh [4·h, h]``, ``b_ih`` and ``b_hh [4·h]``, in cuDNN's and
            PyTorch's order of gates (i, f, g, o). ``d`` is the number of directions. With a
            projection each has ``w_hr [p, h]`` as its last, and ``p`` stands for ``h`` in the sizes
            of ``w_hh``, of ``w_ih`` of later layers, of ``h_0``, ``h_n`` and ``output``.
        h_0: The outputs before the first step ``[layers·d, b, h]``; zeros if left away.
        c_0: The cells before the first step ``[layers·d, b, h]``; zeros if left away.
        lengths: The number of steps of each sequence ``int32[b]``, from 0 to ``t``, in any order;
            ``t`` if left away.
        peepholes: ``[3·h]`` for each entry of `weights`: with what the gates i, f and o see the
            cell, one gate behind the other; none where it is None.
        bidirectional: Each layer also from each sequence's own end to its beginning.
        dropout: The probability with which an output of a layer is set to 0 before the next layer
            reads it, from 0 to below 1. For training; leave it away otherwise.
        seed: An integer ``[1]`` from which the zeros follow; needed with ``dropout``.
        batch_first: Whether ``x`` and ``output`` are ``[b, t, ..]``. Nothing is copied for it,
            but in TensorFlow, which has no views.
        low_memory: Keep only outputs and cells for the gradient, which computes the gates again.
        precision: ``"highest"`` computes in the dtype, ``"default"`` is the same. ``"high"`` may
            take each product of two float32 as three of bf16: see `lstm_layer`.

    Returns: ``output [t, b, d·h]``, 0 beyond the end of a sequence, and the states ``h_n`` and
        ``c_n [layers·d, b, h]`` after each sequence's own last step, in the order of ``weights``.
    Raises: ``ShapeError`` names the weight or state that does not fit; ``RangeError`` for a length
        or a number outside its range; ``ArgumentError`` for what is no array, or missing.
    NaN: stays in its own sequence.
    Gradient: for all float arrays.
    Cost: O(layers · d · Σ lengths · h·(i + h)) time; each layer keeps 5·t·b·d·h numbers where a
        gradient is needed, with ``low_memory`` t·b·d·h.
    Same as: ``torch.nn.LSTM(i, h, layers, bidirectional=.., batch_first=.., proj_size=..)``.
    Source: Hochreiter & Schmidhuber 1997, Long short-term memory; Gers, Schmidhuber & Cummins 2000;
        peepholes: Gers & Schmidhuber 2000; projection: Sak, Senior & Beaufays 2014;
        both directions: Schuster & Paliwal 1997, Bidirectional recurrent neural networks.

    >>> x, weights = np.ones((3, 2, 1)), (np.ones((8, 1)), np.zeros((8, 2)))
    >>> output, h_n, c_n = nativeops.lstm(x, [weights, weights], bidirectional=True)
    >>> output.shape, h_n.shape, c_n.shape
    ((3, 2, 4), (2, 2, 2), (2, 2, 2))
    """
    made = _checked_run(
        "lstm", 4, LSTM, {"low_memory": low_memory}, x, weights,
        {"h_0": h_0, "c_0": c_0}, lengths, peepholes, bidirectional=bidirectional,
        dropout=dropout, seed=seed, batch_first=batch_first, precision=precision,
    )  # fmt: skip
    return Lstm(*made)


def gru(
    x: Array,
    weights: Sequence[Sequence[Array | None]],
    h_0: Array | None = None,
    lengths: Array | None = None,
    *,
    linear_before_reset: bool = True,
    bidirectional: bool = False,
    dropout: float = 0.0,
    seed: Array | None = None,
    batch_first: bool = False,
    low_memory: bool = False,
    precision: Precision = "default",
) -> Recurrent[Array]:
    """GRU of any number of layers, in one or both directions.

    Each layer computes, with ``x = W_ih x[t] + b_ih`` and ``y = W_hh h + b_hh``, each in three
    blocks ``r, z, n`` of ``h`` rows: ``r = σ(x_r + y_r)``, ``z = σ(x_z + y_z)``,
    ``n = tanh(x_n + r·y_n)``, ``output[t] = h' = (1 - z)·n + z·h``. Without
    ``linear_before_reset`` it is ``n = tanh(x_n + W_hn (r·h) + b_hn)``. The outputs of a layer,
    with both directions one behind the other, are the inputs of the next.

    Args:
        x: As in `lstm`.
        weights: As in `lstm`, with three blocks of rows in cuDNN's and PyTorch's order of gates
            (r, z, n).
        h_0: As in `lstm`.
        lengths: As in `lstm`.
        linear_before_reset: Whether the reset gate is applied behind the product with the state, as
            in PyTorch, cuDNN and Keras's ``reset_after=True``, or to the state itself.
        bidirectional: As in `lstm`.
        dropout: As in `lstm`.
        seed: As in `lstm`.
        batch_first: As in `lstm`.
        low_memory: As in `lstm`; only outputs are kept.
        precision: As in `lstm`.

    Returns: ``output`` and ``h_n`` as in `lstm`.
    Raises: As `lstm`.
    NaN: stays in its own sequence.
    Gradient: for all float arrays.
    Cost: As `lstm`; each layer keeps 4·t·b·d·h numbers where a gradient is needed.
    Same as: ``torch.nn.GRU(i, h, layers, bidirectional=.., batch_first=..)``.
    Source: Cho et al. 2014, Learning phrase representations using RNN encoder-decoder, version 3;
        without ``linear_before_reset`` version 1.

    >>> x, weights = np.ones((3, 2, 1)), (np.ones((6, 1)), np.zeros((6, 2)))
    >>> nativeops.gru(x, [weights], batch_first=True).h_n.round(4)
    array([[[0.3546, 0.3546],
            [0.3546, 0.3546],
            [0.3546, 0.3546]]])
    """
    attributes = {"linear_before_reset": linear_before_reset, "low_memory": low_memory}
    made = _checked_run(
        "gru", 3, GRU, attributes, x, weights, {"h_0": h_0}, lengths, bidirectional=bidirectional,
        dropout=dropout, seed=seed, batch_first=batch_first, precision=precision,
    )  # fmt: skip
    return Recurrent(*made)


def rnn(
    x: Array,
    weights: Sequence[Sequence[Array | None]],
    h_0: Array | None = None,
    lengths: Array | None = None,
    *,
    activation: Literal["tanh", "relu"] = "tanh",
    bidirectional: bool = False,
    dropout: float = 0.0,
    seed: Array | None = None,
    batch_first: bool = False,
    precision: Precision = "default",
) -> Recurrent[Array]:
    """Simple recurrent (Elman) network of any number of layers, in one or both directions.

    Each layer computes ``output[t] = h' = f(W_ih x[t] + b_ih + W_hh h + b_hh)``, ``f`` tanh or
    relu. The outputs of a layer, with both directions one behind the other, are the inputs of the
    next.

    Args:
        x: As in `lstm`.
        weights: As in `lstm`, with one block of rows.
        h_0: As in `lstm`.
        lengths: As in `lstm`.
        activation: The function ``f``.
        bidirectional: As in `lstm`.
        dropout: As in `lstm`.
        seed: As in `lstm`.
        batch_first: As in `lstm`.
        precision: As in `lstm`.

    Returns: ``output`` and ``h_n`` as in `lstm`.
    Raises: As `lstm`; ``RangeError`` also for an unknown activation.
    NaN: stays in its own sequence.
    Gradient: for all float arrays; that of relu at 0 is 0.
    Cost: As `lstm`; each layer keeps its outputs where a gradient is needed.
    Same as: ``torch.nn.RNN(i, h, layers, bidirectional=.., batch_first=..)``.
    Source: Elman 1990, Finding structure in time.

    >>> x, weights = np.ones((2, 1, 1)), (np.ones((1, 1)), np.ones((1, 1)))
    >>> nativeops.rnn(x, [weights], activation="relu").output.ravel()
    array([1., 2.])
    """
    checked("rnn", "activation", activation)
    made = _checked_run(
        "rnn", 1, RNN, {"activation": activation}, x, weights, {"h_0": h_0}, lengths,
        bidirectional=bidirectional, dropout=dropout, seed=seed, batch_first=batch_first,
        precision=precision,
    )  # fmt: skip
    return Recurrent(*made)


# TensorFlow's AutoGraph calls what has this attribute as it is, instead of rewriting its code.
for _function in (lstm, gru, rnn):
    vars(_function)["autograph_info__"] = True


def _checked_run(
    name: str,
    gates: int,
    layers: Layers,
    attributes: dict[str, Any],
    x: Any,
    weights: Sequence[Sequence[Any]],
    states: dict[str, Any],
    lengths: Any,
    peepholes: Sequence[Any] | None = None,
    *,
    bidirectional: bool,
    dropout: float,
    seed: Any,
    batch_first: bool,
    precision: Precision,
) -> tuple[Any, ...]:
    """All layers of a user's arguments: the outputs, and the final states of each kind."""
    checked(name, "precision", precision)
    check(name, gates, x, weights, states, bidirectional, batch_first, peepholes)
    check_dropout(name, dropout, seed, len(weights) // (1 + bidirectional))
    output, finals = run(
        layers, {**attributes, "precision": precision}, swap_first(x) if batch_first else x,
        weights, tuple(states.values()), lengths, peepholes,
        bidirectional=bidirectional, dropout=dropout, seed=seed,
    )  # fmt: skip
    return swap_first(output) if batch_first else output, *finals


def run(
    layers: Layers,
    attributes: Mapping[str, Any],
    x: Any,
    weights: Sequence[Sequence[Any]],
    states: Sequence[Any],
    lengths: Any,
    peepholes: Sequence[Any] | None = None,
    *,
    bidirectional: bool,
    dropout: float,
    seed: Any,
) -> tuple[Any, list[Any]]:
    """All layers of arguments that fit: the outputs, and the final states in their order."""

    def arrays_of(place: int) -> list[Any]:
        return own_weights(weights[place]) + [None if s is None else s[place] for s in states]

    finals: list[list[Any]] = [[] for _ in states]
    if is_list_of_integers(_LENGTHS, lengths) and lengths:  # once: a GPU's host waits for each
        lengths = integers("lstm", "lengths", lengths, x)
    first = 0
    while first < len(weights):
        if first and dropout:
            x = drop(x, seed, p=dropout, stream=first // (1 + bidirectional))
        kind = layers.projected if len(weights[first]) % 2 else layers.plain
        assert kind is not None
        own = [arrays_of(first)]
        if bidirectional or (first + 1 < len(weights) and not dropout):
            own.append(arrays_of(first + 1))
        op = kind.both if bidirectional else kind.two
        if len(own) == 1 or (not bidirectional and _keeps_less_alone(x, *own)):
            op, own = kind.one, own[:1]
        count = len(own)
        arrays = own[0] if count == 1 else chain(*zip(*own, strict=True))
        more = () if peepholes is None else peepholes[first : first + count]
        x, *after = op(x, *arrays, lengths, *more, **attributes)
        for place, final in enumerate(finals):  # what is kept comes last
            final.extend(after[place * count : (place + 1) * count])
        first += count
    return x, [_finals(states) for states in finals]


def _keeps_less_alone(x: Any, first: list[Any], second: list[Any]) -> bool:
    """Whether PyTorch will differentiate the second of two layers only: frozen, the first keeps
    nothing."""
    if not hasattr(type(x), "requires_grad"):
        return False
    return not _is_differentiated(x, *first) and _is_differentiated(*second)


def _is_differentiated(*arrays: Any) -> bool:
    return any(array is not None and array.requires_grad for array in arrays)


def _finals(states: list[Any]) -> Any:
    """The final states of all layers; of one in NumPy a view, where a copy takes 2 us."""
    is_one = len(states) == 1 and isinstance(states[0], np.ndarray)
    return states[0][None] if is_one else stacked(states)
