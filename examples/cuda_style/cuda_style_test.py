# SPDX-License-Identifier: Apache-2.0
"""Text for CUDA does on the CPU what it does on a GPU."""

import numpy as np
import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check

OPS = ops_beside(__file__)
SAME_EVERY_TIME = [name for name in OPS if name != "total_raw"]


@pytest.mark.parametrize("name", SAME_EVERY_TIME)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name], "numpy")


# `check` would demand the same bits for any number of threads, which an atomic sum cannot give.
@pytest.mark.parametrize("n", [0, 1, 1000, 3_000_000])
def test_atomic_sum_is_right_within_its_rounding(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
    found = OPS["total_raw"](x)
    assert abs(found - x.sum(dtype=np.float64)) <= 1e-4 * max(1.0, np.sqrt(n))


def test_atomic_sum_of_whole_numbers_is_exact() -> None:
    x = np.random.default_rng(0).integers(-3, 4, 1_000_003).astype(np.float32)
    assert OPS["total_raw"](x) == OPS["total_team"](x) == x.sum()
