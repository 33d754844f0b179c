# SPDX-License-Identifier: Apache-2.0
"""Reading declarations: what is understood, and what is refused with a sentence."""

from typing import Annotated, Literal, NamedTuple

import numpy as np
import pytest

from nativeops.declare import (
    Array,
    AtLeast,
    AtMost,
    Bool,
    Float,
    Float32,
    Int,
    Int32,
    Int64,
    Kept,
    Uint8,
    read,
    transpose,
)
from nativeops.errors import Given, ShapeError


class Two(NamedTuple):
    first: Float[Array, "*b n"]
    second: Int64[Array, "2*n"] | None
    third: Kept[Float32[Array, ""]]


def everything(
    x: Float[Array, "*b n d"],
    i: Int[Array, "n"],
    m: Bool[Array, "n"],
    u: Uint8[Array, ""],
    *,
    k: Annotated[int, AtLeast(1), AtMost(9)],
    p: float = 2.0,
    flag: bool = False,
    mode: Literal["a", "b"] = "b",
) -> Two:
    """All that a declaration may have."""


def test_signature_reads_as_it_was_written() -> None:
    assert str(read(everything)) == (
        "everything(x: Float[*b n d], i: Int[n], m: Bool[n], u: Uint8[], *, k: int, "
        "p: float = 2.0, flag: bool = False, mode: 'a' | 'b' = 'b') -> "
        "(first: Float[*b n], second: Int64[2*n], third: Float32[] kept)"
    )


def test_flags_and_bounds_are_understood() -> None:
    signature = read(everything)
    assert signature.variables == ("Float", "Int")
    assert signature.selective
    assert [(s.kept, s.optional) for s in signature.outputs] == [
        (False, False),
        (False, True),
        (True, False),
    ]
    k, p, flag, mode = signature.attributes
    assert (k.required, k.low, k.high) == (True, 1, 9)
    assert (p.required, p.default, p.type) == (False, 2.0, float)
    assert (flag.type, flag.default) == (bool, False)
    assert (mode.choices, mode.default) == (("a", "b"), "b")


def refuses(words: str, function: object) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        read(function)


def test_positional_number_is_refused() -> None:
    def f(x: Float[Array, "n"], k: int) -> Float[Array, "n"]: ...

    refuses("f: annotate `k` as an array", f)


def test_missing_result_is_refused() -> None:
    def f(x: Float[Array, "n"]): ...

    refuses("f: annotate the result", f)


def test_result_that_is_no_array_is_refused() -> None:
    def f(x: Float[Array, "n"]) -> int: ...

    refuses("f: annotate the result", f)


def test_star_behind_the_first_axis_is_refused() -> None:
    def f(x: Float[Array, "n *b"]) -> Float[Array, "n"]: ...

    refuses("only the first axis", f)


def test_attribute_of_another_type_is_refused() -> None:
    def f(x: Float[Array, "n"], *, s: str = "a") -> Float[Array, "n"]: ...

    refuses("`s` must be int, float, bool or a Literal", f)


def test_choices_that_are_no_words_are_refused() -> None:
    def f(x: Float[Array, "n"], *, k: Literal[1, 2] = 1) -> Float[Array, "n"]: ...

    refuses("`k` must be int, float, bool or a Literal of words", f)


def test_axis_that_never_stands_alone_is_refused() -> None:
    def f(x: Float[Array, "2*n"]) -> Float[Array, "n"]: ...

    refuses(r"f: `2\*n` in `x` needs the size `n`", f)


def test_result_of_unknown_size_is_refused_when_called() -> None:
    def f(x: Float[Array, "n"]) -> Float[Array, "2*c"]: ...

    with pytest.raises(ShapeError, match="f: nothing tells the size `c`"):
        read(f).solve([Given("x", "float32", (3,), "")], {})


def test_optional_input_is_read() -> None:
    def f(
        x: Float[Array, "n b"], lengths: Int32[Array, "b"] | None = None, *, k: int = 1
    ) -> Float[Array, "n"]: ...

    signature = read(f)
    assert [spec.optional for spec in signature.inputs] == [False, True]
    assert str(signature) == (
        "f(x: Float[n b], lengths: Int32[b] | None = None, *, k: int = 1) -> Float[n]"
    )


def test_none_is_declared_as_type_and_as_default() -> None:
    def only_type(x: Float[Array, "n"], y: Float[Array, "n"] | None) -> Float[Array, "n"]: ...

    def only_default(x: Float[Array, "n"], y: Float[Array, "n"] = None) -> Float[Array, "n"]: ...

    for f in (only_type, only_default):
        refuses(rf"{f.__name__}: write `y: \.\.\. \| None = None`", f)


def test_optional_input_needs_an_axis_and_another_input() -> None:
    def no_axis(x: Float[Array, "*b"], y: Float[Array, "*b"] | None = None) -> Float[Array, ""]: ...

    def alone(x: Float[Array, "n"] | None = None) -> Float[Array, ""]: ...

    refuses("no_axis: `y` needs an axis beside leading ones to be optional", no_axis)
    refuses("alone: one input must not be optional", alone)


def test_arithmetic_needs_sizes_that_are_always_told() -> None:
    def f(x: Float[Array, "n 2*k"], y: Float[Array, "k"] | None = None) -> Float[Array, "n"]: ...

    refuses(r"f: `2\*k` in `x` needs the size `k`, but no required input has it", f)


def test_transpose_swaps_the_last_two_axes() -> None:
    assert transpose(np.zeros((5, 2, 3))).shape == (5, 3, 2)
