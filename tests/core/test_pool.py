# SPDX-License-Identifier: Apache-2.0
"""The thread pool, on its own: right, free of races, and alive after a fork."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"


def compiled(folder: Path, *flags: str) -> Path:
    program = folder / "pool"
    sources = [str(HERE / "pool.cpp"), str(SRC / "nativeops/devices/cpu/pool.cpp")]
    command = ["g++", "-std=c++17", "-O1", "-g", "-pthread", *flags, f"-I{SRC}", *sources]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def test_pool_runs_each_task_once_also_in_a_forked_child(tmp_path):
    done = subprocess.run(
        [compiled(tmp_path), "fork"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all is true\n"), done.stderr


@pytest.mark.races
def test_pool_has_no_race_under_thread_sanitizer(tmp_path):
    assert shutil.which("setarch"), "setarch is missing: install util-linux"
    program = compiled(tmp_path, "-fsanitize=thread")
    done = subprocess.run(
        ["setarch", "-R", str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all is true\n"), done.stderr
