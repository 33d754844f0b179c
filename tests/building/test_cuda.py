# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of a user's op: which nvcc builds them, and what is told without any."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from nativeops import build, compilers, library, user_ops
from nativeops.errors import BuildError

from .an_op import declare, libraries, write


@pytest.fixture(autouse=True)
def nothing_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test loads for CUDA is not there for the next."""
    monkeypatch.setattr(user_ops, "_on_cuda", set())


@pytest.fixture
def other_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C++ compiler in nvcc's place: it makes a library for CUDA that nothing can run."""
    flags = ["-std=c++17", "-fPIC", "-shared", "-w"]
    monkeypatch.setattr(build, "cuda_compiler", compilers.cpp_compiler)
    monkeypatch.setattr(build, "cuda_flags", lambda: flags)


def program(path: Path) -> str:
    """A file that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return str(path)


def test_nvcc_is_found_in_cuda_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = program(tmp_path / "bin/nvcc")
    assert compilers.cuda_compiler() == [found]


def test_nvcc_of_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "own"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    program(tmp_path / "bin/nvcc")
    first = program(tmp_path / "own/nvcc")
    assert compilers.cuda_compiler() == [first]


def test_nvcc_is_found_in_the_package_of_pypi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site [3]"), *sys.path])
    plain = tmp_path / "site [3]/nvidia/cu12/bin/nvcc"  # not one that can be run
    plain.parent.mkdir(parents=True)
    plain.write_text("")
    found = program(tmp_path / "site [3]/nvidia/cu13/bin/nvcc")
    assert compilers.cuda_compiler() == [found]


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: None
) -> None:
    monkeypatch.setenv("NATIVEOPS_CUDA", "auto")
    error = library.missing_kernel(declare(write(tmp_path)), {"Float": "float32"}, "cuda:0")
    assert "nvcc was not found" in str(error)
    assert "pip install nvidia-cuda-nvcc" in str(error)


def test_nvcc_is_not_missed_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_nvcc: None
) -> None:
    monkeypatch.setattr(user_ops, "cuda_compiler", compilers.cpp_compiler)
    monkeypatch.setattr(user_ops, "cuda_driver", lambda: False)
    monkeypatch.setenv("NATIVEOPS_CUDA", "auto")
    scaled = declare(write(tmp_path))
    scaled(np.ones(2))
    error = library.missing_kernel(scaled, {"Float": "float64"}, "cuda:0")
    assert "nvcc" not in str(error)
    assert "NATIVEOPS_CUDA=on" in str(error)


@pytest.mark.parametrize("setting", ["on", "off"])
def test_jax_asks_for_the_users_cuda_library_and_not_for_that_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_nvcc: None, setting: str
) -> None:
    jax = pytest.importorskip("jax")
    importlib.import_module("nativeops.frameworks.jax")  # loads the kernels that are really there
    of_package = [Path("libnativeops_cuda.so")] if setting == "off" else []
    monkeypatch.setattr(library, "kernel_libraries", lambda: of_package)
    monkeypatch.setenv("NATIVEOPS_CUDA", setting)
    traced = jax.jit(declare(write(tmp_path))).trace(jax.numpy.ones(2))
    if setting == "on":
        assert "nativeops" in traced.lower(lowering_platforms=("cuda",)).as_text()
    else:
        with pytest.raises(BuildError, match="NATIVEOPS_CUDA is off"):
            traced.lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("name", ["o'neil", "a,b", 'a"b'])
def test_folder_whose_name_nvcc_cannot_take_is_named(
    tmp_path: Path, other_nvcc: None, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with pytest.raises(BuildError) as caught:
        build.build(declare(write(folder)), "cuda")
    assert f"scaled: nvcc cannot read {folder}, as there is" in str(caught.value)


def test_cache_whose_name_nvcc_cannot_take_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_nvcc: None
) -> None:
    monkeypatch.setenv("NATIVEOPS_CACHE", str(tmp_path / "c$y"))
    with pytest.raises(BuildError, match=r"(?s)nvcc cannot read .*c\$y.*hint: put the op, .*CACHE"):
        build.build(declare(write(tmp_path)), "cuda")
