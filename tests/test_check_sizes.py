# SPDX-License-Identifier: Apache-2.0
"""`nativeops check` of ops that take large sizes only, and what it says of right numbers."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

pytest.importorskip("typer")
from nativeops.checking import child
from nativeops.checking.finding import Unchecked
from nativeops.checking.races import Log
from nativeops.declare import Array, AtLeast, AtMost, Float, Float32, Int, op
from nativeops.testing import Case, cases
from nativeops.testing.draw import MOST, all_attributes, base_sizes, large_sizes

sys.path.insert(0, str(Path(__file__).resolve().parent))
from checks import findings, verdict

KERNEL = """#include "nativeops/devices/kernel.h"
namespace nativeops {
template <class T>
void own(Device& dev, In<T, 1> x, Out<T, 1> out) {
  fill(dev, out, [=] KERNEL(int64_t i) { return VALUE; });
}
}  // namespace nativeops
"""
DECLARED = '''import numpy as np
from nativeops.declare import Array, Float, op


@op(kernel="own.h")
def own(x: Float[Array, "n"]) -> Float[Array, "SIZE"]:
    """VALUE."""
    return VALUE
'''


def written(folder: Path, kernel: str, value: str, size: str = "n") -> Path:
    """A file with an op of one input, and its kernel, which gives `kernel` for an element."""
    (folder / "own.h").write_text(KERNEL.replace("VALUE", kernel))
    file = folder / "own.py"
    file.write_text(DECLARED.replace("VALUE", value).replace("SIZE", size))
    return file


def frames(x: Float[Array, "*b t"]) -> Float[Array, "*b (t-400)//160+1 400"]:
    return x


def two_far(x: Float[Array, "n m"], y: Float[Array, "n-100 m-9"]) -> Float[Array, "n m"]:
    return x


def far(x: Float[Array, "*b n"]) -> Float[Array, "*b n-100"]:
    return x


def never(x: Float[Array, "*b n"]) -> Float[Array, "*b 0-n-1"]:
    return x


@pytest.mark.parametrize(
    ("declared", "sizes", "large"),
    [
        (far, {"n": 160}, {"n": 134}),
        (frames, {"t": 640}, {"t": 536}),
        (two_far, {"n": 160, "m": 96}, {"n": 134, "m": 130}),
        (never, {"n": 5}, {"n": 67}),
    ],
)
def test_sizes_grow_until_they_fit_the_declaration(declared, sizes, large):
    made = op(kernel="none_is_needed.h")(declared)
    assert base_sizes(made) == sizes
    assert large_sizes(made) == large
    drawn = list(cases(made))
    assert bool(drawn) == (declared is not never)
    if declared is far:
        assert {c.sizes["n"] for c in drawn} >= {100, 101, 160, 134}, "the first that fit, too"


@pytest.mark.parametrize("aspect", [a for a in child.ASPECTS if a not in ("below", "cuda")])
def test_op_that_no_size_fits_is_not_checked_and_says_so(aspect):
    made = op(kernel="none_is_needed.h")(never)
    (step,) = child.steps_of(made, {"aspect": aspect, "framework": "numpy"})
    assert step == Unchecked("never: no size that was tried fits its declaration")


def test_attribute_that_is_a_size_stays_below_what_an_array_may_hold():
    def one_hot(
        labels: Int[Array, "*b"],
        *,
        classes: Annotated[int, AtLeast(1), AtMost(2**28)] = 10,
        other: Annotated[int, AtLeast(1), AtMost(2**28)] = 3,
    ) -> Float32[Array, "*b classes"]:
        return labels

    made = op(kernel="none_is_needed.h")(one_hot)
    assert max(each["classes"] for each in all_attributes(made)) < MOST
    assert max(each["other"] for each in all_attributes(made)) == 2**28, "it is no size"
    assert max(case.attributes["classes"] for case in cases(made)) < MOST


@pytest.mark.parametrize(("factor", "bug"), [(2, None), (3, "wrong values")])
def test_op_of_large_sizes_alone_is_checked(tmp_path, factor, bug):
    kernel = f"{factor} * Accum<T>(x(i + 100))"
    file = written(tmp_path, kernel, "2 * x[100:]", "n-100")
    options = ("--only", "values", "--only", "races", "--only", "threads", "--only", "memory")
    done = verdict(tmp_path / "cache", tmp_path, file, *options)
    assert {each["bug"] for each in findings(done) if each["aspect"] == "values"} == {bug} - {None}
    assert done["code"] == (bug is not None), done["text"]
    assert "nothing to check" not in done["text"]


def test_definition_that_makes_much_of_rounding_is_right(tmp_path):
    file = written(tmp_path, "exp(Accum<T>(10) * Accum<T>(x(i)))", "np.exp(10 * x)")
    done = verdict(tmp_path / "cache", tmp_path, file, "--only", "values", "--only", "memory")
    assert not findings(done)


@pytest.mark.parametrize(
    ("kernel", "value"),
    [
        ("exp(Accum<T>(10.001) * Accum<T>(x(i)))", "np.exp(10 * x)"),
        ("Accum<T>(x(i)) > Accum<T>(0.5) ? 1 : 0", "1.0 * (x > 0.25)"),
        ("Accum<T>(x(i)) + (Accum<T>(x(i)) > 2 ? 1 : 0)", "1 * x"),
    ],
    ids=["factor", "bound", "rare"],
)
def test_wrong_numbers_are_not_blamed_on_how_arrays_lie(tmp_path, kernel, value):
    file = written(tmp_path, kernel, value)
    (found,) = findings(verdict(tmp_path / "cache", tmp_path, file, "--only", "values"))
    assert found["bug"] == "wrong values"


def test_jump_is_nothing_that_rounding_may_do():
    def step(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
        return 1.0 * (x > 1)

    made = op(kernel="none_is_needed.h")(step)
    case = next(cases(made))
    vars(case)["values"] = {"x": np.ones((2, 5))}
    spec, found = made.signature.outputs[0], np.zeros((2, 5), np.float32)
    case.check_close(spec, found, "`out`")
    found[0, 0] = 1
    with pytest.raises(AssertionError, match="1 of 10 elements are wrong"):
        case.check_close(spec, found, "`out`")


def test_reports_and_kernels_may_have_any_bytes(tmp_path):
    report = tmp_path / "report"
    report.write_bytes(b"data race in gr\xfc\xdf.h")
    assert re.search("data race in gr..?.h", Log(report).new())
    file = written(tmp_path, "2 * Accum<T>(x(i))", "2 * x")
    header = file.with_suffix(".h")
    header.write_bytes(b"// gr\xfc\xdfe\n" + header.read_bytes())
    options: tuple[Any, ...] = ("--only", "races", "--only", "values")
    assert not findings(verdict(tmp_path / "cache", tmp_path, file, *options))


def _of(made: Any, layout: str) -> Case:
    """The first case of a layout."""
    return next(case for case in cases(made) if case.layout == layout)


def test_cases_of_one_seed_have_the_same_numbers():
    made = op(kernel="none_is_needed.h")(far)
    first, other = (_of(made, layout) for layout in ("contiguous", "transposed"))
    assert first.values["x"].tolist() != other.values["x"].tolist()
    one, same = (replace(each, seed="one") for each in (first, other))
    assert one.values["x"].tolist() == same.values["x"].tolist()
