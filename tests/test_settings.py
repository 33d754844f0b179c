# SPDX-License-Identifier: Apache-2.0
"""Settings of the environment and of a program, in processes of their own: who wins, and when."""

import os
import subprocess
import sys

import numpy as np
import pytest

import nativeops
from nativeops.errors import RangeError

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


@pytest.mark.parametrize("number", [0, -1, 1025, 2.5, "2", None, int, np.array(2.5)])
def test_number_of_threads_is_an_integer_in_its_range(number: object) -> None:
    with pytest.raises(RangeError, match="set_num_threads: `n` must be from 1 to 1024, but is"):
        nativeops.set_num_threads(number)  # type: ignore[arg-type]
    before = nativeops.get_num_threads()
    nativeops.set_num_threads(np.int64(before))  # type: ignore[arg-type]
    assert nativeops.get_num_threads() == before
