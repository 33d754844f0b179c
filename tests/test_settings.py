# SPDX-License-Identifier: Apache-2.0
"""Settings of the environment and of a program, in processes of their own: who wins, and when."""

import os
import subprocess
import sys

import pytest

SETTINGS = {"NATIVEOPS_ISA": "portable", "NATIVEOPS_NUM_THREADS": "3"}
FIRST_OP = "nativeops.pairwise_l1(np.ones((1, 2)), np.ones((1, 2)))"


def run(program: str) -> None:
    program = f"import numpy as np\nimport nativeops\nfrom nativeops import library\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **SETTINGS}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", ["", FIRST_OP])
def test_environment_counts_from_the_start(before: str) -> None:
    run(f"{before}\nassert nativeops.get_num_threads() == 3")
    run(f"{before}\nassert library.selected() == 'portable'")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="there is only one instruction set")
def test_what_a_program_sets_is_not_undone_by_its_first_op() -> None:
    set_both = "nativeops.set_num_threads(2)\nlibrary.select('avx2')"
    run(f"{set_both}\n{FIRST_OP}\nassert nativeops.get_num_threads() == 2")
    run(f"{set_both}\n{FIRST_OP}\nassert library.selected() == 'avx2'")
