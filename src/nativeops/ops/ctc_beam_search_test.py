# SPDX-License-Identifier: Apache-2.0
"""ctc_prefixes: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import itertools

import numpy as np
import pytest

import nativeops
from nativeops import ctc_prefixes
from nativeops.errors import GradientError, RangeError

RANDOM = np.random.default_rng(3)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def all_sequences(log_p, blank):
    """Of every label sequence the probability, and where its labels begin on its best path."""
    steps, classes = log_p.shape
    total, best = {}, {}
    for path in itertools.product(range(classes), repeat=steps):
        value = float(sum(log_p[t, c] for t, c in enumerate(path)))
        begins = [t for t, c in enumerate(path) if c != blank and (t == 0 or path[t - 1] != c)]
        labels = tuple(path[t] for t in begins)
        total[labels] = np.logaddexp(total.get(labels, -np.inf), value)
        if labels not in best or value > best[labels][0]:
            best[labels] = (value, begins)
    return total, {labels: begins for labels, (_, begins) in best.items()}


def hypotheses(found, b=0):
    """The results of one sequence as tuples."""
    for tokens, length, score, frames in zip(*(array[b] for array in found), strict=True):
        assert (tokens[length:] == -1).all()
        assert (frames[length:] == -1).all()
        yield tuple(tokens[:length].tolist()), float(score), frames[:length].tolist()


@pytest.mark.parametrize(("steps", "classes"), [(1, 2), (2, 3), (4, 3), (5, 3), (3, 5), (6, 2)])
@pytest.mark.parametrize("blank", [0, -1])
def test_beam_of_all_prefixes_gives_exact_probabilities(steps, classes, blank) -> None:
    x = RANDOM.standard_normal((steps, 1, classes)) * 2
    total, begins = all_sequences(log_softmax(x[:, 0]), blank % classes)
    found = ctc_prefixes(x, beam_width=2000, n_best=len(total) + 1, blank=blank)
    *all_of_them, none = hypotheses(found)
    assert none == ((), -np.inf, [])
    assert {labels for labels, _, _ in all_of_them} == set(total)
    scores = [score for _, score, _ in all_of_them]
    assert scores == sorted(scores, reverse=True)
    assert np.logaddexp.reduce(scores) == pytest.approx(0, abs=1e-12)
    for labels, score, frames in all_of_them:
        assert score == pytest.approx(total[labels], abs=1e-12)
        assert frames == begins[labels]


def test_given_up_prefix_that_comes_back_meets_its_extension() -> None:
    """No sequence may stand in the results twice, whatever the beam forgot on the way."""
    for seed in range(300):
        random = np.random.default_rng(seed)
        x = random.standard_normal((12, 1, 3)) * 3
        width = int(random.integers(2, 7))
        labels = [
            h[0]
            for h in hypotheses(ctc_prefixes(x, beam_width=width, n_best=width))
            if h[1] > -np.inf
        ]
        assert len(set(labels)) == len(labels)


def test_sum_over_paths_can_beat_the_best_path() -> None:
    found = ctc_prefixes(np.log([[[0.6, 0.4]], [[0.6, 0.4]]]), n_best=2)
    assert [labels for labels, _, _ in hypotheses(found)] == [(1,), ()]


def test_wider_beam_does_not_find_less_here() -> None:
    x = RANDOM.standard_normal((40, 3, 12))
    scores = [ctc_prefixes(x, beam_width=width).scores[:, 0] for width in (1, 8, 64, 256)]
    assert (np.diff(scores, axis=0)[-1] >= -1e-9).all()
    exact = ctc_prefixes(x * 30, beam_width=1)  # nearly certain frames: greedy is right
    for b in range(3):
        path = x[:, b].argmax(-1)
        labels = [int(c) for t, c in enumerate(path) if c and (t == 0 or path[t - 1] != c)]
        assert exact.tokens[b, 0, : exact.lengths[b, 0]].tolist() == labels


def test_repeated_label_needs_a_blank() -> None:
    sure = np.full((3, 1, 2), -1e4)
    for t, c in enumerate((1, 0, 1)):
        sure[t, 0, c] = 0
    assert next(hypotheses(ctc_prefixes(sure)))[::2] == ((1, 1), [0, 2])
    sure[1] = sure[0]
    assert next(hypotheses(ctc_prefixes(sure)))[::2] == ((1,), [0])


def test_ties_go_to_who_was_there_then_to_the_smaller_label() -> None:
    x = np.zeros((1, 1, 5))
    found = ctc_prefixes(x, beam_width=5, n_best=5)
    assert [labels for labels, _, _ in hypotheses(found)] == [(), (1,), (2,), (3,), (4,)]
    assert [h[0] for h in hypotheses(ctc_prefixes(x, beam_width=2, n_best=2))] == [(), (1,)]


def test_lengths_are_each_sequences_own() -> None:
    x = RANDOM.standard_normal((9, 3, 6))
    lengths = np.array([9, 0, 4], np.int32)
    x[4:, 2], x[:, 1] = np.nan, np.nan
    found = ctc_prefixes(x, lengths, n_best=2)
    alone = ctc_prefixes(x[:4, 2:], n_best=2)
    assert list(hypotheses(found, 2)) == list(hypotheses(alone))
    assert list(hypotheses(found, 1)) == [((), 0.0, []), ((), -np.inf, [])]


def test_nan_stays_in_its_own_sequence_and_impossible_frames_end_all() -> None:
    x = RANDOM.standard_normal((5, 3, 4))
    clean = ctc_prefixes(x)
    x[2, 1, 3], x[2, 2] = np.nan, -np.inf
    found = ctc_prefixes(x)
    assert np.isnan(found.scores[1]).all()
    assert found.scores[2] == -np.inf
    assert found.lengths[1:].tolist() == [[0], [0]]
    assert found.scores[0] == clean.scores[0]
    x[2, 1, 3] = np.inf
    assert np.isnan(ctc_prefixes(x).scores[1]).all()


def test_improbable_labels_extend_nothing() -> None:
    x = RANDOM.standard_normal((30, 1, 20))
    p = np.exp(log_softmax(x))
    found = ctc_prefixes(x, beam_width=50, n_best=50, token_threshold=0.1)
    allowed = set(np.argwhere((p[:, 0] >= 0.1).any(0)).ravel().tolist())
    for labels, _, _ in hypotheses(found):
        assert set(labels) <= allowed
    assert not ctc_prefixes(x, token_threshold=1.0).lengths.any()


def test_bonus_counts_labels() -> None:
    x = RANDOM.standard_normal((5, 1, 3))
    every = {"beam_width": 999, "n_best": 80}
    plain, more = (
        {h[0]: h[1] for h in hypotheses(ctc_prefixes(x, **every, insertion_bonus=bonus))}
        for bonus in (0.0, 0.75)
    )
    for labels, score in more.items():
        assert score == pytest.approx(plain[labels] + 0.75 * len(labels), abs=1e-12)


# Whole numbers have exact sums, so that many prefixes are equally probable.
@pytest.mark.parametrize("bonus", [-1.5, 0.0, 2.5, 6.0])
@pytest.mark.parametrize("threshold", [0.0, 0.06, 0.2])
def test_narrow_beam_is_that_of_the_reference(bonus: float, threshold: float) -> None:
    random = np.random.default_rng(7)
    for width in (1, 2, 3, 5):
        x = random.integers(-4, 0, (9, 20, 4)).astype("float64")
        options = {"beam_width": width, "n_best": width, "normalized": True}
        options |= {"token_threshold": threshold, "insertion_bonus": bonus}
        found = ctc_prefixes(x, **options)
        expected = ctc_prefixes.reference(x, **options, blank=0)
        for name, mine in found._asdict().items():
            right = getattr(expected, name)
            np.testing.assert_allclose(mine, right, rtol=1e-12, err_msg=f"{name}, width {width}")


def test_threads_do_not_change_a_bit() -> None:
    x = RANDOM.standard_normal((50, 9, 30)).astype("f")
    before, found = nativeops.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            nativeops.set_num_threads(threads)
            found.append(ctc_prefixes(x, beam_width=20, n_best=5))
    finally:
        nativeops.set_num_threads(before)
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(other, found[0], strict=True))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"blank": 4},
            "`blank` is 4, but must be from -1 to 3, where -1 is the last class of `logits`.",
        ),
        ({"n_best": 17}, "`n_best` is 17, but must be from 1 to 16, which is `beam_width`."),
        (
            {"lengths": np.array([9], np.int32)},
            "`lengths[0]` is 9, but must be from 0 to 5, the frames of `logits`.",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_value_is_refused(options, text) -> None:
    with pytest.raises(RangeError) as caught:
        ctc_prefixes(np.zeros((5, 1, 4)), **options)
    assert str(caught.value) == f"ctc_beam_search: {text}"


def test_there_is_no_gradient_and_it_says_so() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(3, 1, 4, requires_grad=True)
    with pytest.raises(GradientError, match="has no gradient"):
        ctc_prefixes(x).scores.sum().backward()
