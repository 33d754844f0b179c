# SPDX-License-Identifier: Apache-2.0
"""segment_sum: what its declaration says, in every framework, and what others say."""

import os

import numpy as np
import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check
from nativeops.testing.aspects import num_threads

OPS = ops_beside(__file__)
segment_sum = OPS["segment_sum"]


# Values against the reference, gradients, strides, sizes, dtypes, threads, wrong arguments.
@pytest.mark.parametrize("name", OPS)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name])


def test_agrees_with_jax_and_its_gradient() -> None:
    jax = pytest.importorskip("jax")
    random = np.random.default_rng(0)
    x = jax.numpy.asarray(random.integers(-8, 9, (5000, 3)), "float32")  # sums are exact
    segment = jax.numpy.asarray(random.integers(0, 40, 5000))
    ours, back = jax.vjp(lambda x: segment_sum(x, segment, count=40), x)
    theirs, their_back = jax.vjp(lambda x: jax.ops.segment_sum(x, segment, 40), x)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(back(ours)[0], their_back(theirs)[0])


# So many rows that they are put in order in several parts, or summed up in that many.
@pytest.mark.parametrize(
    ("width", "count", "parts"),
    [
        *[(1, 7, 8), (2, 390, 8), (3, 391, 4), (4, 781, 4), (4, 782, 2)],  # constant loops
        *[(5, 50000, 2), (5, 50001, 1), (16, 7, 8), (31, 700, 4), (75, 1, 8), (75, 3000, 2)],
        *[(16, 12500, 2), (16, 12501, 1), (32, 12501, 1), (33, 12501, 1)],  # ranges, or in order
        *[(1, 50000, 2), (1, 100000, 1), (3, 100000, 1)],
        *[(300, 12000, 2), (310, 12000, 1)],  # 28 MB of sums, and more
        *[(100, 700, 4), (170, 390, 8)],  # the result's memory holds the first part's
    ],
)
def test_rows_of_a_segment_are_added_in_their_order(width: int, count: int, parts: int) -> None:
    random, rows = np.random.default_rng(count), 50000
    x = random.standard_normal((rows, width)).astype(np.float32)
    segment = random.integers(0, count, rows)
    if os.environ.get("NATIVEOPS_ISA") == "portable":
        parts = 1
    expected = np.zeros((parts, count, width), np.float32)
    np.add.at(expected, (np.arange(1, rows + 1) * parts // (rows + 1), segment), x)  # in float32
    for part in expected[1:]:
        expected[0] += part
    assert np.array_equal(segment_sum(x, segment, count=count), expected[0])


def test_strided_arrays_are_added_up_in_the_same_order() -> None:
    random = np.random.default_rng(0)
    x, segment = random.standard_normal((30000, 60)).astype(np.float32), np.arange(30000) % 3000
    for count in (3000, 20000):  # in parts, and by ranges
        expected = segment_sum(x[:, :30].copy(), segment, count=count)
        out = np.zeros((count, 60), np.float32)
        segment_sum(x[:, :30], segment, count=count, out=out[:, ::2])
        assert np.array_equal(out[:, ::2], expected)
        assert not out[:, 1::2].any()


def test_any_number_of_threads_gives_the_same_bits() -> None:
    random = np.random.default_rng(0)
    x, segment = random.standard_normal((30000, 7)), random.integers(-5, 40000, 30000)
    found = []
    for threads in (1, 2, 3, 5):
        with num_threads(threads):
            found.append(segment_sum(x, segment, count=39990))
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_rows_of_no_segment_take_no_part() -> None:
    x, segment = np.ones((6, 2)), np.array([-1, 0, 3, 1 << 40, -(1 << 40), 2])
    assert segment_sum(x, segment, count=3).tolist() == [[1, 1], [0, 0], [1, 1]]
    assert OPS["segment_spread"](np.ones((3, 1)), segment)[:, 0].tolist() == [0, 1, 0, 0, 0, 1]
