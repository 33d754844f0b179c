# SPDX-License-Identifier: Apache-2.0
"""One call of an op in TensorFlow: what it says beside the arrays."""

from collections.abc import Mapping
from typing import Any, NamedTuple


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
