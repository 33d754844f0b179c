# SPDX-License-Identifier: Apache-2.0
"""The recogniser trained by several processes: the same losses as by one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parent.parent / "examples/train_ddp.py"
SIZES = ["--steps", "8", "--batch", "8", "--hidden", "16"]
TOGETHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def losses(launcher: list[str], *options: str) -> list[float]:
    command = [sys.executable, *launcher, str(EXAMPLE), *SIZES, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", done.stdout, re.M)]


@pytest.mark.slow
def test_two_processes_train_to_the_losses_and_parameters_of_one(tmp_path: Path) -> None:
    import torch

    one = losses([], "--save", str(tmp_path / "one.pt"))
    two = losses(TOGETHER, "--save", str(tmp_path / "two.pt"))
    assert len(one) == len(two) == 8
    assert one[-1] < one[0]
    assert two == pytest.approx(one, rel=1e-5)
    parameters = [torch.load(tmp_path / name, weights_only=True) for name in ("one.pt", "two.pt")]
    for ours, theirs in zip(*(each.values() for each in parameters), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    command = [sys.executable, *TOGETHER, str(EXAMPLE), "--batch", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert "--batch must be a multiple of the 2 processes" in done.stderr
