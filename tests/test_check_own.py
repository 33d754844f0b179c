# SPDX-License-Identifier: Apache-2.0
"""What is wrong beside a kernel is never told as a bug of the kernel: example, reference, rule."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("typer")
from nativeops.checking.faults import fault
from nativeops.declare import Array, Float, Int, op
from nativeops.errors import ShapeError
from nativeops.testing import arguments, cases
from nativeops.testing.returned import OwnError

sys.path.insert(0, str(Path(__file__).resolve().parent))
from checks import command, findings, verdict

KERNEL = """#include "nativeops/devices/kernel.h"
namespace nativeops {
template <class T>
void own(Device& dev, In<T, 2> x, In<T, 2> y, Out<T, 2> out) {
  fill(dev, out, [=] KERNEL(int64_t b, int64_t i) { return x(b, i) + y(b, i); });
}
}  // namespace nativeops
"""
DECLARED = '''from nativeops.declare import Array, Float, op


@op(kernel="own.h")
def own(x: Float[Array, "b n"], y: Float[Array, "b n"]) -> Float[Array, "b n"]:
    """The sum."""
    return x + y


@own.gradient
def _(d_out):
    return d_out, d_out
'''


def own(x: Float[Array, "*b n"], y: Float[Array, "*b n"], *, k: int = 2) -> Float[Array, "*b n"]:
    return x + y


def declared(reference: Callable[..., Any] = own, example: Any = None) -> Any:
    """An op whose kernel no test needs."""
    made = op(kernel="none_is_needed.h")(reference)
    if example:
        made.example(example)
    return made


def written(tmp_path: Path, text: str = DECLARED, kernel: str = KERNEL) -> Path:
    """A file with an op, and its kernel."""
    (tmp_path / "own.h").write_text(kernel)
    file = tmp_path / "own.py"
    file.write_text(text)
    return file


def some(*shape: int) -> Any:
    return np.ones(shape)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda g: None, "the example returns None: return the inputs by name, in a dict"),
        (lambda g: (some(5), some(5)), "the example returns a tuple: return the inputs by name"),
        (lambda g: {"x": some(5)}, "the example lacks `y`"),
        (lambda g: {"x": some(5), "y": None}, "the example gives None for `y`"),
        (lambda g: {"x": some(5), "y": some(5), "z": 1}, "gives `z`, which is no argument"),
        (lambda g: {"x": some(5), "y": some(g["n"] + 1)}, "gives y[6], but [5] was asked for"),
        (lambda g: {"x": some(2, 5), "y": some(5)}, "gives x[2, 5], but [5] was asked for"),
        (lambda g: {"x": some(), "y": some(5)}, "gives x[], but [5] was asked for"),
        (lambda g: {"x": some(5), "y": ["a"] * 5}, "the example gives <U1 for `y` instead of"),
    ],
)
def test_example_that_does_not_fit_is_told(made, said):
    with pytest.raises(OwnError, match=re.escape(said)):
        arguments(declared(example=lambda random, given: made(given)), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"x": some(2, 3, 5), "y": some(2, 3, 5), "k": 2}, ""),
        ({"x": some(2, 3, 5), "y": some(5)}, ""),
        ({"x": some(2, 1, 5), "y": some(3, 5)}, ""),
        ({"x": some(3, 5), "y": some(3, 5)}, "gives x[3, 5], but [2, 3, 5] was asked for"),
        ({"x": some(2, 3, 5), "y": some(2, 5)}, "gives y[2, 5], but [2, 3, 5] was asked for"),
        ({"x": some(2, 3, 5), "y": some(1, 2, 3, 5)}, "gives y[1, 2, 3, 5], but [2, 3, 5] was"),
    ],
)
def test_example_may_leave_leading_axes_to_broadcasting(made, said):
    def draw():
        own = declared(example=lambda random, given: made)
        return arguments(own, np.random.default_rng(0), leads=[(2, 3), (2, 3)])

    if not said:
        assert draw()["x"] is made["x"]
        return
    with pytest.raises(OwnError, match=re.escape(said)):
        draw()


def test_example_that_raises_is_told_with_its_line():
    def example(random, given):
        example.line = inspect.currentframe().f_lineno + 1
        raise ValueError("no such size")

    wrong = declared(example=example)
    with pytest.raises(OwnError) as raised:
        arguments(wrong, np.random.default_rng(0))
    found = fault(wrong, raised.value)
    assert (found.bug, found.text) == (
        "the example fails",
        "the example raises ValueError: no such size",
    )
    assert (found.file, found.line) == (__file__, example.line)


class Two(NamedTuple):
    """Two results."""

    first: Float[Array, "b n"]
    place: Int[Array, "b n"]


def two(x: Float[Array, "b n"], index: Int[Array, "b n"]) -> Two:
    return Two(x, index)


def transposed(x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    return x.T


def whole(x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    return x.astype(int)


def narrow(x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    return x.astype(np.float32)


def several(x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    return x, x


def forgetful(x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    x + 1


def one_of_two(x: Float[Array, "b n"], index: Int[Array, "b n"]) -> Two:
    return x


def three_of_two(x: Float[Array, "b n"], index: Int[Array, "b n"]) -> Two:
    return x, x, index


def second_is_wrong(x: Float[Array, "b n"], index: Int[Array, "b n"]) -> Two:
    return Two(x, index[0])


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (two, ""),
        (forgetful, "the reference returns None instead of one array"),
        (several, "the reference returns 2 arrays instead of one array"),
        (whole, "the reference returns int64 instead of floating point numbers"),
        (narrow, "the reference returns float32 instead of float64, to judge kernels by"),
        (transposed, "the reference returns [3, 5] instead of [5, 3]"),
        (one_of_two, "the reference returns one array instead of 2 arrays"),
        (three_of_two, "the reference returns 3 arrays instead of 2 arrays"),
        (second_is_wrong, "the reference returns [3] for `place` instead of [5, 3]"),
    ],
)
def test_reference_that_returns_something_else_is_told_at_its_declaration(reference, said):
    wrong = declared(reference)
    case = next(iter(cases(wrong)))
    if not said:
        assert len(case.reference) == 2
        return
    with pytest.raises(OwnError) as raised:
        _ = case.reference
    found = fault(wrong, raised.value, case)
    assert (found.bug, found.text) == ("the reference is wrong", f"{said} ({case})")
    assert (found.file, found.line) == (__file__, reference.__code__.co_firstlineno)


def test_wrong_example_is_told_once_for_all_aspects(tmp_path):
    text = DECLARED + "\n\n@own.example\ndef _(random, given):\n"
    text += '    x = random.random((given["b"] + 1, given["n"]))\n    return {"x": x, "y": x}\n'
    file = written(tmp_path, text)
    options = ("--only", "values", "--only", "memory", "--only", "gradient")
    said = verdict(tmp_path / "cache", tmp_path, file, *options)
    assert {each["bug"] for each in findings(said)} == {"the example is wrong"}
    assert len(findings(said)) == 3
    line = text.splitlines().index("@own.example") + 1
    words = " ".join(said["text"].split())
    assert f"own.py:{line} own: the example is wrong [memory, values, gradient]" in words
    assert "the example gives x[6, 3], but [5, 3] was asked for" in words
    assert "FAILED, 1 found" in words


def test_wrong_reference_is_no_bug_of_the_kernel_in_any_aspect(tmp_path):
    file = written(tmp_path, DECLARED.replace("return x + y", "x + y"))
    options = ("--only", "values", "--only", "races", "--only", "gradient")
    said = verdict(tmp_path / "cache", tmp_path, file, *options)
    assert {each["bug"] for each in findings(said)} == {"the reference is wrong"}
    assert {each["file"] for each in findings(said)} == {str(file)}


def test_reference_that_writes_to_an_argument_is_told(tmp_path):
    text = DECLARED.replace("return x + y", "x += y; return x")
    file = written(tmp_path, text)
    said = verdict(tmp_path / "cache", tmp_path, file, "--only", "values", "--only", "races")
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "x += y" in each)
    assert {(each["bug"], each["line"]) for each in findings(said)} == {
        ("the reference fails", line)
    }
    assert "read-only" in findings(said)[0]["text"]


def test_reference_that_raises_is_told_in_each_aspect(tmp_path):
    text = DECLARED.replace("return x + y", "return x + z")
    file = written(tmp_path, text)
    options = ("--only", "values", "--only", "races", "--only", "gradient")
    said = verdict(tmp_path / "cache", tmp_path, file, *options)
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "x + z" in each)
    assert {(each["bug"], each["line"]) for each in findings(said)} == {
        ("the reference fails", line)
    }
    assert len(findings(said)) == 3


@pytest.mark.parametrize("word", ["check", "build"])
@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (('kernel="own.h"', 'kernel="other.h"'), "@op", "own: there is no kernel at {}/other.h."),
        (('-> Float[Array, "b n"]', '-> Float[Array, "b m"]'), "@op", "own: nothing tells the"),
        (("@own.gradient", "@own.gradients"), "@own", "cannot be used: AttributeError: "),
        (("return x + y", "return (x + y"), "return", "cannot be used: SyntaxError: "),
        (('"b n"]', '"b,n"]'), "@op", "ValueError: own: `x`: `b,n` is not a size"),
    ],
)
def test_declaration_that_no_call_can_use_is_told_with_its_line(tmp_path, word, change, line, said):
    text = DECLARED.replace(*change)
    file = written(tmp_path, text)
    done = command(tmp_path / "cache", word, file)
    assert (done.returncode, done.stdout) == (2, "")
    assert said.format(tmp_path) in done.stderr
    number = next(i for i, each in enumerate(text.splitlines(), 1) if line in each)
    assert f"{file}:{number}" in done.stderr
    assert "Traceback" not in done.stderr


def test_size_that_nothing_tells_is_an_error_of_the_matrix_as_of_a_call():
    def longer(x: Float[Array, "b n"]) -> Float[Array, "b m"]:
        return x

    with pytest.raises(ShapeError, match="nothing tells the size `m`"):
        next(iter(cases(declared(longer))))


@pytest.mark.parametrize("word", ["check", "build"])
def test_header_in_the_place_of_the_declaration_is_told(tmp_path, word):
    written(tmp_path)
    done = command(tmp_path / "cache", word, tmp_path / "own.h")
    assert (done.returncode, done.stdout) == (2, "")
    assert "own.h declares no ops: give the .py file that does." in done.stderr


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (("void own(", "void owm("), "", "there is no kernel `void own(...)` in own.h"),
        (("y(b, i);", "z(b, i);"), "fill(", "there are no arguments to 'z'"),
        (("Out<T, 2> out", "Out<T, 3> out"), "void own", "does not take what its declaration"),
        (("fill(", "gemm("), "gemm(", 'write `#include "nativeops/devices/gemm.h"`'),
    ],
)
def test_what_a_compiler_refuses_is_told_with_all_that_helps(tmp_path, change, line, said):
    kernel = KERNEL.replace(*change)
    file = written(tmp_path, kernel=kernel)
    done = verdict(tmp_path / "cache", tmp_path, file, "--only", "values")
    (found,) = findings(done)
    assert (found["bug"], found["file"]) == ("the kernel does not compile", str(file)[:-3] + ".h")
    assert said in found["text"]
    assert ("does not take" in said) == ("does not take" in found["text"])
    lines = kernel.splitlines()
    assert found["line"] == next((i for i, each in enumerate(lines, 1) if line and line in each), 1)


@pytest.mark.parametrize(
    ("returns", "word"), [("d_out", "nothing"), ('return {"d_x": d_out, "d_y": d_out}', "a dict")]
)
def test_rule_that_returns_no_gradients_is_told_at_its_line(tmp_path, returns, word):
    pytest.importorskip("torch")
    text = DECLARED.replace("return d_out, d_out", returns)
    file = written(tmp_path, text)
    options = ("--only", "frameworks", "--framework", "torch", "--only", "gradient")
    for found in findings(done := verdict(tmp_path / "cache", tmp_path, file, *options)):
        assert found["bug"] == f"the gradient rule returns {word}", done["text"]
        assert found["line"] == text.splitlines().index("@own.gradient") + 1
        assert "inputs x, y: give one for each, in order." in found["text"]
    assert len(findings(done)) == 2


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("i % 2 == 1", "element (0, 0) of `out` is never written (10 of 15 elements)"),
        ("b < 4", "element (4, 0) of `out` is never written (3 of 15 elements)"),
    ],
)
def test_what_a_kernel_leaves_as_it_was_is_told(tmp_path, condition, said):
    inner = f"if ({condition}) out(b, i) = T(x(b, i) + y(b, i));"
    kernel = KERNEL.replace("return x(b, i) + y(b, i);", inner).replace("fill(", "for_each(")
    file = written(tmp_path, kernel=kernel)
    options = ("--only", "values", "--only", "threads")
    done = verdict(tmp_path / "cache", tmp_path, file, *options)
    assert {each["bug"] for each in findings(done)} == {"a result is not written"}
    assert any(each["text"].startswith(said) for each in findings(done))
