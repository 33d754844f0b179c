# SPDX-License-Identifier: Apache-2.0
"""ctc_best_path: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

from itertools import groupby

import numpy as np
import pytest

from nativeops import NativeOpsError, ctc_greedy_decode
from nativeops.ops.ctc_best_path import ctc_best_path
from nativeops.testing.aspects import levels, selected

RANDOM = np.random.default_rng(3)
each_level = pytest.mark.parametrize("level", levels())


def test_equals_tensorflow_greedy_decoder() -> None:
    tf = pytest.importorskip("tensorflow")
    x = RANDOM.standard_normal((50, 6, 4)).astype(np.float32)
    frames = [50, 40, 1, 0, 33, 50]
    for merge in (True, False):
        (theirs,), sums = tf.nn.ctc_greedy_decoder(x, frames, merge, blank_index=2)
        expected = tf.sparse.to_dense(theirs, -1).numpy()
        labels, lengths, scores = ctc_greedy_decode(x, frames, blank=2, label_loop=merge)
        assert np.array_equal(labels[:, : expected.shape[1]], expected)
        assert (labels[:, expected.shape[1] :] == -1).all()
        assert lengths.tolist() == (expected >= 0).sum(1).tolist()
        sums = sums.numpy()[:, 0] + [
            np.logaddexp.reduce(x[:n, b], -1).sum() for b, n in enumerate(frames)
        ]
        np.testing.assert_allclose(scores, -sums, rtol=1e-5, atol=1e-5)


def test_labels_are_the_groups_of_equal_classes_without_blanks() -> None:
    ways = RANDOM.integers(0, 3, (200, 1))
    labels, lengths, _ = ctc_greedy_decode(5 * np.eye(3)[ways], blank=1)
    expected = [c for c, _ in groupby(ways[:, 0]) if c != 1]
    assert labels[0, : lengths[0]].tolist() == expected


def test_first_of_equal_classes_wins_and_nan_says_nothing() -> None:
    x = np.zeros((3, 2, 4))
    x[1, 1, 2] = np.nan
    x[:, :, 0] = -1
    labels, lengths, scores = ctc_greedy_decode(x)
    assert labels.tolist() == [[1, -1, -1], [1, 1, -1]]
    assert lengths.tolist() == [1, 2]
    assert np.isnan(scores).tolist() == [False, True]


@each_level
def test_frame_without_any_class_has_no_probability(level: str) -> None:
    x = np.zeros((3, 2, 4))
    x[1, 0] = -np.inf
    with selected(level):
        _, lengths, scores = ctc_best_path(x, blank=3)
    assert scores[0] == -np.inf
    assert scores[1] == pytest.approx(-3 * np.log(4))
    assert lengths.tolist() == [1, 1], "of equal classes, -inf too, the first is said"


def test_lengths_out_of_range_are_refused() -> None:
    with pytest.raises(NativeOpsError, match=r"`input_lengths\[1\]` is 4, but must be from 0 to 3"):
        ctc_greedy_decode(np.zeros((3, 2, 4)), [1, 4])


@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("classes", [1, 2, 15, 16, 17, 33, 100])
def test_first_of_equals_is_found_at_every_place_of_vectors(level, dtype, classes) -> None:
    """Few values, so that the largest is there several times; vectors end with zeros."""
    for base in (-5, 0, 5):
        x = (RANDOM.integers(0, 3, (60, 3, classes)) + base).astype(dtype)
        x[7, 1], x[9, 2, classes // 2] = -np.inf, np.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = ctc_best_path.reference(x, blank=classes // 3)
        with selected(level):
            whole = ctc_best_path(x, blank=classes // 3)
            apart = ctc_best_path(np.repeat(x, 2, -1)[..., ::2], blank=classes // 3)
        for found in (whole, apart):
            assert np.array_equal(found.labels, expected.labels)
            assert np.array_equal(found.lengths, expected.lengths)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-3)
