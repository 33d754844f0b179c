# SPDX-License-Identifier: Apache-2.0
"""forced_align: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import nativeops
from nativeops import forced_align
from nativeops.errors import RangeError
from nativeops.testing.aspects import first_of_threads, levels, selected
from nativeops.testing.marks import without_sanitizer

RANDOM = np.random.default_rng(6)
each_level = pytest.mark.parametrize("level", levels())


def draw(t: int, b: int, c: int, dtype: str = "float32") -> np.ndarray:
    """Log-probabilities, rounded so that sums of some hundred are exact."""
    scores = RANDOM.exponential(2.0, (t, b, c)) * -1024
    return (np.round(scores) / 1024).astype(dtype)


def collapsed(path: tuple[int, ...], blank: int, label_loop: bool) -> list[int]:
    """What a path says: repetitions count once where labels may loop."""
    said = [k for k, _ in itertools.groupby(path)] if label_loop else path
    return [label for label in said if label != blank]


def best_by_enumeration(scores, target, blank: int, label_loop: bool) -> float:
    """The best of all c^t paths."""
    t, c = scores.shape
    sums = [
        sum(scores[i, label] for i, label in enumerate(path))
        for path in itertools.product(range(c), repeat=t)
        if collapsed(path, blank, label_loop) == list(target)
    ]
    return max(sums, default=-np.inf)


@each_level
@pytest.mark.parametrize("label_loop", [True, False])
@pytest.mark.parametrize("blank", [0, 1, 2])
def test_best_of_all_paths_is_found(level: str, label_loop: bool, blank: int) -> None:
    labels = [label for label in range(3) if label != blank]
    targets = [t for n in range(4) for t in itertools.product(labels, repeat=n)]
    width = max(map(len, targets))
    padded = np.array([[*t, *[0] * (width - len(t))] for t in targets])
    lengths = np.array([len(t) for t in targets])
    for frames in range(6):
        scores = draw(frames + 2, len(targets), 3, "float64")
        with selected(level):
            found = forced_align(
                scores, padded, np.full(len(targets), frames), lengths,
                blank=blank, label_loop=label_loop,
            )  # fmt: skip
        for b, target in enumerate(targets):
            best = best_by_enumeration(scores[:frames, b], target, blank, label_loop)
            if best == -np.inf:
                assert (found.labels[:, b] == -1).all()
                assert (found.scores[:frames, b] == -np.inf).all()
                assert (found.starts[b] == -1).all()
            else:
                path = tuple(found.labels[:frames, b])
                assert collapsed(path, blank, label_loop) == list(target)
                assert found.scores[:, b].sum() == pytest.approx(best, abs=1e-12)
                check_spans(found, b, target, blank)
            assert (found.labels[frames:, b] == -1).all()
            assert not found.scores[frames:, b].any()


def check_spans(found, b: int, target, blank: int) -> None:
    """The spans cover the frames whose label is no blank, in order, and say what these do."""
    covered = np.zeros(len(found.labels), bool)
    end = 0
    for i, label in enumerate(target):
        start, before, end = found.starts[b, i], end, found.ends[b, i]
        assert before <= start < end
        assert (found.labels[start:end, b] == label).all()
        mean = np.exp(found.scores[start:end, b].astype(np.float64)).mean()
        assert found.confidence[b, i] == pytest.approx(mean, rel=1e-6)
        covered[start:end] = True
    assert (found.labels[~covered, b] <= np.where(found.labels[~covered, b] < 0, -1, blank)).all()
    assert (found.starts[b, len(target) :] == -1).all()


@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("tokens", [1, 7, 8, 15, 16, 17, 31, 32, 33, 100])
def test_equals_its_reference_at_the_edges_of_vectors(level: str, dtype: str, tokens: int) -> None:
    scores, targets = draw(130, 3, 9, dtype), RANDOM.integers(1, 9, (3, tokens))
    frames, lengths = np.array([130, 99, 64]), np.array([tokens, tokens - 1, tokens // 2])
    expected = forced_align.reference(scores.astype("float64"), targets, frames, lengths)
    with selected(level):
        found = forced_align(scores, targets, frames, lengths)
    for name in ("labels", "starts", "ends"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert np.array_equal(found.scores, expected.scores.astype(dtype))


# Sums of whole numbers are exact, so that many paths are equal.
@each_level
def test_of_equal_paths_that_of_the_reference_is_taken(level: str) -> None:
    random = np.random.default_rng(8)
    for blank, loop in ((0, True), (3, True), (1, False)):
        scores = -random.integers(0, 2, (40, 30, 4)).astype("float32")
        targets = random.choice(np.delete(np.arange(4), blank), (30, 9))
        given = scores, targets, random.integers(20, 41, 30), random.integers(0, 10, 30)
        expected = forced_align.reference(*given, blank=blank, label_loop=loop)
        with selected(level):
            found = forced_align(*given, blank=blank, label_loop=loop)
        for name in ("labels", "starts", "ends"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@each_level
def test_long_recording_is_aligned_as_exactly_as_in_double(level: str) -> None:
    t, s = 20000, 1500
    scores = np.log(RANDOM.dirichlet(np.full(6, 0.3), (t, 1)).clip(1e-30)).astype("float32")
    targets = RANDOM.integers(1, 6, (1, s))
    with selected(level):
        found = forced_align(scores, targets)
        wide = forced_align(scores.astype("float64"), targets)
    best, other = (np.sum(a.scores, dtype="float64") for a in (wide, found))
    assert best - other <= 1e-6 * abs(best), "rounding cost a better path"
    assert np.mean(found.labels == wide.labels) > 0.999


@each_level
def test_very_long_recording_is_aligned_as_in_double(level: str) -> None:
    random = np.random.default_rng(0)
    scores = np.log(random.dirichlet(np.full(6, 0.3), (200_000, 1)).clip(1e-30)).astype("float32")
    targets = random.integers(1, 6, (1, 100))
    with selected(level):
        found = forced_align(scores, targets)
        wide = forced_align(scores.astype("float64"), targets)
    assert np.mean(found.labels == wide.labels) > 0.9999


@each_level
def test_any_number_of_threads_gives_the_same_bits(level: str) -> None:
    scores, targets = draw(90, 7, 30), RANDOM.integers(1, 30, (7, 20))
    with selected(level):
        first_of_threads(lambda: forced_align(scores, targets))


@each_level
def test_threads_that_share_a_long_recording_give_the_bits_of_one(level: str) -> None:
    """One alone, and one beside a short one; with gaps between the rows."""
    scores, targets = draw(1400, 4, 40)[:, ::2], RANDOM.integers(1, 40, (2, 500))
    lengths, counts = np.array([1400, 30]), np.array([500, 20])

    def results():
        alone = forced_align(scores[:, :1], targets[:1])
        return (*alone, *forced_align(scores, targets, lengths, counts))

    with selected(level):
        first = first_of_threads(results, (1, 2, 3, 4))
    assert first[1].min() > -np.inf


# Unlike above, sums are rounded.
@each_level
def test_rounding_is_that_of_one_thread(level: str) -> None:
    random = np.random.default_rng(0)
    scores = (random.integers(1, 4, (4000, 1, 6)) * -0.1).astype("float32")  # many near-ties
    targets = random.integers(1, 6, (1, 500))
    with selected(level):
        first_of_threads(lambda: [forced_align(scores, targets).labels], (1, 2, 4))


@each_level
def test_row_of_minus_infinity_leaves_no_path_and_disturbs_no_other_sequence(level: str) -> None:
    scores, targets = draw(12, 3, 4), RANDOM.integers(1, 4, (3, 4))
    with selected(level):
        alone = forced_align(scores, targets)
        scores[5, 1] = -np.inf
        found = forced_align(scores, targets)
    assert (found.labels[:, 1] == -1).all()
    assert (found.scores[:, 1] == -np.inf).all()
    assert np.array_equal(found.labels[:, ::2], alone.labels[:, ::2])


@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_row_of_minus_infinity_long_ago_leaves_no_path(level: str, dtype: str) -> None:
    scores = np.zeros((80, 2, 3), dtype)
    scores[5, 1] = -np.inf
    with selected(level):
        found = forced_align(scores, np.array([[1, 2], [1, 2]]))
    assert (found.scores[:, 1] == -np.inf).all()
    assert (found.labels[:, 1] == -1).all()
    assert np.isfinite(found.scores[:, 0]).all()


@each_level
def test_all_mass_on_one_label_is_aligned(level: str) -> None:
    scores = np.full((9, 1, 5), -np.inf, "float32")
    scores[:4, 0, 3] = scores[4:6, 0, 0] = scores[6:, 0, 3] = 0
    with selected(level):
        found = forced_align(scores, np.array([[3, 3]]))
    assert found.labels[:, 0].tolist() == [3, 3, 3, 3, 0, 0, 3, 3, 3]
    assert found.starts.tolist() == [[0, 6]]
    assert found.confidence.tolist() == [[1, 1]]


@each_level
def test_nan_stays_in_its_sequence_and_is_seen(level: str) -> None:
    scores, targets = draw(12, 3, 4), RANDOM.integers(1, 4, (3, 4))
    scores[5, 1, 0] = np.nan
    scores[3, 2] = np.where(np.isin(np.arange(4), [0, *targets[2]]), scores[3, 2], np.nan)
    with selected(level):
        found = forced_align(scores, targets)
    assert np.isnan(found.scores[:, 1]).all()
    assert (found.labels[:, 1] == -1).all()
    assert not np.isnan(found.scores[:, [0, 2]]).any(), "a class that is no target was looked at"


@each_level
@pytest.mark.parametrize("label_loop", [False, True])
@pytest.mark.parametrize("token", [0, 1, 2])
@pytest.mark.parametrize("frame", [0, 2, 4])
def test_nan_of_any_class_in_any_frame_is_seen(level: str, label_loop, token, frame) -> None:
    scores = np.zeros((5, 2, 3))
    scores[frame, 0, token] = np.nan
    with selected(level):
        found = forced_align(scores, np.array([[1, 2], [1, 2]]), label_loop=label_loop)
    assert np.isnan(found.scores[:, 0]).all()
    assert not found.scores[:, 1].any()


@each_level
def test_nan_is_seen_without_targets(level: str) -> None:
    scores = np.zeros((4, 2, 2))
    scores[1, 0, 0] = np.nan
    with selected(level):
        found = forced_align(scores, np.zeros((2, 0), int))
    assert np.isnan(found.scores[:, 0]).all()
    assert (found.labels[:, 0] == -1).all()
    assert not found.labels[:, 1].any()


@pytest.mark.parametrize("size", [(0, 2, 3, 1), (4, 0, 3, 2), (4, 2, 3, 0), (0, 0, 0, 0)])
def test_empty_axes_give_empty_results(size) -> None:
    t, b, c, s = size
    found = forced_align(np.zeros((t, b, c), "float32"), np.ones((b, s), int))
    assert found.labels.shape == (t, b)
    assert found.starts.shape == (b, s)
    assert not found.labels.any(), "without targets all is blank"


def test_batch_first_scores_are_read_where_they_are() -> None:
    scores, targets = draw(40, 5, 11), RANDOM.integers(1, 11, (5, 9))
    swapped = np.ascontiguousarray(scores.transpose(1, 0, 2)).transpose(1, 0, 2)
    for a, b in zip(
        forced_align(scores, targets), forced_align(swapped, targets[:, ::-1][:, ::-1]), strict=True
    ):
        assert np.array_equal(a, b)


@each_level
def test_classes_may_lie_apart(level: str) -> None:
    random = np.random.default_rng(9)
    scores = -random.exponential(1.0, (30, 3, 6))
    targets = random.integers(0, 5, (3, 7))
    apart = np.repeat(scores, 2, 2)[..., ::2]
    with selected(level):
        pairs = zip(
            forced_align(apart, targets, blank=5),
            forced_align(scores, targets, blank=5),
            strict=True,
        )
        assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"input_lengths": np.array([5, 7])},
            r"`input_lengths\[1\]` is 7, but must be from 0 to 6",
        ),
        ({"target_lengths": np.array([-1, 0])}, r"`target_lengths\[0\]` is -1, but must be"),
        (
            {"targets": np.array([[1, 2], [4, 1]])},
            r"`targets\[1, 0\]` is 4, but must be from 0 to 3",
        ),
        ({"targets": np.array([[1, 0], [2, 1]])}, r"`targets\[0, 1\]` is 0, but that is `blank`"),
        ({"blank": 4}, r"`blank` is 4, but must be from 0 to 3, the classes"),
    ],
)
def test_values_that_fit_nothing_are_refused(changes, said: str) -> None:
    given = {"log_probs": draw(6, 2, 4), "targets": np.array([[1, 2], [3, 1]]), **changes}
    with pytest.raises(RangeError, match=f"^forced_align: {said}"):
        forced_align(**given)


PEAK = """
import numpy as np, nativeops
from nativeops.bench.memory import peak
t, s = 20000, 2000
scores = np.random.default_rng(0).standard_normal((t, 1, 20)).astype("float32")
targets = np.random.default_rng(0).integers(1, 20, (1, s))
nativeops.forced_align(scores[:9], targets[:, :2])
before = peak()
nativeops.forced_align(scores, targets)
print(peak() - before)
"""


@without_sanitizer
def test_long_recording_takes_no_more_memory_than_stated() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    tuned = levels()[-1] != "portable" and os.environ.get("NATIVEOPS_ISA") != "portable"
    stated = 20000 * 2001 * (6 / 8 if tuned else 1)  # AVX2 fills half of each word
    assert int(done.stdout) <= stated + (6 << 20)


def test_equals_in_torch_with_int64_and_int32() -> None:
    torch = pytest.importorskip("torch")
    scores, targets = (
        torch.from_numpy(draw(30, 4, 8)),
        torch.from_numpy(RANDOM.integers(1, 8, (4, 5))),
    )
    wide, narrow = (
        nativeops.forced_align(scores, targets.to(d)) for d in (torch.int64, torch.int32)
    )
    assert wide.labels.dtype == torch.int64
    assert narrow.starts.dtype == torch.int32
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(wide, narrow, strict=True))


@each_level
@pytest.mark.parametrize("mask", [-1e7, -1e9, -1e30, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_label_that_is_ruled_out_leaves_the_best_path_of_the_others(
    level: str, mask: float, dtype: str
) -> None:
    scores, target = draw(300, 1, 20, dtype), RANDOM.integers(1, 19, (1, 40))
    target[0, 20] = 19  # alone, so that it takes one frame whatever it costs
    with selected(level):
        scores[..., 19] = -8000
        expected = forced_align(scores, target).labels
        scores[..., 19] = mask
        found = forced_align(scores, target).labels
    assert (found == expected).mean() > 0.99
    told = np.where(expected == 19, 0, scores[np.arange(300), 0, expected[:, 0]][:, None])
    other = np.where(found == 19, 0, scores[np.arange(300), 0, found[:, 0]][:, None])
    assert abs(told.sum(dtype="float64") - other.sum(dtype="float64")) < 0.01
