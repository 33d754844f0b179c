# SPDX-License-Identifier: Apache-2.0
"""Whether the arguments of a recurrent network fit: what the ops of its single layers cannot say as
clearly, which weight or state is wrong."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from nativeops.arrays import dtype_name
from nativeops.attributes import AttributeSpec
from nativeops.errors import ArgumentError, DtypeError, RangeError, ShapeError, message
from nativeops.frameworks import framework_of
from nativeops.ops.gru import gru_layer
from nativeops.ops.rnn import rnn_layer

# Of one layer in one direction: w_ih, w_hh, perhaps b_ih, b_hh, and of an LSTM perhaps w_hr.
_NAMES = ("w_ih", "w_hh", "b_ih", "b_hh", "w_hr")

# What `x` may have.
_FLOATS = rnn_layer.signature.inputs[0].dtypes

# All that is told by a number, a flag or a word: of the ops, and of layers alone.
_ATTRIBUTES = {
    spec.name: spec
    for spec in (
        *rnn_layer.signature.attributes,
        *gru_layer.signature.attributes,
        *(AttributeSpec(name, bool) for name in ("bidirectional", "batch_first")),
        *(AttributeSpec(name, int) for name in ("num_layers", "proj_size", "units")),
        *(AttributeSpec(name, float) for name in ("dropout", "recurrent_dropout")),
    )
}


def checked(name: str, word: str, value: Any) -> Any:
    """A number, flag or word as its type, or an error in the name of the layer.

    What is out of range, or a truth where a probability should be, each framework tells itself.
    """
    spec = _ATTRIBUTES[word]
    if isinstance(value, bool) and spec.type is float:
        return value
    if spec.type is bool and isinstance(value, int) and not isinstance(value, bool):
        # `bidirectional=1` might mean one direction.
        raise DtypeError(message(name, f"`{word}` must be bool, but is {value!r}."))
    return spec.check(name, value)


def own_weights(given: Sequence[Any]) -> list[Any]:
    """The weights in the order of the ops: of the projection, the last of an odd number, third."""
    own = [*given]
    if len(own) % 2:
        own.insert(2, own.pop())
    return own if len(own) > 3 else [*own, None, None]


class Sizes(NamedTuple):
    """Of one layer: gates, units, and numbers in the output of one direction, perhaps projected."""

    gates: int
    units: Any
    width: Any
    projected: bool


def check(
    name: str,
    gates: int,
    x: Any,
    weights: Sequence[Sequence[Any]],
    states: dict[str, Any],
    bidirectional: bool,
    batch_first: bool,
    peepholes: Sequence[Any] | None = None,
) -> None:
    """Raise an error that says what does not fit."""
    checked(name, "bidirectional", bidirectional)
    checked(name, "batch_first", batch_first)
    axes = "[b t i]" if batch_first else "[t b i]"
    shape = _shape(name, "x", x, 3)
    if len(shape) != 3:
        text = f"`x` must have 3 axes {axes}, but has {len(shape)}."
        raise ShapeError(message(name, text))
    directions = 2 if bidirectional else 1
    _check_list(name, "weights", weights)
    if len(weights) == 0 or len(weights) % directions:
        words = "direction of each layer" if bidirectional else "layer"
        text = f"`weights` must have an entry for each {words}, but has {len(weights)}."
        raise ArgumentError(message(name, text))
    sizes = _sizes(name, gates, weights)
    for place in range(len(weights)):
        inputs = shape[2] if place < directions else _times(directions, sizes.width)
        _check_weights(name, x, weights, place, inputs, sizes)
    for word, state in states.items():
        if state is not None:
            narrow = sizes.projected and word == "h_0"
            last = sizes.width if narrow else sizes.units
            wanted = (len(weights), shape[0 if batch_first else 1], last)
            what = f"layers*d b {'p' if narrow else 'h'}"
            _check_array(name, x, word, state, what, wanted)
    if peepholes is not None:
        _check_peepholes(name, x, peepholes, len(weights), sizes)


def check_dropout(name: str, dropout: float, seed: Any, layers: int) -> None:
    """A probability, and a seed where one is needed."""
    checked(name, "dropout", dropout)
    if not 0 <= dropout < 1:
        text = f"`dropout` must be at least 0 and below 1, but is {dropout!r}."
        raise RangeError(message(name, text))
    if not dropout or layers == 1:
        return
    hint = "give an integer of shape [1], as an array or a list, another in each step of training."
    if seed is None:
        raise ArgumentError(message(name, "`dropout` needs a `seed`.", hint=hint))
    if framework_of(type(seed)) is None and not isinstance(seed, (list, tuple)):
        text = f"`seed` must be an array, but is {type(seed).__name__}."
        raise ArgumentError(message(name, text, hint=hint))
    if _is_key(seed):
        text = "`seed` must be an integer of shape [1], but is a key of JAX."
        hint = "draw one with it: `jax.random.randint(key, (1,), 0, 2**31 - 1)`."
        raise DtypeError(message(name, text, hint=hint))


def _is_key(seed: Any) -> bool:
    """Whether it is what `jax.random.key` or `jax.random.PRNGKey` returns."""
    if framework_of(type(seed)) != "jax":
        return False
    dtype = dtype_name(seed)
    return dtype.startswith("key<") or (dtype == "uint32" and tuple(seed.shape) in ((2,), (4,)))


def _sizes(name: str, gates: int, weights: Sequence[Sequence[Any]]) -> Sizes:
    """The sizes that the first weights tell; all others must have the same."""
    most = 5 if gates == 4 else 4
    hint = "give them in this order: w_ih, w_hh, or w_ih, w_hh, b_ih, b_hh"
    hint += ", and w_hr behind them for a projection." if gates == 4 else "."
    for place, own in enumerate(weights):
        _check_list(name, f"weights[{place}]", own, hint)
        if not 2 <= len(own) <= most or (most == 4 and len(own) == 3):
            words = "2 to 5" if gates == 4 else "2 or 4"
            text = f"`weights[{place}]` must have {words} arrays, but has {len(own)}."
            raise ArgumentError(message(name, text, hint=hint))
        if len(own) % 2 != len(weights[0]) % 2:
            has, other = ("a", "none") if len(own) % 2 else ("no", "one")
            text = f"`weights[{place}]` has {has} projection (w_hr), but `weights[0]` has {other}."
            raise ArgumentError(message(name, text))
    projected = len(weights[0]) % 2 == 1
    word, which = (len(weights[0]) - 1, "w_hr") if projected else (1, "w_hh")
    shape = _shape(name, f"weights[0][{word}]", weights[0][word], 2)
    if len(shape) != 2:
        text = f"`weights[0][{word}]` ({which}) must have 2 axes, but has {len(shape)}."
        raise ShapeError(message(name, text))
    if projected:
        return Sizes(gates, shape[1], shape[0], projected)
    # Two matrices with as many rows tell the units; it is the columns then that are wrong.
    rows = _shape(name, "weights[0][0]", weights[0][0], 2)[:1]
    agree = rows == shape[:1] and isinstance(rows[0], int) and rows[0] % gates == 0
    units = rows[0] // gates if agree else shape[1]
    return Sizes(gates, units, units, projected)


def _check_weights(
    name: str, x: Any, weights: Sequence[Sequence[Any]], place: int, inputs: Any, sizes: Sizes
) -> None:
    rows, given = _times(sizes.gates, sizes.units), weights[place]
    wanted = ((rows, inputs), (rows, sizes.width), (rows,), (rows,), (sizes.width, sizes.units))
    last = len(given) - 1
    for i, array in enumerate(given):
        which = 4 if i == last and last % 2 == 0 else i
        if array is not None or which not in (2, 3):
            _check_array(name, x, f"weights[{place}][{i}]", array, _NAMES[which], wanted[which])


def _check_peepholes(
    name: str, x: Any, peepholes: Sequence[Any], layers: int, sizes: Sizes
) -> None:
    _check_list(name, "peepholes", peepholes)
    if len(peepholes) != layers:
        text = f"`peepholes` must have an entry for each of `weights`, {layers}, but has"
        raise ArgumentError(message(name, f"{text} {len(peepholes)}."))
    for place, array in enumerate(peepholes):
        if array is not None:
            wanted = (_times(3, sizes.units),)
            _check_array(name, x, f"peepholes[{place}]", array, "3*h", wanted)


def _check_list(name: str, word: str, given: Any, hint: str | None = None) -> None:
    """Any sequence will do, also those of frameworks, but nothing that names its parts."""
    has_order = hasattr(given, "__getitem__") and not hasattr(given, "keys")
    if isinstance(given, str) or not hasattr(given, "__len__") or not has_order:
        text = f"`{word}` must be a list, but is {type(given).__name__}."
        raise ArgumentError(message(name, text, hint=hint))


def _times(count: int, size: Any) -> Any:
    """A size, unless it is one that TensorFlow does not know yet."""
    return None if size is None else count * size


def _check_array(
    name: str, x: Any, word: str, array: Any, what: str, wanted: tuple[Any, ...]
) -> None:
    """The shape, without unknown sizes, which TensorFlow has; and the dtype, which is that of `x`.

    Whether `x` fits, and whether all are of one framework, is left to the ops.
    """
    shape = _shape(name, word, array, len(wanted))
    pairs = zip(shape, wanted, strict=False)
    if len(shape) != len(wanted) or any(a != b for a, b in pairs if None not in (a, b)):
        text = f"`{word}` ({what}) must have the shape {list(wanted)}, but has {list(shape)}."
        raise ShapeError(message(name, text))
    if array.dtype != x.dtype and not _may_differ(x, array):
        has, other = dtype_name(array), dtype_name(x)
        text = f"`{word}` ({what}) is {has} but `x` is {other}."
        hint = f"convert one of them, for example `{word}` to {other}."
        raise DtypeError(message(name, text, hint=hint))


def _may_differ(x: Any, array: Any) -> bool:
    """Whether an op takes such dtypes together, or has more to say of the two arrays."""
    own, dtype = framework_of(type(x)), dtype_name(x)
    if framework_of(type(array)) != own or dtype not in _FLOATS or dtype_name(array) == dtype:
        return True
    return own == "torch" and _is_autocast(x)


def _is_autocast(tensor: Any) -> bool:
    """Whether PyTorch makes the dtypes equal."""
    kind = tensor.device.type
    return kind in ("cpu", "cuda") and bool(sys.modules["torch"].is_autocast_enabled(kind))


def _shape(name: str, word: str, array: Any, axes: int) -> tuple[Any, ...]:
    """The sizes; None in place of each that TensorFlow does not know, also where it knows none."""
    if framework_of(type(array)) is None:
        text = f"`{word}` must be an array, but is {type(array).__name__}."
        raise ArgumentError(message(name, text))
    return (None,) * axes if getattr(array.shape, "rank", 0) is None else tuple(array.shape)
