# SPDX-License-Identifier: Apache-2.0
"""Optimal completion: what is true by brute force over all continuations."""

import itertools

import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein

from nativeops import (
    NativeOpsError,
    edit_distance,
    ocd_targets,
    optimal_completion_edit_distance,
    optimal_completion_edit_distance_per_successor,
)
from nativeops.testing.aspects import levels, num_threads, selected


def completed(prefix: list[int], target: list[int], kinds: int) -> int:
    """The least distance of all continuations: none needs to be longer than the target."""
    return min(
        Levenshtein.distance([*prefix, *more], target)
        for length in range(len(target) + 1)
        for more in itertools.product(range(kinds), repeat=length)
    )


def cases(count: int, longest: int, kinds: int):
    random = np.random.default_rng(count)
    a, b = random.integers(0, kinds, (2, count, longest))
    n, m = random.integers(0, longest + 1, (2, count)).astype(np.int32)
    n[0], m[1] = 0, 0
    return a, b, n, m


@pytest.mark.parametrize("level", levels())
def test_is_the_least_distance_of_all_continuations(level: str) -> None:
    a, b, n, m = cases(25, 4, 3)
    pairs = [(x[:i].tolist(), y[:j].tolist()) for x, y, i, j in zip(a, b, n, m, strict=True)]
    expected = [completed(x, y, 3) for x, y in pairs]
    with_each = [[completed([*x, v], y, 4) for v in range(4)] for x, y in pairs]
    with selected(level):
        assert optimal_completion_edit_distance(a, b, n, m).tolist() == expected
        found = optimal_completion_edit_distance_per_successor(a, b, np.arange(4), n, m)
    assert found.tolist() == with_each


@pytest.mark.parametrize("level", levels())
def test_targets_are_the_labels_that_do_not_raise_the_least_distance(level: str) -> None:
    a, b, n, m = cases(20, 4, 3)
    with selected(level):
        found = ocd_targets(a, b, n, m, n_labels=5, end=4)
        without = ocd_targets(a, b, n, m, n_labels=5)
    for item, (x, y, i, j) in enumerate(zip(a, b, n, m, strict=True)):
        target = y[:j].tolist()
        for k in range(a.shape[1] + 1):
            prefix = x[:k].tolist()
            if k > i:
                assert not found[item, k].any()
                continue
            least = completed(prefix, target, 3)
            # The end is right where the prefix as it is has that distance.
            expected = [completed([*prefix, v], target, 4) == least for v in range(4)]
            ends = Levenshtein.distance(prefix, target) == least
            assert found[item, k].tolist() == [*expected, ends], (item, k)
            assert without[item, k].tolist() == [*expected, False]
            assert found[item, k].any(), "some label is always right"


# Around the widths of words and of a chain's vectors; the last row of the table by the definition.
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    ("ta", "tb", "kinds"), [(70, 64, 30), (130, 65, 5), (300, 300, 4), (9, 600, 9)]
)
def test_long_sequences_agree_with_the_definition(level, ta, tb, kinds) -> None:
    random = np.random.default_rng(ta)
    a, b = random.integers(0, kinds, (11, ta)), random.integers(0, kinds, (11, tb))
    n = random.integers(0, ta + 1, 11).astype(np.int32)
    m = random.integers(0, tb + 1, 11).astype(np.int32)
    successors = np.array([*range(kinds + 2), 0, -7, 1 << 40])
    least = optimal_completion_edit_distance.reference(a, b, n, m)
    each = optimal_completion_edit_distance_per_successor.reference(a, b, successors, n, m)
    for threads in (1, 2, 3):
        with selected(level), num_threads(threads):
            assert np.array_equal(optimal_completion_edit_distance(a, b, n, m), least)
            found = optimal_completion_edit_distance_per_successor(a, b, successors, n, m)
            assert np.array_equal(found, each)


def test_of_the_whole_target_nothing_remains() -> None:
    a = np.random.default_rng(0).integers(0, 9, (6, 40))
    n = np.array([0, 1, 7, 39, 40, 40], np.int32)
    assert not optimal_completion_edit_distance(a, a, n).any()
    assert (optimal_completion_edit_distance(a, a[::-1]) <= edit_distance(a, a[::-1])).all()


def test_no_successors_give_an_empty_result() -> None:
    a, none = np.zeros((3, 2), np.int32), np.zeros(0, np.int32)
    assert optimal_completion_edit_distance_per_successor(a, a, none).shape == (3, 0)


def test_label_and_end_outside_are_refused() -> None:
    a, b = np.zeros((1, 2), np.int32), np.array([[0, 7]], np.int32)
    with pytest.raises(
        NativeOpsError, match=r"ocd_targets: `b\[0, 1\]` is 7, but must be from 0 to 4"
    ):
        ocd_targets(a, b, n_labels=5)
    with pytest.raises(NativeOpsError, match="`end` is 5, but must be from -1 to 4"):
        ocd_targets(a, a, n_labels=5, end=5)
    beyond = np.array([1], np.int32)
    assert ocd_targets(a, b, b_len=beyond, n_labels=5)[0, 0].tolist() == [True] + [False] * 4


def test_label_of_the_number_of_labels_is_refused() -> None:
    with pytest.raises(NativeOpsError, match=r"`b\[0, 1\]` is 5, but must be from 0 to 4"):
        ocd_targets(np.zeros((1, 2), int), np.array([[4, 5]]), n_labels=5)


@pytest.mark.parametrize(
    "op", [optimal_completion_edit_distance, optimal_completion_edit_distance_per_successor]
)
def test_length_that_is_none_is_refused(op) -> None:
    a = np.zeros((2, 3), np.int32)
    more = () if op is optimal_completion_edit_distance else (a[0],)
    with pytest.raises(NativeOpsError, match=r"`a_len\[1\]` is 4, but must be from 0 to 3"):
        op(a, a, *more, a_len=np.array([0, 4], np.int32))
