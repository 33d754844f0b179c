# SPDX-License-Identifier: Apache-2.0
"""ctc_fsa: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import itertools

import numpy as np
import pytest

from nativeops import ctc_fsa, ctc_fsa_packed
from nativeops.errors import RangeError
from nativeops.testing.paths import all_paths


def said(path: tuple[int, ...], blank: int, label_loop: bool) -> list[int]:
    steps = [k for k, _ in itertools.groupby(path)] if label_loop else path
    return [label for label in steps if label != blank]


@pytest.mark.parametrize("label_loop", [True, False])
@pytest.mark.parametrize("blank", [0, 2])
def test_paths_are_the_alignments_of_the_targets_each_once(label_loop: bool, blank: int) -> None:
    labels = [label for label in range(3) if label != blank]
    targets = [t for n in range(4) for t in itertools.product(labels, repeat=n)]
    lengths = np.array([len(t) for t in targets])
    padded = np.array([[*t, *[blank] * (3 - len(t))] for t in targets])
    edges, weights, ends = ctc_fsa(padded, lengths, blank=blank, label_loop=label_loop)
    alive = edges[:, weights < np.inf]
    for b, target in enumerate(targets):
        for frames in range(6):
            found = [
                tuple(alive[2, list(path)].tolist())
                for path, _ in all_paths(alive, b, ends[0, b], {ends[1, b]: 0.0}, frames)
            ]
            expected = [
                path
                for path in itertools.product(range(3), repeat=frames)
                if frames and said(path, blank, label_loop) == list(target)
            ]
            assert sorted(found) == expected, (target, frames)


def test_states_are_numbered_as_the_classic_op_numbers_them() -> None:
    edges, weights, ends = ctc_fsa(np.array([[5, 5], [7, 0]]), np.array([2, 1]))
    assert edges.shape == (4, 2 * 15)
    assert ends.tolist() == [[0, 7], [6, 11]]
    first = {tuple(e) for e in edges[:3, :15].T.tolist()}
    assert first == {
        (0, 0, 0), (0, 1, 5), (1, 1, 5), (1, 2, 0), (1, 5, 5),  # equal labels: into the dummy
        (2, 2, 0), (2, 3, 5), (3, 3, 5), (3, 6, 0),
        (4, 4, 0), (4, 6, 0), (2, 6, 5), (3, 6, 5), (3, 4, 0),
    }  # fmt: skip
    second = edges[:3, 15:].T[np.isfinite(weights[15:])].tolist()
    assert len(second) == 9, "one label has nine edges"
    filled = edges[:, 15:][:, np.isinf(weights[15:])]
    assert (filled[:2] == 7 + 3).all(), "what fills the place is at the dummy"
    assert (edges[3] == np.repeat([0, 1], 15)).all()


@pytest.mark.parametrize(("length", "n"), [(0, 2), (1, 9), (2, 15), (7, 40)])
def test_as_many_edges_as_the_classic_op_has(length: int, n: int) -> None:
    labels = np.arange(1, length + 1)[None]
    assert np.isfinite(ctc_fsa(labels).weights).sum() == n
    packed = ctc_fsa_packed(labels[0], np.array([length]))
    assert np.isfinite(packed.weights).sum() == n
    assert packed.edge_offsets.tolist() == [0, 5 * length + 5]


def test_packed_automata_are_the_same_without_gaps() -> None:
    random = np.random.default_rng(0)
    lengths = np.array([3, 0, 5, 1])
    targets = random.integers(1, 4, (4, 5))
    whole = ctc_fsa(targets, lengths)
    flat = np.concatenate([row[:n] for row, n in zip(targets, lengths, strict=True)])
    packed = ctc_fsa_packed(np.concatenate([flat, [-7, 0]]), lengths)
    states = np.concatenate([b * 13 + np.arange(2 * n + 3) for b, n in enumerate(lengths)])
    for b, n in enumerate(lengths):
        own = slice(packed.edge_offsets[b], packed.edge_offsets[b + 1])
        place = slice(b * 30, b * 30 + 5 * n + 5)
        assert np.array_equal(states[packed.edges[:2, own]], whole.edges[:2, place])
        assert np.array_equal(packed.edges[2:, own], whole.edges[2:, place])
        assert np.array_equal(packed.weights[own], whole.weights[place])
    rest = slice(packed.edge_offsets[-1], None)
    assert not packed.edges[:, rest].any()
    assert np.isposinf(packed.weights[rest]).all()
    assert len(packed.weights[rest]) == 10
    assert np.array_equal(states[packed.start_end_states], whole.start_end_states)


@pytest.mark.parametrize(("b", "s"), [(0, 3), (2, 0), (0, 0)])
def test_empty_batches_and_targets(b: int, s: int) -> None:
    edges, weights, ends = ctc_fsa(np.zeros((b, s), np.int64))
    assert edges.shape == (4, b * (5 * s + 5))
    assert ends.shape == (2, b)
    assert np.isfinite(weights).sum() == 2 * b


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: ctc_fsa(np.array([[1, 2]]), np.array([3])),
            r"`target_lengths\[0\]` is 3, but must",
        ),
        (lambda: ctc_fsa(np.array([[1, -2]])), r"`targets\[0, 1\]` is -2, but must be from 0 to"),
        (lambda: ctc_fsa(np.array([[1, 0]])), r"`targets\[0, 1\]` is 0, but that is `blank`"),
        (lambda: ctc_fsa_packed(np.array([1, 0]), np.array([2])), r"`targets\[1\]` is 0, but that"),
        (
            lambda: ctc_fsa_packed(np.array([1, 1]), np.array([1, 2])),
            r"`target_lengths\[1\]` is 2, but must be from 0 to 1, the targets that are left",
        ),
    ],
)
def test_wrong_lengths_and_labels_are_refused(call, text: str) -> None:
    with pytest.raises(RangeError, match=text):
        call()
