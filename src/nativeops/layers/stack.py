# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks of several layers, in one or both directions, in any framework."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Literal, NamedTuple

from nativeops.declare import Array
from nativeops.errors import ArgumentError, RangeError, ShapeError, message
from nativeops.frameworks import framework_of
from nativeops.layers._arrays import join, swap_first
from nativeops.ops._steps import Precision
from nativeops.ops.dropout import dropout as drop
from nativeops.ops.gru import gru_layer
from nativeops.ops.lstm import lstm_layer
from nativeops.ops.rnn import rnn_layer

# Of one layer in one direction: w_ih, w_hh, and perhaps b_ih, b_hh.
_NAMES = ("w_ih", "w_hh", "b_ih", "b_hh")


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
    ``c' = f·c + i·g``, ``output[t] = h' = o·tanh(c')``. The outputs of a layer, with both
    directions one behind the other, are the inputs of the next.

    Args:
        x: Inputs ``[t, b, i]``, or ``[b, t, i]`` with ``batch_first``.
        weights: One ``(w_ih, w_hh)`` or ``(w_ih, w_hh, b_ih, b_hh)`` for each layer, with
            ``bidirectional`` for each layer and direction: ``w_ih [4·h, i]`` (of later layers
            ``[4·h, d·h]``), ``w_hh [4·h, h]``, ``b_ih`` and ``b_hh [4·h]``, in cuDNN's and
            PyTorch's order of gates (i, f, g, o). ``d`` is the number of directions.
        h_0: The outputs before the first step ``[layers·d, b, h]``; zeros if left away.
        c_0: The cells before the first step ``[layers·d, b, h]``; zeros if left away.
        lengths: The number of steps of each sequence ``int32[b]``, from 0 to ``t``, in any order;
            ``t`` if left away.
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
    Same as: ``torch.nn.LSTM(i, h, layers, bidirectional=.., batch_first=..)``.
    Source: Hochreiter & Schmidhuber 1997, Long short-term memory; Gers, Schmidhuber & Cummins 2000;
        both directions: Schuster & Paliwal 1997, Bidirectional recurrent neural networks.

    >>> x, weights = np.ones((3, 2, 1)), (np.ones((8, 1)), np.zeros((8, 2)))
    >>> output, h_n, c_n = nativeops.lstm(x, [weights, weights], bidirectional=True)
    >>> output.shape, h_n.shape, c_n.shape
    ((3, 2, 4), (2, 2, 2), (2, 2, 2))
    """
    states = {"h_0": h_0, "c_0": c_0}
    check_word("lstm", "precision", precision)
    check("lstm", 4, x, weights, states, bidirectional, dropout, seed, batch_first)
    output, (h_n, c_n) = run(
        partial(lstm_layer, low_memory=low_memory, precision=precision),
        swap_first(x) if batch_first else x, weights, (h_0, c_0), lengths,
        bidirectional=bidirectional, dropout=dropout, seed=seed,
    )  # fmt: skip
    return Lstm(swap_first(output) if batch_first else output, h_n, c_n)


def gru(
    x: Array,
    weights: Sequence[Sequence[Array | None]],
    h_0: Array | None = None,
    lengths: Array | None = None,
    *,
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
    ``n = tanh(x_n + r·y_n)``, ``output[t] = h' = (1 - z)·n + z·h``. The outputs of a layer, with
    both directions one behind the other, are the inputs of the next.

    Args:
        x: As in `lstm`.
        weights: As in `lstm`, with three blocks of rows in cuDNN's and PyTorch's order of gates
            (r, z, n).
        h_0: As in `lstm`.
        lengths: As in `lstm`.
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
    Source: Cho et al. 2014, Learning phrase representations using RNN encoder-decoder, version 3.

    >>> x, weights = np.ones((3, 2, 1)), (np.ones((6, 1)), np.zeros((6, 2)))
    >>> nativeops.gru(x, [weights], batch_first=True).h_n.round(4)
    array([[[0.3546, 0.3546],
            [0.3546, 0.3546],
            [0.3546, 0.3546]]])
    """
    check_word("gru", "precision", precision)
    check("gru", 3, x, weights, {"h_0": h_0}, bidirectional, dropout, seed, batch_first)
    output, (h_n,) = run(
        partial(gru_layer, low_memory=low_memory, precision=precision),
        swap_first(x) if batch_first else x, weights, (h_0,), lengths,
        bidirectional=bidirectional, dropout=dropout, seed=seed,
    )  # fmt: skip
    return Recurrent(swap_first(output) if batch_first else output, h_n)


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
    check_word("rnn", "activation", activation)
    check_word("rnn", "precision", precision)
    check("rnn", 1, x, weights, {"h_0": h_0}, bidirectional, dropout, seed, batch_first)
    output, (h_n,) = run(
        partial(rnn_layer, activation=activation, precision=precision),
        swap_first(x) if batch_first else x, weights, (h_0,), lengths,
        bidirectional=bidirectional, dropout=dropout, seed=seed,
    )  # fmt: skip
    return Recurrent(swap_first(output) if batch_first else output, h_n)


# TensorFlow's AutoGraph calls what has this attribute as it is, instead of rewriting its code.
for _function in (lstm, gru, rnn):
    vars(_function)["autograph_info__"] = True


def run(
    layer: Callable[..., Any],
    x: Any,
    weights: Sequence[Sequence[Any]],
    states: Sequence[Any],
    lengths: Any,
    *,
    bidirectional: bool,
    dropout: float,
    seed: Any,
) -> tuple[Any, list[Any]]:
    """All layers of arguments that fit: the outputs, and the final states in their order."""
    directions = 2 if bidirectional else 1
    finals: list[list[Any]] = [[] for _ in states]
    for first in range(0, len(weights), directions):
        if first and dropout:
            x = drop(x, seed, p=dropout, stream=first // directions)
        outputs = []
        for place in range(first, first + directions):
            own = (*weights[place], None, None)[:4]
            before = [None if state is None else state[place] for state in states]
            output, *after = layer(x, *own, *before, lengths, reverse=place > first)
            outputs.append(output)
            for final, state in zip(finals, after, strict=False):  # what is kept comes last
                final.append(state[None])
        x = join(outputs, -1)
    return x, [join(final, 0) for final in finals]


def check(
    name: str,
    gates: int,
    x: Any,
    weights: Sequence[Sequence[Any]],
    states: dict[str, Any],
    bidirectional: bool,
    dropout: float,
    seed: Any,
    batch_first: bool,
) -> None:
    """What the ops of the single layers cannot say as clearly: which weight or state is wrong."""
    axes = "[b t i]" if batch_first else "[t b i]"
    shape = _shape(name, "x", x)
    if len(shape) != 3:
        text = f"`x` must have 3 axes {axes}, but has {len(shape)}."
        raise ShapeError(message(name, text))
    directions = 2 if bidirectional else 1
    if not weights or len(weights) % directions:
        words = "direction of each layer" if bidirectional else "layer"
        text = f"`weights` must have an entry for each {words}, but has {len(weights)}."
        raise ArgumentError(message(name, text))
    units = _units(name, weights)
    for place in range(len(weights)):
        inputs = shape[2] if place < directions else _times(directions, units)
        _check_weights(name, weights[place], place, _times(gates, units), inputs, units)
    for word, state in states.items():
        if state is not None:
            wanted = (len(weights), shape[0 if batch_first else 1], units)
            _check_shape(name, word, state, "layers*d b h", wanted)
    _check_dropout(name, dropout, seed, len(weights) // directions)


def check_word(name: str, attribute: str, word: Any) -> Any:
    """The word, refused in the name of the caller where it is none of the attribute's choices."""
    specs = rnn_layer.signature.attributes
    next(spec for spec in specs if spec.name == attribute).check(name, word)
    return word


def _check_dropout(name: str, dropout: float, seed: Any, layers: int) -> None:
    if not 0 <= dropout < 1:
        text = f"`dropout` must be at least 0 and below 1, but is {dropout!r}."
        raise RangeError(message(name, text))
    if dropout and layers > 1 and seed is None:
        hint = "give an integer of shape [1], another one in each step of training."
        raise ArgumentError(message(name, "`dropout` needs a `seed`.", hint=hint))


def _units(name: str, weights: Sequence[Sequence[Any]]) -> Any:
    """The number of hidden units, as the first weights have it."""
    for place, own in enumerate(weights):
        if len(own) not in (2, 4):
            text = f"`weights[{place}]` must have 2 or 4 arrays, but has {len(own)}."
            raise ArgumentError(message(name, text, hint="give w_ih, w_hh, or both biases too."))
    shape = _shape(name, "weights[0][1]", weights[0][1])
    if len(shape) != 2:
        text = f"`weights[0][1]` (w_hh) must have 2 axes, but has {len(shape)}."
        raise ShapeError(message(name, text))
    return shape[1]


def _check_weights(
    name: str, own: Sequence[Any], place: int, rows: Any, inputs: Any, units: Any
) -> None:
    wanted = ((rows, inputs), (rows, units), (rows,), (rows,))
    for i, (array, shape) in enumerate(zip(own, wanted, strict=False)):
        if array is not None or i < 2:
            _check_shape(name, f"weights[{place}][{i}]", array, _NAMES[i], shape)


def _times(count: int, size: Any) -> Any:
    """A size, unless it is one that TensorFlow does not know yet."""
    return None if size is None else count * size


def _check_shape(name: str, word: str, array: Any, what: str, wanted: tuple[Any, ...]) -> None:
    """Unknown sizes, which TensorFlow has, are left to the ops."""
    shape = _shape(name, word, array)
    pairs = zip(shape, wanted, strict=False)
    if len(shape) != len(wanted) or any(a != b for a, b in pairs if None not in (a, b)):
        text = f"`{word}` ({what}) must have the shape {list(wanted)}, but has {list(shape)}."
        raise ShapeError(message(name, text))


def _shape(name: str, word: str, array: Any) -> tuple[Any, ...]:
    if framework_of(type(array)) is None:
        text = f"`{word}` must be an array, but is {type(array).__name__}."
        raise ArgumentError(message(name, text))
    return tuple(array.shape)
