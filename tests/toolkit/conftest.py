# SPDX-License-Identifier: Apache-2.0
"""Compile the C++ tests of the toolkit, each once for all processes of a session."""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SRC = HERE.parent.parent / "src"
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(shared_folder: Path) -> Build:
    """`build("loops.cpp", "-O2")`: the path of the program."""

    def compile_once(source: str, *flags: str) -> Path:
        key = hashlib.sha256(repr((source, flags)).encode()).hexdigest()[:16]
        program = shared_folder / f"{Path(source).stem}_{key}"
        with program.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                _compile(HERE / source, flags, program)
        return program

    return compile_once


def _compile(source: Path, flags: tuple[str, ...], program: Path) -> None:
    assert shutil.which("g++"), "these tests need g++"
    unfinished = program.with_suffix(".part")
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror"]
    command += [*flags, f"-I{SRC}", str(source), "-o", str(unfinished), "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    unfinished.rename(program)
