# SPDX-License-Identifier: Apache-2.0
"""pairwise_l1 at the edges: equal numbers at which much more arrives, few columns and long rows."""

import numpy as np
import pytest

from nativeops.ops.pairwise_l1 import pairwise_l1, pairwise_l1_grad
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


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("n", "m"), [(9, 1), (6, 3), (5, 4), (3, 21), (1, 2)])
def test_rows_of_any_length_against_few_columns_or_some(
    level: str, dtype: str, n: int, m: int
) -> None:
    """Sums are taken in parts; numbers that lie apart are read otherwise than close ones."""
    for d in (1, 31, 32, 33, 70):
        x, y, d_out = normal(2, n, d), normal(2, m, d), normal(2, n, m)
        arrays = [each.astype(dtype) for each in (x, y, d_out)]
        wide = [each.astype("float64") for each in arrays]
        expected = [pairwise_l1.reference(*wide[:2]), *pairwise_l1_grad.reference(*wide)]
        for turned in (False, True):
            given = [np.asfortranarray(each) if turned else each for each in arrays]
            with selected(level):
                found = [pairwise_l1(*given[:2]), *pairwise_l1_grad(*given)]
            for one, other in zip(found, expected, strict=True):
                bound = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}[dtype]
                np.testing.assert_allclose(one, other, rtol=bound, atol=bound * np.abs(other).max())
