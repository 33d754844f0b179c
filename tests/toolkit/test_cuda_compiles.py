# SPDX-License-Identifier: Apache-2.0
"""What runs on the CPU compiles for CUDA: every loop shape and op, without a warning."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SRC = HERE.parent.parent / "src"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not installed")
def test_every_shape_compiles_for_old_and_new_gpus(tmp_path: Path) -> None:
    command = ["nvcc", "-std=c++17", "--extended-lambda", "-Werror", "all-warnings", f"-I{SRC}"]
    command += ["-gencode", "arch=compute_75,code=[sm_75,sm_90]", "--threads", "2"]
    command += ["-c", str(HERE / "shapes.cu"), "-o", str(tmp_path / "shapes.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
