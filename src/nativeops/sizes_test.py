# SPDX-License-Identifier: Apache-2.0
"""Sizes of axes: reading, computing, printing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nativeops.sizes import OPERATORS, Size, as_size, maximum, minimum, parse

NAMES = ("t", "k", "s")


def combine(parts: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: p[0] // p[1]),
    )


ATOMS = st.one_of(st.sampled_from(NAMES).map(parse), st.integers(0, 9).map(as_size))
ARITHMETIC = st.recursive(ATOMS, combine, max_leaves=6)
KNOWN = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(0, 40)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("t", 10),
        ("4*t", 40),
        ("t-k+1", 8),
        ("(t-k)//s+1", 4),
        ("t-(k-s)", 9),
        ("2*(t+1)", 22),
        ("7", 7),
    ],
)
def test_text_means_what_python_means(text: str, value: int) -> None:
    assert parse(text).evaluate({"t": 10, "k": 3, "s": 2}) == value


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ARITHMETIC, KNOWN)
def test_printed_size_reads_back_as_the_same(size: Size, known: dict[str, int]) -> None:
    text = str(size)
    try:
        expected = eval(text, {}, known)
    except ZeroDivisionError:
        return
    assert size.evaluate(known) == expected
    assert parse(text).evaluate(known) == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ARITHMETIC, KNOWN)
def test_steps_on_a_stack_give_the_same_number(size: Size, known: dict[str, int]) -> None:
    slots = {name: i for i, name in enumerate(NAMES)}
    values = [known[name] for name in NAMES]
    stack: list[int] = []
    compute = {
        "+": int.__add__,
        "-": int.__sub__,
        "*": int.__mul__,
        "//": int.__floordiv__,
        "max": max,
        "min": min,
    }
    try:
        for code, operand in size.steps(slots):
            word = OPERATORS[code]
            if word in compute:
                right, left = stack.pop(), stack.pop()
                stack.append(compute[word](left, right))
            else:
                stack.append(operand if word == "number" else values[operand])
        expected = [size.evaluate(known)]
    except ZeroDivisionError:
        return
    assert stack == expected


def test_rules_replace_names() -> None:
    size = parse("2*c+1").substitute({"c": maximum(parse("t") - 3, 0)})
    assert size.evaluate({"t": 5}) == 5
    assert size.evaluate({"t": 1}) == 1
    assert size.names() == {"t"}
    assert str(size) == "2*max(t-3,0)+1"


def test_largest_and_smallest() -> None:
    assert maximum(parse("t"), 3).evaluate({"t": 2}) == 3
    assert minimum(3, parse("t")).evaluate({"t": 2}) == 2


def test_largest_and_smallest_can_be_written() -> None:
    size = parse("b*(max(t-k,0)//2+min(t,k))")
    assert size.evaluate({"b": 3, "t": 9, "k": 4}) == 3 * (2 + 4)
    assert size == parse(str(size))


def test_bare_name_is_told_from_arithmetic() -> None:
    assert parse("t").name == "t"
    assert parse("t+0").name is None
    assert parse("3").name is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t+",
        "t/2",
        "f(t)",
        "f(t,k)",
        "max(t)",
        "max(t,k,1)",
        "t.x",
        "1.5",
        "t if k else s",
        "-t",
        "*b",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse(text)
