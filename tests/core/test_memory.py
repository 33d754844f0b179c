# SPDX-License-Identifier: Apache-2.0
"""The memory of workspaces: lent again, bounded, free of races, and alive after a fork."""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"


def run(folder: Path, *arguments: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    program = folder / "memory"
    sources = [str(HERE / "memory.cpp"), str(SRC / "nativeops/bindings/memory.cpp")]
    command = ["g++", "-std=c++17", "-O1", "-g", "-pthread", *flags, f"-I{SRC}", *sources]
    subprocess.run([*command, "-o", str(program)], check=True)
    done = subprocess.run(
        ["setarch", "-R", str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_memory_is_lent_again_and_bounded_also_in_a_forked_child(tmp_path):
    status, text, errors = run(tmp_path, "all")
    assert (status, text) == (0, "all is true\n"), errors


@pytest.mark.races
def test_memory_has_no_race_under_thread_sanitizer(tmp_path):
    status, text, errors = run(tmp_path, flags=("-fsanitize=thread",))
    assert (status, text) == (0, "all is true\n"), errors
