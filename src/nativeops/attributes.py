# SPDX-License-Identifier: Apache-2.0
"""The attributes of an op: numbers, flags and choices, which are constants of a program."""

import math
import operator
from dataclasses import dataclass
from numbers import Real
from typing import Any

from nativeops.errors import DtypeError, RangeError, message


@dataclass(frozen=True)
class AttributeSpec:
    """One keyword-only number, flag or choice."""

    name: str
    type: type
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        word = " | ".join(repr(c) for c in self.choices) or self.type.__name__
        return f"{self.name}: {word}" + ("" if self.required else f" = {self.default!r}")

    def check(self, op: str, value: object) -> Any:
        """The value as the attribute's type, or a clear error."""
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                text = f"`{self.name}` must be one of {list(self.choices)}, but is {value!r}."
                raise RangeError(message(op, text))
            return value
        try:
            converted = self._convert(value)
        except OverflowError:
            text = f"`{self.name}` must fit in 64 bits, but is {_shown(value)}."
            raise RangeError(message(op, text)) from None
        except (TypeError, ValueError):
            text = f"`{self.name}` must be {self.type.__name__}, but is {value!r}."
            hint = "an attribute is a constant of a program: give it as a Python number."
            unknown = self.type is int and value is None  # a size in a graph of TensorFlow
            is_open = unknown or hasattr(value, "shape") or "DimExpr" in type(value).__name__
            raise DtypeError(message(op, text, hint=hint if is_open else None)) from None
        words = ""
        if not self.low <= converted <= self.high:
            words = f"be {self.bounds or 'a number'}"
        elif self.type is int and not -(2**63) <= converted < 2**63:
            words = "fit in 64 bits"
        if words:
            raise RangeError(message(op, f"`{self.name}` must {words}, but is {_shown(value)}."))
        return converted

    def _convert(self, value: Any) -> Any:
        """The value as the attribute's type; a TypeError if it is of another type."""
        own = type(value)
        if own is self.type or (own is int and self.type is float):
            return self.type(value)  # also what PyTorch's compiler traces as a symbol
        if getattr(value, "requires_grad", False) or getattr(value, "ndim", 0):
            raise TypeError  # there is no gradient for it, or it is no number but a list of them
        flag = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
        if flag and self.type is not bool:
            raise TypeError
        if flag or isinstance(value, int) or self.type is not float:
            return self.type(value if flag else operator.index(value))
        if isinstance(value, (float, Real)) or hasattr(value, "__index__"):
            return float(value)
        raise TypeError

    @property
    def bounds(self) -> str:
        """The allowed range in words."""
        low, high = (f"{b:g}" if self.type is float else f"{b}" for b in (self.low, self.high))
        parts = [f"at least {low}"] * (self.low > -math.inf)
        return " and ".join(parts + [f"at most {high}"] * (self.high < math.inf))


def _shown(value: object) -> str:
    """As Python writes it, unless that are more digits than anyone reads."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
