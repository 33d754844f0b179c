# SPDX-License-Identifier: Apache-2.0
"""What the user is told of compilers, and which one is used."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from nativeops import build, compilers, library, user_ops
from nativeops.errors import BuildError

from .an_op import LOOP, declare, libraries, write

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
        (LOOP.format(value="x(i, i)"), "a view takes one index for each of its axes"),
        ("for_each(dev, out, [=] KERNEL(int64_t i, int64_t j) { out(i) = j; });", "no match"),
    ],
    ids=["own line", "static_assert of a header", "template of a header"],
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


def test_without_a_compiler_the_way_out_is_told(tmp_path: Path, no_compiler: None) -> None:
    text = refusal(write(tmp_path))
    assert "there is no C++ compiler" in text
    assert "pip install 'nativeops[compiler]'" in text


@pytest.mark.parametrize("command", ["/nowhere/g++", "false"])
def test_a_compiler_that_does_not_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CXX", command)
    text = refusal(write(tmp_path))
    assert command in text
    assert "CXX" in text


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


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="ziglang is not installed")
def test_ziglang_compiles_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ziglang" in compilers.cpp_compiler()
    assert declare(write(tmp_path))(np.ones(2)).tolist() == [2, 2]


@pytest.mark.slow
@pytest.mark.skipif(not compilers.cuda_compiler(), reason="there is no nvcc")
def test_cuda_kernels_are_a_library_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    monkeypatch.setenv("NATIVEOPS_CUDA", "on")
    monkeypatch.setenv("NATIVEOPS_CUDA_ARCHS", "80-real")
    scaled = declare(write(tmp_path))
    assert scaled(np.ones(2)).tolist() == [2, 2]
    assert len(libraries(kept)) == 2
    path = build.build(scaled, "cuda")
    assert (scaled.name, scaled.built_for) in user_ops._open(path)


def test_without_nvcc_an_array_on_cuda_is_told_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_ops, "cuda_setting", lambda: "auto")
    error = library.missing_kernel(declare(write(tmp_path)), {"Float": "float32"}, "cuda:0")
    assert "nvcc" in str(error)


def test_nvcc_is_found_in_cuda_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text("")
    (tmp_path / "bin/nvcc").chmod(0o755)
    assert compilers.cuda_compiler() == [f"{tmp_path}/bin/nvcc"]
