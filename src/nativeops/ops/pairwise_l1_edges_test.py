# SPDX-License-Identifier: Apache-2.0
"""pairwise_l1 at the edges: equal numbers at which much more arrives than at the others."""

import numpy as np
import pytest

from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.aspects import levels, selected

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("weight", [1.0, 1e4, 1e8, 1e20])
def test_equal_numbers_hide_nothing_whatever_arrives_there(weight: float, level: str) -> None:
    """As many rows as are compared by ranks, which mend equal numbers afterwards."""
    n, d = (2400, 256) if level == levels()[-1] else (60, 40)
    x, y = normal(n, d), normal(n, d)
    y[7] = x[5]
    y[9, 3] = x[11, 3]
    d_out = normal(n, n)
    d_out[5, 7], d_out[11, 9] = weight, -weight
    with selected(level):
        d_x, d_y = pairwise_l1_grad(x, y, d_out)
    for found, one, other, arriving, row in ((d_x, x, y, d_out, 5), (d_y, y, x, d_out.T, 7)):
        signs = np.sign(one[row].astype("float64") - other)
        np.testing.assert_allclose(found[row], arriving[row].astype("float64") @ signs, atol=1e-3)
