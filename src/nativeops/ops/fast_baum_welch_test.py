# SPDX-License-Identifier: Apache-2.0
"""fast_baum_welch: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from nativeops import ctc_fsa, fast_baum_welch, fast_baum_welch_packed
from nativeops.errors import RangeError
from nativeops.ops._paths import example
from nativeops.testing.aspects import first_of_threads, levels, num_threads, selected
from nativeops.testing.marks import without_sanitizer
from nativeops.testing.paths import dense_total, enumerated

RANDOM = np.random.default_rng(3)
each_level = pytest.mark.parametrize("level", levels())
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def draw(t: int, b: int, c: int, e: int, m: int = 0, dtype: str = "float64"):
    made = example(RANDOM, {"b": b, "c": c, "e": e, **({"m": m} if m else {})})
    floats = {k: v.astype(dtype) for k, v in made.items() if v.dtype.kind == "f"}
    return {"am_scores": RANDOM.exponential(1.0, (t, b, c)).astype(dtype), **made, **floats}


def ctc(t: int, b: int, c: int, s: int, dtype: str = "float32"):
    logits = RANDOM.standard_normal((t, b, c))
    costs = np.log(np.exp(logits).sum(-1, keepdims=True)) - logits
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, c, (b, s)))
    return costs.astype(dtype), edges, weights.astype(dtype), ends


def ends_of(given, b: int) -> dict[int, float]:
    if "end_states" not in given or b not in given["end_states"][0]:
        return {int(given["start_end_states"][1, b]): 0.0}
    sums: dict[int, float] = {}
    for q, s, w in zip(*given["end_states"], given["end_weights"], strict=True):
        if q == b:
            sums[int(s)] = sums.get(int(s), 0.0) + np.exp(-w)
    return {s: -np.log(share) for s, share in sums.items()}


@each_level
@pytest.mark.parametrize("ends", [0, 7])
def test_equals_the_sum_over_all_paths_one_by_one(level: str, ends: int) -> None:
    some = 0
    for frames in range(6):
        given = draw(frames, 3, 4, 25, ends)
        with selected(level):
            found = fast_baum_welch(**given)
        for b in range(3):
            scores, edges = given["am_scores"][:, b], given["edges"]
            automaton = (edges, given["weights"], int(given["start_end_states"][0, b]))
            total, posterior, _, _ = enumerated(scores, b, *automaton, ends_of(given, b))
            with np.errstate(divide="ignore"):
                expected = -np.log(total), -np.log(posterior / total if total else posterior)
            some += bool(frames and total)
            np.testing.assert_allclose(found.fwdbwd[:, b], expected[1], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(found.obs_scores[:, b], expected[0], rtol=1e-12, atol=1e-12)
            dense = dense_total(scores, b, *automaton, ends_of(given, b))
            assert total == pytest.approx(dense, rel=1e-12)
    assert some > 3, "hardly any automaton had a path"


@each_level
@each_dtype
def test_posteriors_sum_to_one_and_the_sum_is_the_same_in_all_frames(level: str, dtype) -> None:
    costs, *automata = ctc(120, 5, 20, 30, dtype)
    lengths = np.array([120, 99, 61, 70, 118], "int32")
    with selected(level):
        found = fast_baum_welch(costs, *automata, lengths)
    for b, n in enumerate(lengths):
        np.testing.assert_allclose(np.exp(-found.fwdbwd[:n, b]).sum(-1), 1, rtol=2e-6)
        assert len(np.unique(found.obs_scores[:n, b])) == 1
        assert np.isposinf(found.fwdbwd[n:, b]).all()
        assert not found.obs_scores[n:, b].any()


@each_level
@each_dtype
def test_no_posterior_is_more_than_one(level: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    edges, weights, ends = ctc_fsa(random.integers(1, 5, (1, 200)))
    costs = random.exponential(60.0, (600, 1, 5)).astype(dtype)
    with selected(level):
        found = fast_baum_welch(costs, edges, weights.astype(dtype), ends).fwdbwd
    assert (found == 0).any(), "some class is certain"
    assert not np.signbit(found).any()


@each_level
def test_long_sequence_is_as_exact_as_in_double(level: str) -> None:
    costs, *automata = ctc(20000, 1, 6, 300)
    with selected(level):
        found = fast_baum_welch(costs, *automata)
        edges, weights, ends = automata
        wide = fast_baum_welch(costs.astype("float64"), edges, weights.astype("float64"), ends)
    np.testing.assert_allclose(found.obs_scores, wide.obs_scores, rtol=1e-6)
    shares, exact = (np.exp(-a.fwdbwd.astype("float64")) for a in (found, wide))
    assert np.abs(shares - exact).max() < 1e-3
    rows = np.linspace(0, 19999, 50).astype(int)
    np.testing.assert_allclose(shares[rows].sum(-1), 1, rtol=2e-6)


@each_level
def test_path_that_is_nowhere_near_the_best_is_not_lost(level: str) -> None:
    t, s = (
        400,
        60,
    )  # each label costs 30: the right path is e^-1800 times as likely as its neighbours
    costs = np.full((t, 1, 2), 30.0, "float32")
    costs[..., 0] = 0.001
    edges, weights, ends = ctc_fsa(np.ones((1, s), int), label_loop=False)
    with selected(level):
        found = fast_baum_welch(costs, edges, weights, ends)
    from math import lgamma

    paths = lgamma(t + 1) - lgamma(s + 1) - lgamma(t - s + 1)
    exact = 30.0 * s + 0.001 * (t - s) - paths
    np.testing.assert_allclose(found.obs_scores[0], exact, rtol=1e-6)
    np.testing.assert_allclose(np.exp(-found.fwdbwd[:, 0, 1]), s / t, rtol=1e-4)


@each_level
def test_any_number_of_threads_gives_the_same_bits(level: str) -> None:
    given = ctc(60, 7, 12, 15)
    with selected(level):
        first_of_threads(lambda: fast_baum_welch(*given))


# Long enough for threads to share a sequence, with and without the rows of all frames in memory.
LONG = {"whole": (900, 30), "parts": (5000, 90)}


def one_long(kind: str, length: int, where: str):
    """One long sequence, then another: an automaton by diagonals, or one without order."""
    t, s = LONG[length]
    costs, edges, weights, ends = ctc(t, 2, 12, s)
    if kind == "scattered":
        order = RANDOM.permutation(edges.max() + 1).astype("int32")
        edges, ends = edges.copy(), order[ends]
        edges[:2] = order[edges[:2]]
        extra = RANDOM.integers(0, len(order), (4, 200)).astype("int32")
        extra[2:] = RANDOM.integers(0, [[12], [2]], (2, 200))
        edges = np.concatenate([edges, extra], 1)
        weights = np.concatenate([weights, RANDOM.exponential(3.0, 200).astype("float32")])
    lengths = np.array([t, t // 2 + 1], "int32")
    if where == "nan":
        costs[t // 3, 1, 0] = np.nan
    if where == "no path":
        costs[t // 3, 0] = np.inf
    return costs, edges, weights, ends, lengths


@each_level
@pytest.mark.parametrize("where", ["", "nan", "no path"])
@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize("kind", ["diagonals", "scattered"])
def test_threads_that_share_long_sequences_give_the_same_bits(level, kind, length, where) -> None:
    costs, edges, weights, ends, lengths = one_long(kind, length, where)
    alone = edges[3] == 0
    one = costs[:, :1], edges[:, alone], weights[alone], ends[:, :1], lengths[:1]
    rows = np.concatenate([costs[:n, b] for b, n in enumerate(lengths)])
    starts = np.array([0, lengths[0]], "int32")

    def results():
        both = fast_baum_welch(costs, edges, weights, ends, lengths)
        packed = fast_baum_welch_packed(rows, starts, lengths, edges, weights, ends)
        return [*both, *fast_baum_welch(*one), *packed]

    with selected(level):
        first = first_of_threads(results, (1, 2, 3, 4), partial(np.array_equal, equal_nan=True))
    fwdbwd, obs, alone_fwdbwd, alone_obs, packed_fwdbwd, _ = first
    assert np.array_equal(fwdbwd[:, :1], alone_fwdbwd)
    assert np.array_equal(obs[:, :1], alone_obs)
    assert np.array_equal(packed_fwdbwd[: lengths[0]], fwdbwd[:, 0])
    assert np.isfinite(obs[:, 0]).all() == (where != "no path")
    assert np.isnan(obs[0, 1]) == (where == "nan")


# Alone, and where threads share a sequence.
@each_level
@pytest.mark.parametrize("threads", [1, 2])
def test_totals_beyond_all_numbers_are_told(level: str, threads: int) -> None:
    edges = np.zeros((4, 8), "int32")  # so that a frame is enough work to be shared
    given = edges, np.zeros(8, "float32"), np.zeros((2, 1), "int32")
    costs = np.full((20000, 1, 1), -1e4, "float32")
    with selected(level), num_threads(threads):
        found = fast_baum_welch(costs, *given)
    assert np.isnan(found.fwdbwd).all()
    assert np.isnan(found.obs_scores).all()


@each_level
def test_order_of_the_edges_and_numbers_of_the_states_do_not_matter(level: str) -> None:
    costs, edges, weights, ends = ctc(40, 4, 9, 8, "float64")
    shuffled = RANDOM.permutation(len(weights))
    far = (np.arange(edges.max() + 1)[::-1] * 1000 + 7).astype("int32")
    moved = edges[:, shuffled].copy()
    moved[:2] = far[moved[:2]]
    with selected(level):
        first = fast_baum_welch(costs, edges, weights, ends)
        second = fast_baum_welch(costs, moved, weights[shuffled], far[ends])
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@each_level
@each_dtype
def test_without_a_path_all_is_infinite_and_no_other_sequence_is_touched(level: str, dtype) -> None:
    costs, edges, weights, ends = ctc(20, 3, 8, 12, dtype)
    lengths = np.array([20, 5, 20], "int32")
    with selected(level):
        alone = fast_baum_welch(costs, edges, weights, ends)
        found = fast_baum_welch(costs, edges, weights, ends, lengths)
    assert np.isposinf(found.fwdbwd[:, 1]).all()
    assert np.isposinf(found.obs_scores[:5, 1]).all()
    assert not found.obs_scores[5:, 1].any()
    for b in (0, 2):
        assert np.array_equal(found.fwdbwd[:, b], alone.fwdbwd[:, b])


@each_level
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("where", ["scores", "weights"])
def test_what_is_no_cost_makes_its_own_sequence_nan(level: str, bad: float, where: str) -> None:
    costs, edges, weights, ends = ctc(10, 3, 8, 3)
    used = set(edges[2, edges[3] == 1].tolist())
    [unused, *_] = set(range(8)) - used
    costs[4, 1, unused] = np.nan
    with selected(level):
        clean = fast_baum_welch(costs, edges, weights, ends)
        assert not np.isnan(clean.obs_scores).any(), "a class that no edge has was looked at"
        if where == "scores":
            costs[4, 1, max(used)] = bad
        else:
            weights[np.flatnonzero(edges[3] == 1)[2]] = bad
        found = fast_baum_welch(costs, edges, weights, ends)
    assert np.isnan(found.obs_scores[:, 1]).all()
    assert np.isnan(found.fwdbwd[:, 1]).all()
    for b in (0, 2):
        assert np.array_equal(found.fwdbwd[:, b], clean.fwdbwd[:, b])


@each_level
def test_row_of_infinite_costs_leaves_no_path(level: str) -> None:
    costs, *automata = ctc(10, 2, 8, 3)
    costs[4, 1] = np.inf
    with selected(level):
        found = fast_baum_welch(costs, *automata)
    assert np.isposinf(found.obs_scores[:, 1]).all()
    assert np.isfinite(found.obs_scores[:, 0]).all()


@pytest.mark.parametrize("size", [(0, 2, 3, 4), (3, 0, 3, 4), (3, 2, 0, 4), (3, 2, 3, 0), (0,) * 4])
def test_empty_axes_give_results_without_paths(size) -> None:
    t, b, c, e = size
    found = fast_baum_welch(**draw(t, b, c, e))
    assert found.fwdbwd.shape == (t, b, c)
    assert not np.isnan(found.fwdbwd).any()


@each_level
def test_packed_frames_are_the_same_frames(level: str) -> None:
    costs, edges, weights, ends = ctc(30, 3, 8, 5)
    lengths = np.array([30, 11, 19], "int32")
    starts = np.array([22, 5, 55], "int32")  # with gaps, and not in order
    rows = np.full((80, 8), np.nan, "float32")
    for b, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        rows[start : start + n] = costs[:n, b]
    with selected(level):
        padded = fast_baum_welch(costs, edges, weights, ends, lengths)
        packed = fast_baum_welch_packed(rows, starts, lengths, edges, weights, ends)
    covered = np.zeros(80, bool)
    for b, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        covered[start : start + n] = True
        assert np.array_equal(packed.fwdbwd[start : start + n], padded.fwdbwd[:n, b])
        assert packed.obs_scores[b] == padded.obs_scores[0, b]
    assert np.isposinf(packed.fwdbwd[~covered]).all()


GOOD = {
    "am_scores": np.zeros((4, 2, 3)),
    "edges": np.array([[0, 2], [1, 3], [0, 2], [0, 1]], "int32"),
    "weights": np.zeros(2),
    "start_end_states": np.array([[0, 2], [1, 3]], "int32"),
}


@pytest.mark.parametrize(
    ("name", "place", "value", "text"),
    [
        ("edges", (0, 1), -1, r"`edges\[0, 1\]` is -1, but must be from 0 to 2147483647, a state"),
        (
            "edges",
            (2, 0),
            3,
            r"`edges\[2, 0\]` is 3, but must be from 0 to 2, the classes of `am_sc",
        ),
        ("edges", (3, 1), 2, r"`edges\[3, 1\]` is 2, but must be from 0 to 1, a sequence"),
        ("start_end_states", (1, 0), -5, r"`start_end_states\[1, 0\]` is -5, but must be"),
        (
            "lengths",
            1,
            5,
            r"`lengths\[1\]` is 5, but must be from 0 to 4, the steps of `am_scores`",
        ),
        (
            "end_states",
            (0, 0),
            2,
            r"`end_states\[0, 0\]` is 2, but must be from 0 to 1, a sequence",
        ),
    ],
)
def test_ids_and_lengths_that_fit_nothing_are_refused(name: str, place, value, text: str) -> None:
    given = {k: v.copy() for k, v in GOOD.items()}
    given |= {"lengths": np.array([4, 4], "int32"), "end_states": np.array([[0], [1]], "int32")}
    fast_baum_welch(**given)
    given[name][place] = value
    with pytest.raises(RangeError, match=f"^fast_baum_welch: {text}"):
        fast_baum_welch(**given)


def test_packed_sequences_that_share_frames_are_refused() -> None:
    given = {**GOOD, "am_scores": np.zeros((6, 3))}
    starts, lengths = np.array([0, 2], "int32"), np.array([3, 4], "int32")
    with pytest.raises(RangeError, match="frame 2 belongs to two sequences"):
        fast_baum_welch_packed(seq_starts=starts, lengths=lengths, **given)
    with pytest.raises(RangeError, match=r"`lengths\[1\]` is 5, but must be from 0 to 4"):
        fast_baum_welch_packed(seq_starts=starts, lengths=lengths + 1, **given)


# In a process of its own, since a maximum over the life of a process cannot be reset.
PEAK = """
import numpy as np, nativeops
from nativeops.bench.memory import peak
t, s = 20000, 500
costs = np.random.default_rng(0).exponential(1.0, (t, 1, 6)).astype("float32")
fsa = nativeops.ctc_fsa(np.random.default_rng(0).integers(1, 6, (1, s)))
nativeops.fast_baum_welch(costs[:9], *nativeops.ctc_fsa(np.ones((1, 2), int)))
before = peak()
found = nativeops.fast_baum_welch(costs, *fsa)
print(peak() - before - sum(array.nbytes for array in found), nativeops.get_num_threads())
"""


@without_sanitizer
def test_long_sequence_takes_no_more_memory_than_stated() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    taken, threads = map(int, done.stdout.split())
    shared = 2 * 142 + threads * (50 + 2 * 142) if threads > 1 else 0
    assert taken <= 4 * (40 + 4 * 142 + shared) * (2505 + 3) + (6 << 20)
