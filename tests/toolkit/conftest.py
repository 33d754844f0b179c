# SPDX-License-Identifier: Apache-2.0
"""Compile the C++ tests of the toolkit, each once per session."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SRC = HERE.parent.parent / "src"
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`build("loops.cpp", "-O2")`: the path of the program."""
    folder = tmp_path_factory.mktemp("toolkit")
    built: dict[tuple[str, ...], Path] = {}

    def compile_once(source: str, *flags: str) -> Path:
        key = (source, *flags)
        if key not in built:
            assert shutil.which("g++"), "these tests need g++"
            program = folder / f"{Path(source).stem}_{len(built)}"
            command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror"]
            command += [*flags, f"-I{SRC}", str(HERE / source), "-o", str(program), "-pthread"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:4000]
            built[key] = program
        return built[key]

    return compile_once
