# SPDX-License-Identifier: Apache-2.0
"""One call of an op in TensorFlow: what it says beside the arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from nativeops.signature import ACCUM, Signature


class Call(NamedTuple):
    """What a caller wants beside the arrays."""

    attributes: Mapping[str, Any]
    texts: tuple[str, ...]  # the attributes as a node has them
    mask: int  # the outputs to make
    words: tuple[Any, ...]  # names and values of a node's attributes


def key_of(kwargs: Mapping[str, Any]) -> str | None:
    """What tells keywords apart; None where their texts do not, as those of arrays are rounded."""
    exact = (int, float, bool, str, type(None))
    for value in kwargs.values():
        items = value if type(value) in (tuple, list) else (value,)
        if not all(type(item) in exact for item in items):
            return None
    return repr(kwargs) if kwargs else ""


def text_of(value: Any) -> str:
    """An attribute's value as a node has it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def value_of(kind: type, text: str) -> Any:
    """The value that a node's text stands for."""
    return text == "1" if kind is bool else kind(text)


def sums_of(signature: Signature) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """From a call's tensors, name and value of the attribute that is the dtype of sums.

    TensorFlow must be told it where only results have it.
    """
    kinds = [spec.kind for spec in signature.inputs]
    if "Accum" in kinds or all(spec.kind != "Accum" for spec in signature.outputs):
        return lambda _: ()
    place = kinds.index("Float")
    types = {name: tf.as_dtype(wide).as_datatype_enum for name, wide in ACCUM.items()}
    return lambda tensors: ("Accum", types.get(tensors[place].dtype.name, types["float32"]))
