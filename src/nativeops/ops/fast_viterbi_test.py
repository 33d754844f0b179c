# SPDX-License-Identifier: Apache-2.0
"""fast_viterbi: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import networkx
import numpy as np
import pytest

from nativeops import ctc_fsa, fast_viterbi, forced_align
from nativeops.errors import RangeError
from nativeops.ops._paths import example
from nativeops.testing.aspects import levels, num_threads, selected
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
            if ends:
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
        graph = networkx.DiGraph()
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
def test_any_number_of_threads_gives_the_same_bits(level: str) -> None:
    scores = RANDOM.standard_normal((50, 7, 12)).astype("float32")
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, 12, (7, 15)))
    results = []
    with selected(level):
        for n in (1, 2, 3):
            with num_threads(n):
                results.append(fast_viterbi(scores, edges, weights, ends))
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


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
        r"^fast_viterbi: `edges\[2, 6\]` is 4, but must be from 0 to 3, the classes of `am_scores`"
    )
    with pytest.raises(RangeError, match=text):
        fast_viterbi(np.zeros((5, 1, 4), "float32"), edges, weights, ends)
