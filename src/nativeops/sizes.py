# SPDX-License-Identifier: Apache-2.0
"""Sizes of axes: numbers, names, and arithmetic over them.

A size is evaluated in Python (with plain or symbolic integers) and, as a list of steps on a
stack, by the C++ core, so that both always agree.
"""

import ast
import keyword
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
}
# The position of an operator here is its number in the core (bindings/core.h: Step).
OPERATORS = ("number", "name", "+", "-", "*", "//", "max", "min")


def _larger(a: Any, b: Any) -> Any:
    """`max` that symbolic integers of every framework understand."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    for symbol, other in ((a, b), (b, a)):
        for method in ("__sym_max__", "rmax"):  # PyTorch's, JAX's
            if hasattr(symbol, method):
                return getattr(symbol, method)(other)
    return max(a, b)


def _smaller(a: Any, b: Any) -> Any:
    return -_larger(-a, -b)


def _divided(a: Any, b: Any) -> Any:
    """Floor division; by zero there is no size."""
    if isinstance(b, int) and b == 0:
        raise ZeroDivisionError
    return a // b


_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": _divided,
    "max": _larger,
    "min": _smaller,
}


@dataclass(frozen=True)
class Size:
    """The size of one axis; build it with `parse`, or by arithmetic in an axis rule."""

    op: str
    parts: tuple[Any, ...]

    @property
    def name(self) -> str | None:
        """The axis' name if this is a bare name."""
        return self.parts[0] if self.op == "name" else None

    def names(self) -> set[str]:
        """All names that the size depends on."""
        if self.op in ("number", "name"):
            return {self.parts[0]} if self.op == "name" else set()
        return set().union(*(part.names() for part in self.parts))

    def evaluate(self, known: Mapping[str, Any]) -> Any:
        """The size, given the sizes of the names; integers may be symbolic.

        ZeroDivisionError where it would be divided by 0.
        """
        if self.op == "number":
            return self.parts[0]
        if self.op == "name":
            return known[self.parts[0]]
        left, right = (part.evaluate(known) for part in self.parts)
        return _COMPUTE[self.op](left, right)

    def substitute(self, rules: Mapping[str, "Size"]) -> "Size":
        """The same size with some names replaced by sizes."""
        if self.op == "number":
            return self
        if self.op == "name":
            return rules.get(self.parts[0], self)
        return Size(self.op, tuple(part.substitute(rules) for part in self.parts))

    @property
    def room(self) -> int:
        """How many numbers are on the stack at most while the size is computed."""
        if self.op in ("number", "name"):
            return 1
        left, right = (part.room for part in self.parts)
        return max(int(left), int(right) + 1)

    def steps(self, slots: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        """The size as (operator, operand) steps on a stack, for the core."""
        code = OPERATORS.index(self.op)
        if self.op == "number":
            return ((code, self.parts[0]),)
        if self.op == "name":
            return ((code, slots[self.parts[0]]),)
        left, right = self.parts
        return (*left.steps(slots), *right.steps(slots), (code, 0))

    def __str__(self) -> str:
        if self.op in ("number", "name"):
            return str(self.parts[0])
        left, right = self.parts
        if self.op in ("max", "min"):
            return f"{self.op}({left},{right})"
        divides = self.op == "//" and right.op == "*"
        first = str(left) if self.op in "+-" else _grouped(left)
        return f"{first}{self.op}{f'({right})' if divides else _grouped(right)}"

    def __add__(self, other: "Size | int") -> "Size":
        return Size("+", (self, as_size(other)))

    def __radd__(self, other: int) -> "Size":
        return Size("+", (as_size(other), self))

    def __sub__(self, other: "Size | int") -> "Size":
        return Size("-", (self, as_size(other)))

    def __rsub__(self, other: int) -> "Size":
        return Size("-", (as_size(other), self))

    def __mul__(self, other: "Size | int") -> "Size":
        return Size("*", (self, as_size(other)))

    def __rmul__(self, other: int) -> "Size":
        return Size("*", (as_size(other), self))

    def __floordiv__(self, other: "Size | int") -> "Size":
        return Size("//", (self, as_size(other)))


def _grouped(size: Size) -> str:
    return f"({size})" if size.op in ("+", "-", "//") else str(size)


def as_size(value: Size | int) -> Size:
    """A size from a size or a number."""
    return value if isinstance(value, Size) else Size("number", (operator.index(value),))


def maximum(a: Size | int, b: Size | int) -> Size:
    """The larger of two sizes, for axis rules (Python's `max` cannot compare names)."""
    return Size("max", (as_size(a), as_size(b)))


def minimum(a: Size | int, b: Size | int) -> Size:
    """The smaller of two sizes, for axis rules."""
    return Size("min", (as_size(a), as_size(b)))


@cache  # a few texts stand in all declarations
def parse(text: str) -> Size:
    """The size written as `text`, such as ``t``, ``4*h`` or ``max(t-k,0)//s+1``."""
    try:
        return _from_tree(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError) as error:
        raise ValueError(f"`{text}` is not a size: {_advice(text)}") from error


def _advice(text: str) -> str:
    """What to write in place of a text that is no size."""
    if keyword.iskeyword(text):
        return "it is a word of Python; call the axis otherwise"
    if "(" in text and "," in text:
        return "write it without spaces, as in `max(t-k,0)`"
    if "," in text:
        parts = " ".join(filter(None, text.split(",")))
        return f"separate axes by spaces, not by commas: `{parts}`"
    return "use names, numbers, + - * // ( ) max min"


def _from_tree(node: ast.expr) -> Size:
    match node:
        case ast.Name(name):
            return Size("name", (name,))
        case ast.Constant(number) if type(number) is int:
            return Size("number", (number,))
        case ast.BinOp(left, sign, right):
            return Size(_BINARY[type(sign)], (_from_tree(left), _from_tree(right)))
        case ast.Call(ast.Name("max" | "min" as function), [a, b], []):
            return Size(function, (_from_tree(a), _from_tree(b)))
    raise SyntaxError
