# SPDX-License-Identifier: Apache-2.0
"""Reading declarations: what is understood, and what is refused with a sentence."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, Optional

import numpy as np
import pytest

from nativeops import registry
from nativeops.attributes import AttributeSpec
from nativeops.call import Op
from nativeops.declare import (
    Accum,
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
    op,
    read,
    transpose,
)
from nativeops.errors import ArgumentError, Given, NativeOpsError, ShapeError
from nativeops.signature import ArraySpec, Signature, array_spec


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


@pytest.mark.parametrize("kernel", ["", ".", None])
def test_kernel_that_is_no_file_is_refused(kernel: Any) -> None:
    with pytest.raises(TypeError, match="f: `kernel` must be the name of a C"):

        @op(kernel=kernel)
        def f(x: Float[Array, "n"]) -> Float[Array, "n"]: ...


def test_kernel_lies_where_the_module_does_if_there_is_no_source(tmp_path, monkeypatch) -> None:
    """As in frozen programs, whose functions name files of the machine that built them."""
    module = ModuleType("frozen")
    module.__file__ = str(tmp_path / "frozen.pyc")
    Path(module.__file__).touch()
    monkeypatch.setitem(sys.modules, "frozen", module)
    text = "def frozen(x: Float[Array, 'n']) -> Float[Array, 'n']:\n    return x"
    names = {"Float": Float, "Array": Array, "__name__": "frozen"}
    exec(compile(text, "ops/frozen.py", "exec"), names)
    assert op(kernel="frozen.h")(names["frozen"]).kernel == tmp_path / "frozen.h"
    del registry._OPS["frozen"]


def test_choices_that_are_no_words_are_refused() -> None:
    def f(x: Float[Array, "n"], *, k: Literal[1, 2] = 1) -> Float[Array, "n"]: ...

    refuses("`k` must be int, float, bool or a Literal of words", f)


def test_axis_that_never_stands_alone_is_refused() -> None:
    def f(x: Float[Array, "2*n"]) -> Float[Array, "n"]: ...

    refuses(r"f: `2\*n` in `x` needs the size `n`.*call this axis `d`, say, and write `d//2`", f)


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


def test_optional_is_the_same_as_or_none() -> None:
    given = Optional[Float[Array, "n"]]  # noqa: UP045

    def f(x: Float[Array, "n"], y: given = None) -> Float[Array, "n"]: ...

    assert str(read(f)) == "f(x: Float[n], y: Float[n] | None = None) -> Float[n]"


def test_name_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(TypeError, match="g: the name `größe` must be ASCII"):

        @op(kernel="g.h")
        def g(x: Float[Array, "n"], *, größe: int = 1) -> Float[Array, "n"]: ...  # noqa: PLC2401


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda n: None, "'NoneType' object cannot be interpreted as an integer"),
        (lambda n: n / 2, "unsupported operand type"),
        (lambda n: max(n, 3), "'>' not supported"),
    ],
)
def test_rule_that_gives_no_size_is_refused_with_the_way_out(rule: Any, said: str) -> None:
    declared = Op(of_two_axes, read(of_two_axes), Path("of_two_axes.h"), "keep")
    way_out = ".*: write whole numbers, its arguments, .* `maximum`"
    with pytest.raises(
        TypeError, match="the rule of the axis `m` gives no size .*" + said + way_out
    ):
        declared.axis("m")(rule)
    with pytest.raises(TypeError, match="no result has the axis `z`"):
        declared.axis("z")(lambda n: n)


def test_rule_of_an_axis_may_give_a_number() -> None:
    declared = Op(of_two_axes, read(of_two_axes), Path("of_two_axes.h"), "keep")
    declared.axis("m")(lambda: 3)
    assert str(declared.signature) == "of_two_axes(x: Float[n]) -> Float[3]"


def of_two_axes(x: Float[Array, "n"]) -> Float[Array, "m"]: ...


def test_signature_of_an_op_is_shown_as_it_is_written() -> None:
    def f(x: Float[Array, "*b n"], y: Int32[Array, "n"] | None = None) -> Float[Array, "*b"]: ...

    assert str(inspect.signature(f)) == (
        '(x: Float[Array, "*b n"], y: Int32[Array, "n"] | None = None) -> Float[Array, "*b"]'
    )
    assert repr(Kept[Float[Array, "n"]]) == 'Kept[Float[Array, "n"]]'


def test_none_is_declared_as_type_and_as_default() -> None:
    def only_type(x: Float[Array, "n"], y: Float[Array, "n"] | None) -> Float[Array, "n"]: ...

    def only_default(x: Float[Array, "n"], y: Float[Array, "n"] = None) -> Float[Array, "n"]: ...

    for f in (only_type, only_default):
        refuses(rf"{f.__name__}: write `y: \.\.\. \| None = None`", f)


def test_optional_input_needs_an_axis_and_another_input() -> None:
    def no_axis(x: Float[Array, "*b"], y: Float[Array, "*b"] | None = None) -> Float[Array, ""]: ...

    def alone(x: Float[Array, "n"] | None = None) -> Float[Array, ""]: ...

    refuses("no_axis: `y` needs an axis beside leading ones to be optional", no_axis)

    def none(*, n: int = 3) -> Float32[Array, "n"]: ...

    refuses("alone: an input that is not optional must tell the framework", alone)
    refuses("none: an input that is not optional must tell the framework", none)


class OfTwo:
    """Two results that no kernel could be asked for by name."""

    a: Float[Array, "n"]
    b: Float[Array, "n"]


class Hidden(NamedTuple):
    """What no caller sees."""

    a: Kept[Float[Array, "n"]]


def test_results_are_seen_and_in_a_named_tuple() -> None:
    def other(x: Float[Array, "n"]) -> OfTwo: ...

    def hidden(x: Float[Array, "n"]) -> Hidden: ...

    def alone(x: Float[Array, "n"]) -> Kept[Float[Array, "n"]]: ...

    refuses("other: annotate the result as an array or a NamedTuple of arrays", other)
    refuses("hidden: one result must not be `Kept`", hidden)
    refuses("alone: one result must not be `Kept`", alone)


def test_arithmetic_needs_sizes_that_are_always_told() -> None:
    def f(x: Float[Array, "n 2*k"], y: Float[Array, "k"] | None = None) -> Float[Array, "n"]: ...

    refuses(r"f: `2\*k` in `x` needs the size `k`, but no required input has it", f)


def test_transpose_swaps_the_last_two_axes() -> None:
    assert transpose(np.zeros((5, 2, 3))).shape == (5, 3, 2)


def with_default(kind: Any, given: object) -> Callable[..., Any]:
    def scaled(x: Float[Array, "n"], *, s: kind = given) -> Float[Array, "n"]:
        return x

    return scaled


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (float, np.sqrt(2.0), 2**0.5),
        (float, np.float32(2), 2.0),
        (float, 3, 3.0),
        (int, np.int64(3), 3),
        (bool, 1, True),
    ],
)
def test_default_is_of_the_attributes_type(kind: type, given: object, value: object) -> None:
    (spec,) = read(with_default(kind, given)).attributes
    assert (type(spec.default), spec.default) == (kind, value)


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (Literal["zero", "one"], "won", r"`s` must be one of \['zero', 'one'\], but is 'won'"),
        (int, True, "`s` must be int, but is True"),
        (int, 2.5, r"`s` must be int, but is 2\.5"),
        (float, None, "`s` must be float, but is None"),
        (Annotated[float, AtLeast(1)], 0.5, r"`s` must be at least 1, but is 0\.5"),
    ],
)
def test_default_that_is_no_value_is_refused(kind: object, given: object, text: str) -> None:
    with pytest.raises(NativeOpsError, match=f"scaled: {text}"):
        read(with_default(kind, given))


def test_required_input_stands_before_what_may_be_none() -> None:
    def late(
        x: Float[Array, "n"], w: Float[Array, "n"] | None = None, *, y: Float[Array, "n"]
    ) -> Float[Array, "n"]:
        return x

    with pytest.raises(TypeError, match="late: put `y` before `w`"):
        read(late)


def test_sums_need_floats_that_are_always_there() -> None:
    def few(n: Int32[Array, "n"], x: Float[Array, "n"] | None = None) -> Accum[Array, "n"]:
        return n

    with pytest.raises(TypeError, match=r"few: `out` is Accum.* no required input is Float"):
        read(few)


def test_kind_of_a_result_is_that_of_an_input_that_is_always_there() -> None:
    def best(x: Float[Array, "n"], n: Int[Array, "n"] | None = None) -> Int[Array, ""]:
        return x.argmax()

    with pytest.raises(TypeError, match=r"best: `out` is Int, but no .* write Int32 or Int64"):
        read(best)


def test_starred_arguments_are_refused() -> None:
    def many(*x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x[0]

    with pytest.raises(TypeError, match="many: `x` must be one argument, without a star"):
        read(many)


def test_leading_axes_have_one_name() -> None:
    def two(x: Float[Array, "*b n"], y: Float[Array, "*c n"]) -> Float[Array, "*b n"]:
        return x + y

    with pytest.raises(TypeError, match=r"two: `\*b` and `\*c` are the same leading axes"):
        read(two)

    def none(x: Float[Array, "* n"]) -> Float[Array, "* n"]:
        return x

    with pytest.raises(ValueError, match="need a name"):
        read(none)


@pytest.mark.parametrize("item", ["n", (Array, 3), (Array, "n", "d")])
def test_kind_is_given_an_array_and_its_axes(item: object) -> None:
    with pytest.raises(TypeError, match=r'write Float\[Array, "n d"\]'):
        Float[item]  # type: ignore[index]


def test_none_may_come_first() -> None:
    def either(
        x: Float[Array, "n"],
        y: None | Float[Array, "n"] = None,  # noqa: RUF036
    ) -> Float[Array, "n"]:
        return x

    assert read(either).inputs[1].optional


def deep(levels: int) -> Signature:
    axis = "n"
    for _ in range(levels):
        axis = f"1+({axis})"
    return Signature("deep", (array_spec("x", "Float", "n"),), (array_spec("out", "Float", axis),))


def arrays(count: int, axes: str = "n") -> tuple[ArraySpec, ...]:
    return tuple(array_spec(f"x{i}", "Float", axes) for i in range(count))


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (deep(16), "17 numbers at a time in .*, but at most 16"),
        (Signature("deep", arrays(40), arrays(9)), "49 arrays, but at most 48"),
        (Signature("deep", (), arrays(33)), "33 results, but at most 32"),
        (
            Signature("deep", (), (), tuple(AttributeSpec(f"a{i}", float) for i in range(17))),
            "17 attributes, but at most 16",
        ),
        (
            Signature("deep", arrays(1, " ".join(f"n{i}" for i in range(49))), ()),
            "49 names of sizes, but at most 48",
        ),
    ],
)
def test_what_the_core_has_no_room_for_is_refused(signature: Signature, text: str) -> None:
    with pytest.raises(TypeError, match=f"deep: {text}"):
        signature.check_limits()
    deep(15).check_limits()
    Signature("deep", arrays(16), arrays(32)).check_limits()


def test_axis_divided_by_zero_is_told() -> None:
    def pieces(x: Float[Array, "n"], *, s: int) -> Float[Array, "n//s+1"]:
        return x

    with pytest.raises(ShapeError, match=r"axis `n//s\+1` would be divided by 0"):
        read(pieces).solve([Given("x", "float32", (4,), "")], {"s": 0})


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        ("b,n", "`b,n` is not a size: separate axes by spaces, not by commas: `b n`"),
        ("b, n", "`b,` is not a size: separate axes by spaces"),
        ("max(n, 2)", r"`max\(n,` is not a size: write it without spaces, as in `max\(t-k,0\)`"),
        ("b class", "`class` is not a size: it is a word of Python"),
        ("n-", r"`n-` is not a size: use names, numbers, \+ - \*"),
        ("*a *b n", r"only the first axis of `\*a \*b n` may have a star"),
        ("* n", r"the leading axes of `\* n` need a name"),
    ],
)
def test_axes_that_are_none_are_told_with_op_and_argument(axes: str, text: str) -> None:
    def of_input(x: Float[Array, "n"], y: Float[Array, axes]) -> Float[Array, "n"]: ...

    def of_result(x: Float[Array, "n"]) -> Float[Array, axes]: ...

    for function, name in ((of_input, "y"), (of_result, "out")):
        with pytest.raises(ValueError, match=f"^{function.__name__}: `{name}`: {text}"):
            read(function)


def test_argument_may_not_have_the_name_of_the_only_result() -> None:
    def attribute(x: Float[Array, "n"], *, out: int = 1) -> Float[Array, "n"]: ...

    def taken(out: Float[Array, "n"]) -> Float[Array, "n"]: ...

    def right(out: Float[Array, "*b n"]) -> Two: ...

    refuses("attribute: `out` is an attribute, and what the only result is called", attribute)
    refuses("taken: `out` is an input, and what the only result is called", taken)
    assert read(right).inputs[0].name == "out"


@pytest.mark.parametrize("name", ["double", "register"])
def test_word_of_cpp_is_no_name_of_an_op(name: str) -> None:
    def function(x: Float[Array, "n"]) -> Float[Array, "n"]: ...

    function.__name__ = name
    with pytest.raises(TypeError, match=f"{name}: that is a word of C\\+\\+"):
        op(kernel="k.h")(function)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda op, f: op(f), "f: `@op` stands without the name of its kernel"),
        (lambda op, f: op()(f), "op: missing a required .*'kernel'"),
        (lambda op, f: op("k.h")(f), "op: too many positional arguments"),
        (lambda op, f: op(kernel="k.h", differentiable=True)(f), "unexpected .*'differentiable'"),
    ],
    ids=["without brackets", "without a kernel", "in place", "unknown keyword"],
)
def test_wrong_use_of_op_says_what_to_write(use: Callable[..., Any], text: str) -> None:
    def f(x: Float[Array, "n"]) -> Float[Array, "n"]: ...

    with pytest.raises(ArgumentError, match=text) as caught:
        use(op, f)
    assert 'write `@op(kernel="NAME.h")`' in str(caught.value)
    assert "`independent`" in str(caught.value)
