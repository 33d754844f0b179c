# SPDX-License-Identifier: Apache-2.0
"""fast_viterbi: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

from functools import partial
from operator import eq
from typing import Any

import networkx
import numpy as np
import pytest

from nativeops import ctc_fsa, fast_baum_welch, fast_viterbi, forced_align
from nativeops.errors import RangeError
from nativeops.ops._paths import example
from nativeops.testing.aspects import first_of_threads, levels, selected
from nativeops.testing.paths import all_paths, enumerated

RANDOM = np.random.default_rng(4)
each_level = pytest.mark.parametrize("level", levels())


@each_level
@pytest.mark.parametrize("ends", [False, True])
def test_best_of_all_paths_is_found(level: str, ends: bool) -> None:
    some = 0
    for frames in range(6):
        made = example(RANDOM, {"b": 3, "c": 4, "e": 25, **({"m": 7} if ends else {})})
        scores = RANDOM.standard_normal((frames, 3, 4))
        with selected(level):
            found = fast_viterbi(scores, **made)
        for b in range(3):
            finals = {int(made["start_end_states"][1, b]): 0.0}
            if ends and b in made["end_states"][0]:
                rows = zip(*made["end_states"], made["end_weights"], strict=True)
                finals = {}
                for q, s, w in rows:
                    finals |= {int(s): min(w, finals.get(int(s), np.inf))} if q == b else {}
            automaton = made["edges"], made["weights"], int(made["start_end_states"][0, b]), finals
            best = -enumerated(-scores[:, b], b, *automaton)[3]
            assert found.scores[b] == pytest.approx(best, abs=1e-12)
            path = found.alignment[:, b].tolist()
            if best == -np.inf:
                assert path == [-1] * frames
            else:
                some += frames > 0
                costs = [
                    end + sum(-scores[t, b, k] + made["weights"][e] for t, (k, e) in enumerate(z))
                    for way, end in all_paths(made["edges"], b, automaton[2], finals, frames)
                    if (z := list(zip(path, way, strict=True)))
                    and [made["edges"][2, e] for e in way] == path
                ]
                assert not frames or min(costs) == pytest.approx(-best, abs=1e-12)
    assert some > 3, "hardly any automaton had a path"


@each_level
def test_equals_the_shortest_path_in_the_unrolled_graph(level: str) -> None:
    costs = RANDOM.exponential(1.0, (30, 2, 6))
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, 6, (2, 9)))
    with selected(level):
        found = fast_viterbi(-costs, edges, weights.astype("float64"), ends)
    for b in range(2):
        graph = networkx.MultiDiGraph()
        for source, to, label, _ in edges[:, (edges[3] == b) & (weights < np.inf)].T:
            for t in range(30):
                graph.add_edge((t, source), (t + 1, to), weight=costs[t, b, label])
        nodes = (0, ends[0, b]), (30, ends[1, b])
        shortest = networkx.dijkstra_path_length(graph, *nodes)
        assert found.scores[b] == pytest.approx(-shortest, rel=1e-12)


@each_level
@pytest.mark.parametrize("label_loop", [True, False])
def test_on_an_automaton_of_ctc_it_is_the_forced_alignment(level: str, label_loop: bool) -> None:
    scores = RANDOM.standard_normal((70, 5, 12))
    targets, frames = RANDOM.integers(1, 12, (5, 20)), np.array([70, 50, 61, 44, 19])
    lengths = np.array([20, 13, 0, 20, 20])
    edges, weights, ends = ctc_fsa(targets, lengths, label_loop=label_loop)
    with selected(level):
        found = fast_viterbi(scores, edges, weights.astype("float64"), ends, frames.astype("int32"))
        aligned = forced_align(scores, targets, frames, lengths, label_loop=label_loop)
    assert np.array_equal(found.alignment, aligned.labels)
    np.testing.assert_allclose(found.scores, aligned.scores.sum(0), rtol=1e-12)
    assert found.scores[4] == -np.inf, "20 labels have no place in 19 frames"


@each_level
def test_of_equal_edges_the_first_of_the_list_is_taken(level: str) -> None:
    arcs = [(0, 1, 2, 0), (0, 1, 1, 0), (1, 2, 0, 0), (0, 3, 3, 0), (3, 2, 0, 0)]
    ends = np.array([[0], [2]], "int32")
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 0, 4, 2, 3]):
        edges = np.array([arcs[i] for i in order], "int32").T
        into = next(i for i in order if arcs[i][1] == 2)
        first = next(i for i in order if arcs[i][1] == arcs[into][0])
        with selected(level):
            found = fast_viterbi(
                np.zeros((2, 1, 4), "float32"), edges, np.zeros(5, "float32"), ends
            )
        assert found.alignment[:, 0].tolist() == [arcs[first][2], 0]


@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("masked", ["lowest", -1e20])
@pytest.mark.parametrize("diagonal", [True, False])
def test_class_that_is_ruled_out_leaves_the_best_path_of_the_others(
    level: str, dtype: str, masked, diagonal
) -> None:
    """The path has to say the class once, and is otherwise as probable as without its score."""
    scores = np.log([[0.9, 0.1, 1], [0.1, 0.9, 1], [0.9, 0.1, 1], [0.2, 0.8, 1], [0.9, 0.1, 1]])
    scores[:, 2] = np.finfo(dtype).min if masked == "lowest" else masked
    edges, weights, ends = ctc_fsa(np.array([[1, 2]]))
    order = np.arange(len(weights)) if diagonal else RANDOM.permutation(len(weights))
    weights = weights.astype(dtype)
    with selected(level):
        found = fast_viterbi(scores.astype(dtype)[:, None], edges[:, order], weights[order], ends)
    expected = forced_align(scores.astype(dtype)[:, None], np.array([[1, 2]])).labels
    assert np.array_equal(found.alignment, expected)
    assert found.scores == pytest.approx(-(2.0**36), rel=1e-6)


@each_level
def test_long_sequence_loses_nothing(level: str) -> None:
    scores = (RANDOM.standard_normal((20000, 1, 6)) - 3).astype("float32")
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, 6, (1, 300)))
    with selected(level):
        narrow = fast_viterbi(scores, edges, weights, ends)
        wide = fast_viterbi(scores.astype("float64"), edges, weights.astype("float64"), ends)
    assert np.array_equal(narrow.alignment, wide.alignment)
    assert narrow.scores == wide.scores.astype("float32")


@each_level
def test_without_a_path_all_is_masked(level: str) -> None:
    edges, weights, ends = ctc_fsa(np.array([[1, 2, 3], [1, 1, 1]]))
    scores = np.zeros((6, 2, 4), "float32")
    lengths = np.array([5, 4], "int32")
    with selected(level):
        found = fast_viterbi(scores, edges, weights, ends, lengths, mask_idx=77)
    assert (found.alignment[:5, 0] != 77).all()
    assert found.alignment[5, 0] == 77
    assert (found.alignment[:, 1] == 77).all()
    assert found.scores.tolist() == [0, -np.inf]


@each_level
def test_nan_stays_in_its_sequence(level: str) -> None:
    edges, weights, ends = ctc_fsa(np.array([[1, 2], [1, 2]]))
    scores = np.zeros((6, 2, 4), "float32")
    scores[:, 0, 3] = scores[3, 1, 2] = np.nan
    with selected(level):
        found = fast_viterbi(scores, edges, weights, ends)
    assert np.isnan(found.scores).tolist() == [False, True]
    assert (found.alignment[:, 1] == -1).all()


@each_level
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_weight_that_is_no_cost_makes_its_own_sequence_nan(level: str, bad: float) -> None:
    edges, weights, ends = ctc_fsa(np.array([[1, 2], [1, 2]]))
    weights[np.flatnonzero(edges[3] == 1)[2]] = bad
    with selected(level):
        found = fast_viterbi(np.zeros((6, 2, 4), "float32"), edges, weights, ends)
    assert np.isnan(found.scores).tolist() == [False, True]
    assert (found.alignment[:, 1] == -1).all()


@each_level
def test_any_number_of_threads_gives_the_same_bits(level: str) -> None:
    scores = RANDOM.standard_normal((50, 7, 12)).astype("float32")
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, 12, (7, 15)))
    with selected(level):
        first_of_threads(lambda: fast_viterbi(scores, edges, weights, ends))


def quarters(random: np.random.Generator, *shape: int) -> Any:
    """Numbers of which many are equal, and so are many sums of them."""
    return (np.round(random.standard_normal(shape) * 4) / 4).astype("float32")


def bits(*args: Any, **options: Any) -> list[bytes]:
    return [array.tobytes() for array in fast_viterbi(*args, **options)]


def check_levels(*args: Any, **options: Any) -> None:
    """All have the bits of the portable kernel, ties and NaN included."""
    with selected("portable"):
        expected = bits(*args, **options)
    for level in levels():
        with selected(level):
            assert bits(*args, **options) == expected, level


def hmm(
    random: np.random.Generator, states: int, more: tuple[tuple[int, int], ...] = (), odd: float = 0
) -> tuple[Any, Any]:
    """A left-to-right automaton with loops and skips, arcs to a state in any order.

    A part of the arcs, `odd`, emits another class than the others that lead to the same state.
    """
    emitted = random.integers(1, 9, states)
    arcs = [(s, s + k) for s in range(states) for k in (0, 1, 2, 3) if s + k < states]
    arcs = [arc for arc in arcs if arc[1] - arc[0] < 3 or random.random() < 0.5] + list(more)
    random.shuffle(arcs)
    arcs.sort(key=lambda arc: arc[1])
    edges = [(a, b, 0 if random.random() < odd else emitted[b], 0) for a, b in arcs]
    return np.array(edges, "int32").T, np.abs(quarters(random, len(edges)))


@pytest.mark.parametrize("kind", ["quarters", "zeros", "minus infinity", "nan", "float64"])
@pytest.mark.parametrize("size", [0, 1, 3, 17, 200])
def test_levels_take_the_same_path_of_equal_ones_through_ctc(size: int, kind: str) -> None:
    random = np.random.default_rng(size)
    for labels in (2, 6, 60):
        targets, widths = random.integers(1, labels, (6, size)), random.integers(0, size + 1, 6)
        scores = quarters(random, 2 * size + 9, 6, labels)
        if kind == "zeros":
            scores[:] = 0
        elif kind == "minus infinity":
            scores[random.random(scores.shape) < 0.02] = -np.inf
            scores[size // 2, 1] = -np.inf
        elif kind == "nan":
            scores[size // 2, [1, 3], labels // 2] = np.nan, np.inf
        elif kind == "float64":
            scores = scores + random.standard_normal(scores.shape)
        lengths = np.array([0, 1, 2, 2 * size + 9, 2 * size + 1, size], "int32")
        edges, weights, ends = ctc_fsa(targets, widths)
        costs = weights + quarters(random, *weights.shape)
        fewer = np.where(random.random(costs.shape) < 0.01, np.inf, costs)
        for some in (weights, costs, fewer):
            check_levels(scores, edges, some.astype(scores.dtype), ends, lengths)


@pytest.mark.parametrize("states", [1, 2, 15, 16, 17, 70, 300])
def test_levels_take_the_same_path_of_equal_ones_through_hmms(states: int) -> None:
    random = np.random.default_rng(states)
    for more in ((), ((states - 1, 0),), ((0, states - 1), (states // 2, states - 1))):
        edges, weights = hmm(random, states, more, 0.02)
        ends = np.array([[0], [states - 1]], "int32")
        finals = np.array([[0] * 3, [states - 1, states // 2, states - 1]], "int32")
        scores, costs = quarters(random, 2 * states, 1, 9), quarters(random, 3)
        check_levels(scores, edges, weights, ends)
        check_levels(scores, edges, weights, ends, end_states=finals, end_weights=costs)
        mixed = random.permutation(len(weights))
        check_levels(scores, edges[:, mixed], weights[mixed], ends)
        # The last state is numbered first, so that arcs lead to smaller numbers.
        check_levels(scores, edges[:, ::-1], weights[::-1], ends)


@pytest.mark.parametrize("far", [15, 16, 17])
def test_long_arcs_of_many_states_are_taken(far: int) -> None:
    random = np.random.default_rng(far)
    arcs = [(s, s + k) for s in range(70) for k in (0, 1, far) if s + k < 70]
    arcs.sort(key=lambda arc: arc[1])
    edges = np.array([(a, b, b % 4, 0) for a, b in arcs], "int32").T
    weights, ends = np.abs(quarters(random, len(arcs))), np.array([[0], [69]], "int32")
    scores = quarters(random, 40, 1, 4)
    check_levels(scores, edges, weights, ends)
    expected = fast_baum_welch.reference(-scores.astype("float64"), edges, weights, ends)
    for level in levels():
        with selected(level):
            found = fast_baum_welch(-scores, edges, weights, ends)
        np.testing.assert_allclose(found.obs_scores, expected.obs_scores, rtol=1e-5)


def test_levels_take_the_same_path_of_equal_ones_through_any_automata() -> None:
    for edges in range(0, 60, 7):
        made = example(RANDOM, {"b": 5, "c": 4, "e": edges, "m": 4})
        made = {k: quarters(RANDOM, *v.shape) if v.dtype == float else v for k, v in made.items()}
        check_levels(quarters(RANDOM, 12, 5, 4), **made)


@pytest.mark.parametrize("kind", ["ctc", "repeats", "hmm", "far arcs", "arc back", "backwards"])
def test_threads_that_share_a_sequence_give_the_same_bits(kind: str) -> None:
    # More than 2^22 states in all frames, and ranges of them for three threads.
    random = np.random.default_rng(7)
    if kind in ("ctc", "repeats"):
        edges, weights, ends = ctc_fsa(random.integers(1, 20 if kind == "ctc" else 3, (1, 310)))
    else:
        more = {"far arcs": ((3, 500), (250, 280)), "arc back": ((400, 300),)}.get(kind, ())
        edges, weights = hmm(random, 620, more, 0.02 if more else 0)
        if kind == "backwards":  # state 1 is numbered last, and arcs lead to smaller numbers
            kept = np.flatnonzero((edges[0] > 0) | (edges[1] < 2))[::-1]
            edges, weights = edges[:, kept], weights[kept]
        ends = np.array([[0], [619]], "int32")
    scores = quarters(random, 6500, 1, 20)
    check_levels(scores, edges, weights, ends)
    scores[6400:, 0, 1] += np.float32(0.1)
    for spoilt in (scores, np.where(np.arange(6500)[:, None, None] == 3000, np.nan, scores)):
        first_of_threads(partial(bits, spoilt, edges, weights, ends), same=eq)


@pytest.mark.parametrize("lengths", [[6500, 6400], [6500, 20], [20, 6500]])
def test_threads_that_share_one_of_two_sequences_give_the_same_bits(lengths: list[int]) -> None:
    random = np.random.default_rng(8)
    edges, weights, ends = ctc_fsa(random.integers(1, 20, (2, 310)), np.array([310, 300]))
    given = quarters(random, 6500, 2, 20), edges, weights, ends, np.array(lengths, "int32")
    check_levels(*given)
    first_of_threads(lambda: bits(*given), (1, 2, 3, 4, 8), eq)


# Rows are not written anew before all threads have read them.
def test_threads_read_far_rows_in_time() -> None:
    random = np.random.default_rng(3)
    edges, weights = hmm(random, 1100, ((3, 1000), (3, 900), (3, 800)))
    far = edges[1] - edges[0] > 100
    weights[:] = 4
    weights[far] = 0
    weights[edges[0] == edges[1]] = 0
    scores, ends = quarters(random, 4100, 1, 9), np.array([[0], [1099]], "int32")
    first_of_threads(lambda: bits(scores, edges, weights, ends), (1, 2, 3, 4, 4, 4), eq)


@pytest.mark.parametrize("size", [(0, 2, 3, 4), (3, 0, 3, 4), (3, 2, 0, 4), (3, 2, 3, 0), (0,) * 4])
def test_empty_axes(size) -> None:
    t, b, c, e = size
    made = example(RANDOM, {"b": b, "c": c, "e": e})
    found = fast_viterbi(np.zeros((t, b, c)), **made)
    assert found.alignment.shape == (t, b)
    assert not np.isnan(found.scores).any()


def test_class_that_has_no_score_is_refused() -> None:
    edges, weights, ends = ctc_fsa(np.array([[1, 4]]))
    text = (
        r"^fast_viterbi: `edges\[2, 4\]` is 4, but must be from 0 to 3, the classes of `am_scores`"
    )
    with pytest.raises(RangeError, match=text):
        fast_viterbi(np.zeros((5, 1, 4), "float32"), edges, weights, ends)


@each_level
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e30), ("float64", 1e300)])
def test_finite_scores_and_weights_may_have_any_size(dtype: str, size: float, level: str) -> None:
    scores = np.array([3e6, -3e9, size, -size], dtype).reshape(4, 1, 1)
    edges = np.array([[0, 0, 1], [0, 1, 1], [0, 0, 0], [0, 0, 0]], "int32")
    ends = np.array([[0], [1]], "int32")
    for weight in (-1e7, -size, size):
        weights = np.array([0, weight, 0], dtype)
        with selected(level):
            found = fast_viterbi(scores, edges, weights, ends)
        parts = np.clip([*scores.ravel().astype("float64"), -weight], -(2.0**36), 2.0**36)
        np.testing.assert_allclose(found.scores, parts.sum())
        assert not found.alignment.any()
    for wrong in (np.nan, np.inf):
        scores[1] = wrong
        with selected(level):
            assert np.isnan(fast_viterbi(scores, edges, np.zeros(3, dtype), ends).scores).all()


@each_level
def test_finite_end_weights_may_have_any_size(level: str) -> None:
    given = np.zeros((3, 1, 1)), np.zeros((4, 1), "int32"), np.zeros(1), np.zeros((2, 1), "int32")
    ends, costs = np.zeros((2, 1), "int32"), np.array([1e300])
    with selected(level):
        found = fast_viterbi(*given, end_states=ends, end_weights=costs)
    assert found.scores.tolist() == [-(2.0**36)]
    assert not found.alignment.any()


def test_what_alignments_say_beyond_the_end_fits_in_32_bits() -> None:
    given = np.zeros((2, 1, 1)), np.zeros((4, 0), "int32"), np.zeros(0), np.zeros((2, 1), "int32")
    with pytest.raises(RangeError, match=r"fast_viterbi: `mask_idx` must be"):
        fast_viterbi(*given, mask_idx=2**31)
