# SPDX-License-Identifier: Apache-2.0
"""What the user is told of compilers, and which one is used."""

import importlib.util
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from nativeops import compilers, library, registry
from nativeops.complaints import complaints
from nativeops.declare import Array, Float, Float64, op
from nativeops.errors import BuildError

from .an_op import HEADER, LOOP, declare, libraries, write

PACKAGE = str(Path(library.__file__).parent)


def refusal(header: Path) -> str:
    """What the error says when the op is first called."""
    with pytest.raises(BuildError) as caught:
        declare(header)(np.ones(2))
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (LOOP.format(value="2 * y(i)"), "'y' was not declared"),
        ("gemm(dev, x, x, out);", '#include "nativeops/devices/gemm.h"'),
        (LOOP.format(value="x(i, i)"), "a view takes one index for each of its axes"),
        ("for_each(dev, out, [=] KERNEL(int64_t i, int64_t j) { out(i) = j; });", "no match"),
        ("fill(dev, out, [=] KERNEL(int64_t i) { if (i > 0) return x(i); });", "end of non-void"),
    ],
    ids=[
        "own line",
        "a header is missing",
        "static_assert of a header",
        "template of a header",
        "a return is missing",
    ],
)
def test_error_of_the_compiler_is_told_at_the_users_line(
    tmp_path: Path, body: str, line: str
) -> None:
    header = write(tmp_path, body=body)
    text = refusal(header)
    assert f"{header}:6:" in text
    assert line in text
    assert PACKAGE not in text, "our own files are no business of the user's"
    assert ".building" not in text
    assert len(text.splitlines()) < 12
    assert f"mend {header}" in text


NARROW = HEADER.replace("scaled", "narrow")
EACH = "for_each(dev, out, [=] KERNEL(int64_t i) {{ {} }});"


@pytest.mark.parametrize(
    ("body", "way_out"),
    [
        ("fill(dev, out, [=] KERNEL(int64_t i) { T(x(i)); });", "must return the value of an el"),
        (EACH.format("out(i) = 2 * Accum<T>(x(i));"), "write `T(value)`"),
        (EACH.format("out(i) += x(i);"), "compute in `Accum<T>`"),
        (EACH.format("T half = 0.5f * Accum<T>(x(i)); out(i) = half;"), "write `T(value)`"),
        (EACH.format("out(i) = x[i];"), "a view takes all its indices at once: `x(b, i)`"),
    ],
    ids=["no value", "assigned", "added", "begun with", "brackets"],
)
def test_way_out_is_told_of_what_beginners_write(tmp_path: Path, body: str, way_out: str) -> None:
    header = tmp_path / "narrow.h"
    header.write_text(NARROW.format(body=body))
    registry._OPS.pop("narrow", None)

    @op(kernel=str(header))
    def narrow(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    with pytest.raises(BuildError) as caught:
        narrow(np.ones(2))
    first, *lines = str(caught.value).splitlines()[1:-1]
    assert f"{header}:6:" in first
    assert way_out in lines[-1]


# As nvcc 12 says it; {} is the user's file.
CLOSURE = (
    '/x/devices/cuda/loops.h(30): error: The closure type for a lambda ("lambda [](int64_t)'
    '->float", defined at {}:7) cannot be used in the template argument type of a __global__ '
    "function template instantiation, unless the lambda is defined within a __device__ function"
)
HOST = '{}(7): error: calling a __host__ function("NAME") from a __device__ function is not allowed'


@pytest.mark.parametrize(
    ("said", "way_out"),
    [
        (CLOSURE, "write `[=] KERNEL(...)`"),
        (
            "{}(7): error: An extended __device__ lambda cannot capture variables by reference",
            "write `[=] KERNEL(...)`",
        ),
        (HOST.replace("NAME", "std::vector<float>::vector()"), "no containers or str"),
        (HOST.replace("NAME", "mine(float)"), "write `HOST_DEVICE`"),
    ],
    ids=["no KERNEL", "by reference", "containers", "own function"],
)
def test_way_out_is_told_of_what_nvcc_refuses(tmp_path: Path, said: str, way_out: str) -> None:
    header = tmp_path / "own.h"
    header.touch()
    [text] = complaints(said.format(header), [header])
    assert text.startswith(f"{header}:7: error: ")
    assert "unless" not in text
    assert way_out in text.splitlines()[-1]


def test_kernel_that_should_return_a_number_is_refused(tmp_path: Path) -> None:
    header = write(tmp_path)
    header.write_text(header.read_text().replace("void scaled", "int scaled"))
    assert "no return statement in function returning non-void" in refusal(header)


def test_debug_shows_all_that_the_compiler_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    header = write(tmp_path, body="for_each(dev, out, [=] KERNEL(int64_t i, int64_t j) {});")
    monkeypatch.setenv("NATIVEOPS_DEBUG", "1")
    refusal(header)
    shown = capfd.readouterr().err
    assert "-std=c++17" in shown
    assert PACKAGE in shown


def test_error_in_a_header_of_the_kernel_is_told_there(tmp_path: Path) -> None:
    header = write(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/half.h").write_text("#pragma once\nint wrong = ;\n")
    header.write_text('#include "parts/half.h"\n' + header.read_text())
    assert f"{tmp_path}/parts/half.h:2:" in refusal(header)


def test_place_is_told_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "my op (1)" / "x(2)y"
    folder.mkdir(parents=True)
    header = write(folder, value="flot(x(i))")
    assert f"{header}:6:" in refusal(header)


@pytest.mark.parametrize("name", ["features.h", "endian.h", "wchar.h"])
def test_a_file_with_the_name_of_one_of_the_systems_disturbs_nobody(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("int this_is_no_header_of_the_system;\n")
    assert declare(write(tmp_path))(np.ones(2)).tolist() == [2, 2]


def test_a_kernel_may_have_the_name_of_one_of_the_systems_files(tmp_path: Path) -> None:
    header = write(tmp_path).rename(tmp_path / "search.h")
    assert declare(header)(np.ones(2)).tolist() == [2, 2]


def test_a_header_may_use_all_of_std_and_names_that_its_library_uses(tmp_path: Path) -> None:
    header = write(tmp_path)
    own = (
        "#include <algorithm>\nusing namespace std;\ninline int multiply(int x) { return 2 * x; }\n"
    )
    header.write_text(own + header.read_text())
    assert declare(header)(np.ones(2)).tolist() == [2, 2]


def test_what_is_no_cpp_is_told_before_what_follows_from_it(tmp_path: Path) -> None:
    header = write(tmp_path)
    header.write_text(header.read_text().replace("}  // namespace nativeops", ""))
    text = refusal(header)
    assert "expected '}'" in text
    assert f"{header}:3:" in text


def test_a_kernel_of_another_name_is_missed(tmp_path: Path) -> None:
    header = write(tmp_path)
    header.write_text(header.read_text().replace("void scaled(", "void scale("))
    assert "there is no kernel `void scaled(...)` in scaled.h" in refusal(header)


def test_kernel_outside_of_the_namespace_is_told_as_that(tmp_path: Path) -> None:
    header = write(tmp_path)
    text = header.read_text().replace("namespace nativeops {", "using namespace nativeops;")
    header.write_text(text.replace("}  // namespace nativeops", ""))
    assert "the kernel `scaled` must be in `namespace nativeops { .. }`" in refusal(header)


def test_a_function_that_is_not_defined_is_told(tmp_path: Path) -> None:
    header = write(tmp_path, value="elsewhere()")
    header.write_text("double elsewhere();\n" + header.read_text())
    text = refusal(header)
    assert "elsewhere" in text
    assert f"define it in {header}" in text


WITH_ATTRIBUTES = """#pragma once
#include "nativeops/devices/kernel.h"
namespace nativeops {{
void of_attributes(Device& dev, InDouble x, OutDouble out, {parameters}) {{
  for_each(dev, out, [=] KERNEL(int64_t i) {{ out(i) = x(i) + {value}; }});
}}
}}  // namespace nativeops
""".replace("InDouble", "In<double, 1>").replace("OutDouble", "Out<double, 1>")


def of_attributes(folder: Path, parameters: str, value: str):
    """An op with an attribute of each type, and its kernel's parameters for them."""
    header = folder / "of_attributes.h"
    header.write_text(WITH_ATTRIBUTES.format(parameters=parameters, value=value))
    registry._OPS.pop("of_attributes", None)

    @op(kernel=str(header))
    def of_attributes(
        x: Float64[Array, "n"],
        *,
        k: int = 3,
        scale: float = 0.5,
        up: bool = True,
        how: Literal["it's", 'a "b"', "c\\d", "é"] = 'a "b"',
    ) -> Float64[Array, "n"]:
        return x + k + 100 * scale + 10000 * up

    return of_attributes


SUM = "k + 100 * scale + 10000 * up + 100000 * how"


@pytest.mark.parametrize(
    "parameters",
    [
        "int64_t k, double scale, bool up, int64_t how",
        "const int64_t& k, double scale, const bool up, int64_t how",
        "long long k, float scale, bool up, int64_t how",
    ],
)
def test_kernel_may_take_attributes_as_what_holds_them(tmp_path: Path, parameters: str) -> None:
    made = of_attributes(tmp_path, parameters, SUM)
    assert made(np.zeros(1)).tolist() == [110053]
    assert made(np.zeros(1), k=2**40, up=False, how="é").tolist() == [2**40 + 300050]


@pytest.mark.parametrize(
    "parameters",
    [
        "double scale, int64_t k, bool up, int64_t how",
        "int k, double scale, bool up, int64_t how",
        "bool k, double scale, bool up, int64_t how",
        "uint64_t k, double scale, bool up, int64_t how",
        "int64_t k, int64_t scale, bool up, int64_t how",
        "int64_t k, double scale, int64_t up, int64_t how",
        "int64_t k, double scale, bool up, double how",
    ],
)
def test_kernel_that_takes_attributes_as_something_else_is_refused(
    tmp_path: Path, parameters: str
) -> None:
    with pytest.raises(BuildError, match="does not take what its declaration says") as caught:
        of_attributes(tmp_path, parameters, SUM)(np.zeros(1))
    assert "int64_t k, double scale, bool up, int64_t how" in str(caught.value)


def test_without_a_compiler_the_way_out_is_told(tmp_path: Path, no_compiler: None) -> None:
    text = refusal(write(tmp_path))
    assert "there is no C++ compiler" in text
    assert "pip install 'nativeops[compiler]'" in text


@pytest.mark.parametrize("command", ["/nowhere/g++", "false", 'g++ "-O1'])
def test_a_compiler_that_does_not_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CXX", command)
    text = refusal(write(tmp_path))
    assert command in text
    assert "CXX" in text


@pytest.mark.parametrize(
    "said",
    [
        "/usr/include/c++/12/cstdint:38:10: fatal error: bits/c++config.h: No such file",
        "cat: unrecognized option '-std=c++17'",
    ],
)
def test_error_outside_of_the_kernel_does_not_blame_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo one && exit 0\necho "{said}" >&2; exit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    text = refusal(write(tmp_path))
    assert said.rpartition("error: ")[2] in text
    assert "hint: look at CXX" in text


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("kill -9 $$", "ended with status -9"),
        ("exit 0", "ended with status 0"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1", "Killed"),
        ("echo 'cannot close file: No space left on device' >&2; exit 1", "No space left"),
        (
            "echo 'File size limit exceeded\nSee bugs.' >&2; exit 1",
            "work: File size limit exceeded.",
        ),
    ],
)
def test_compiler_that_lacks_something_does_not_blame_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, said: str
) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo one && exit 0\n{ending}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    text = refusal(write(tmp_path))
    assert "could not do its work" in text
    assert said in text
    assert "mend" not in text


def test_disabled_compilation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = write(tmp_path)
    declare(header)(np.ones(2))
    monkeypatch.setenv("NATIVEOPS_DISABLE_JIT", "1")
    text = refusal(header)  # although it is in the cache
    assert "NATIVEOPS_DISABLE_JIT" in text
    assert "nativeops build" in text


def test_cxx_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    log = tmp_path / "log"
    own = tmp_path / "my-compiler"
    own.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("g++")} "$@"\n')
    own.chmod(0o755)
    monkeypatch.setenv("CXX", f"{own} -DMINE=3")
    assert declare(write(tmp_path, "MINE * x(i)"))(np.ones(2)).tolist() == [3, 3]
    assert "-DMINE=3" in log.read_text()
    (first,) = libraries(kept)
    monkeypatch.setenv("CXX", f"{own} -DMINE=4")
    assert declare(tmp_path / "scaled.h")(np.ones(2)).tolist() == [4, 4]
    assert len(libraries(kept)) == 2
    assert first.exists()


@pytest.mark.parametrize(
    ("says", "flags"),
    [
        ("g++ (Debian 12.2.0) 12.2.0, (C) 2022 Free Software Foundation, Inc.", 1),
        ("Debian clang version 14.0.6", 0),
    ],
)
def test_what_only_gcc_knows_is_told_to_gcc_alone(tmp_path: Path, says: str, flags: int) -> None:
    own = tmp_path / "compiler"
    own.write_text(f"#!/bin/sh\necho '{says}'\n")
    own.chmod(0o755)
    assert len(compilers.quick_flags([str(own)])) == flags


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="ziglang is not installed")
def test_ziglang_compiles_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ziglang" in compilers.cpp_compiler()
    assert declare(write(tmp_path))(np.ones(2)).tolist() == [2, 2]
