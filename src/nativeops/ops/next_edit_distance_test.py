# SPDX-License-Identifier: Apache-2.0
"""Edit distances step by step: they must lead to those of whole sequences."""

import numpy as np
import pytest

from nativeops import (
    NativeOpsError,
    edit_distance,
    next_edit_distance_reduce,
    next_edit_distance_row,
    optimal_completion_edit_distance,
    optimal_completion_edit_distance_per_successor,
)
from nativeops.testing.aspects import levels, num_threads, selected

B, TA, TB, KINDS = 13, 12, 17, 4


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    a, b = random.integers(0, KINDS, (B, TA)), random.integers(0, KINDS, (B, TB))
    n = random.integers(0, TA + 1, B).astype(np.int32)
    m = random.integers(0, TB + 1, B).astype(np.int32)
    n[:2], m[1:3] = 0, 0
    return a, b, n, m


def walked(a, b, n, m, steps=TA):
    """The rows after some steps; first those of nothing, which end with b's length."""
    row = np.minimum(np.arange(b.shape[1] + 1), m[:, None]).astype(np.int32)
    for i in range(steps):
        ended = (i >= n).astype(np.int32)
        row = next_edit_distance_row(row, a[:, i], np.full(B, i, np.int32), ended, b, m)
    return row


@pytest.mark.parametrize("level", levels())
def test_last_entries_are_the_distances(level: str, batch) -> None:
    a, b, n, m = batch
    for threads in (1, 2, 3):
        with selected(level), num_threads(threads):
            row = walked(*batch)
            assert np.array_equal(row[:, -1], edit_distance(a, b, n, m))
            assert np.array_equal(row.min(1), optimal_completion_edit_distance(a, b, n, m))


def test_entries_beyond_the_length_repeat_the_distance(batch) -> None:
    _, _, _, m = batch
    row = walked(*batch, steps=5)
    for entries, length in zip(row, m, strict=True):
        assert (entries[length:] == entries[length]).all()


@pytest.mark.parametrize("level", levels())
def test_candidates_give_what_the_row_would(level: str, batch) -> None:
    _, b, n, m = batch
    row, at = walked(*batch, steps=4), np.minimum(n, 4).astype(np.int32)
    ended = (n <= 4).astype(np.int32)
    candidates = np.array([0, 3, 1, 9, 0, 2])
    one_by_one = [next_edit_distance_row(row, np.full(B, v), at, ended, b, m) for v in candidates]
    with selected(level):
        found = next_edit_distance_reduce(row, candidates[None], at, ended, b, m)
        least = next_edit_distance_reduce(
            row, candidates[None], at, ended, b, m, optimal_completion=True
        )
    assert np.array_equal(found, np.stack([r[:, -1] for r in one_by_one], 1))
    assert np.array_equal(least, np.stack([r.min(1) for r in one_by_one], 1))


@pytest.mark.parametrize("level", levels())
def test_least_of_candidates_is_optimal_completion_per_successor(level: str, batch) -> None:
    a, b, n, m = batch
    labels, still = np.arange(KINDS + 1), np.zeros(B, np.int32)
    with selected(level):
        found = next_edit_distance_reduce(
            walked(*batch), labels[None], n, still, b, m, optimal_completion=True
        )
        expected = optimal_completion_edit_distance_per_successor(a, b, labels, n, m)
    assert np.array_equal(found, expected)


def test_blank_candidate_and_ended_sequence_leave_the_row_as_it_is(batch) -> None:
    _, b, n, m = batch
    row, still = walked(*batch, steps=6), np.zeros(B, np.int32)
    labels = np.broadcast_to(np.array([7, 2, 7]), (B, 3)).copy()
    blank = next_edit_distance_reduce(row, labels, n, still, b, m, a_blank_idx=7)
    assert np.array_equal(blank[:, 0], row[:, -1])
    assert np.array_equal(blank[:, 2], row[:, -1])
    other = next_edit_distance_reduce(row, labels, n, still, b, m)
    assert (other[:, 0] != row[:, -1]).any()
    ended = next_edit_distance_reduce(row, labels, n, still + 1, b, m, optimal_completion=True)
    assert np.array_equal(ended, np.tile(row.min(1)[:, None], 3))
    assert np.array_equal(next_edit_distance_row(row, labels[:, 0], n, still + 1, b, m), row)


@pytest.mark.parametrize("level", levels())
def test_minus_one_is_a_label_where_none_is_blank(level: str) -> None:
    row, zero = np.array([[0, 1, 2]], "int32"), np.zeros(1, "int32")
    given = row, np.array([[-1, 7, 5]]), zero, zero, np.array([[-1, 7]]), np.array([2], "int32")
    with selected(level):
        assert next_edit_distance_reduce(*given).tolist() == [[1, 1, 2]]


def test_rows_that_no_table_has_are_followed_all_the_same() -> None:
    random = np.random.default_rng(3)
    row = random.integers(0, 9, (5, 8)).astype(np.int32)
    b, labels = random.integers(0, 3, (5, 7)), random.integers(0, 4, (5, 6))
    n, m = random.integers(0, 9, (2, 5)).astype(np.int32)
    m, still = np.minimum(m, 7), np.zeros(5, np.int32)
    for least in (False, True):
        found = next_edit_distance_reduce(row, labels, n, still, b, m, optimal_completion=least)
        expected = next_edit_distance_reduce.reference(
            row, labels, n, still, b, m, optimal_completion=least
        )
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("first", [0, -3, 4090, 2**31 - 9, -(2**31)])
def test_candidates_may_be_all_labels_in_their_order_or_any(
    level: str, dtype: str, first: int
) -> None:
    random = np.random.default_rng(5)
    row = random.integers(0, 9, (5, 8)).astype(np.int32)
    kinds = np.arange(first, first + 9)
    b = random.choice(kinds, (5, 7)).astype(dtype)
    b[:, 0] = min(kinds[1] + 4096, 2**31 - 1)  # the last digits of another
    n, still = np.arange(5, dtype=np.int32), np.array([0, 0, 1, 0, 0], np.int32)
    m = np.array([7, 3, 7, 0, 6], np.int32)
    sets = [kinds, kinds[::-1], np.delete(kinds, 4), random.choice(kinds, 20), kinds[:1]]
    for labels in (each.astype(dtype)[None].repeat(5, 0) for each in sets):
        for least in (False, True):
            for blank in (-1, 5, max(first, 0) + 2, 2**31 - 1, 2**40):
                options = {"optimal_completion": least, "a_blank_idx": blank}
                with selected(level):
                    found = next_edit_distance_reduce(row, labels, n, still, b, m, **options)
                expected = next_edit_distance_reduce.reference(
                    row, labels, n, still, b, m, **options
                )
                assert np.array_equal(found, expected)


# The first entry is not read from the row, also where `b` is empty.
@pytest.mark.parametrize("level", levels())
def test_first_entry_follows_from_the_number_of_labels(level: str) -> None:
    row, still = np.array([[5, 5], [0, 9]], "int32"), np.zeros(2, "int32")
    labels, n = np.zeros((2, 3), int), np.array([2, 3], "int32")
    with selected(level):
        for least in (False, True):
            found = next_edit_distance_reduce(
                row, labels, n, still, np.ones((2, 1), int), still, optimal_completion=least
            )
            assert found.tolist() == [[3] * 3, [4] * 3]


def test_length_that_is_none_is_refused(batch) -> None:
    a, b, _, m = batch
    row, still = walked(*batch, steps=0), np.zeros(B, np.int32)
    wrong = m.copy()
    wrong[3] = TB + 1
    text = rf"`b_len\[3\]` is {TB + 1}, but must be from 0 to {TB}, the size of `b` along `tb`"
    with pytest.raises(NativeOpsError, match=text):
        next_edit_distance_row(row, a[:, 0], still, still, b, wrong)
    with pytest.raises(NativeOpsError, match=text):
        next_edit_distance_reduce(row, a, still, still, b, wrong)
