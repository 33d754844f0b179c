# SPDX-License-Identifier: Apache-2.0
"""segmental_loss: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nativeops import automata, fsa_loss, segmental_loss
from nativeops.errors import RangeError
from nativeops.ops._paths import with_paths
from nativeops.ops.fsa_loss import fsa_loss_grad
from nativeops.ops.segmental_loss import segmental_loss_grad
from nativeops.testing.aspects import levels, num_threads, selected

torch = pytest.importorskip("torch")
RANDOM = np.random.default_rng(11)
each_level = pytest.mark.parametrize("level", levels())


def in_order(labels: Any) -> dict[str, Any]:
    """Automata that take the labels of a row one after another, a segment each."""
    return automata.hmm(np.asarray(labels).tolist(), loop=None, forward=1.0).arguments()


def in_double(arrays: dict[str, Any]) -> dict[str, Any]:
    return {k: v.astype("float64") if v.dtype == "float32" else v for k, v in arrays.items()}


def segmented(edges: Any, b: int, start: int, most: int, frames: int) -> Iterator[Any]:
    """Each path of one sequence with each way to make up the frames: edges with their segments."""

    def walk(state: int, t: int, path: tuple[Any, ...]) -> Iterator[Any]:
        if t == frames:
            yield path, state
        for e in np.flatnonzero((edges[3] == b) & (edges[0] == state)) if t < frames else ():
            for n in range(1, min(most, frames - t) + 1):
                yield from walk(int(edges[1, e]), t + n, (*path, (int(e), t, n)))

    return walk(start, 0, ())


@each_level
def test_it_is_the_sum_over_all_segmentations_one_by_one(level: str) -> None:
    random = np.random.default_rng(3)
    made, _ = with_paths(random, {"t": 5, "b": 2, "c": 3, "e": 22, "m": 5})
    scores = random.standard_normal((3, 5, 2, 3))
    costs, models = random.exponential(1.0, (2, 3)), random.integers(0, 2, 22).astype("int32")
    given = {"length_costs": costs, "length_models": models, "lengths": np.array([5, 4], "int32")}
    with selected(level):
        loss = segmental_loss(scores, **made, **given)
        grads = segmental_loss_grad(scores, **made, **given, d_out=np.ones(2))
    edges, weights = made["edges"], made["weights"]
    d_scores, d_weights, d_costs = np.zeros(scores.shape), np.zeros(22), np.zeros(costs.shape)
    d_ends = np.zeros(5)
    for b in range(2):
        ends = [(i, s) for i, (q, s) in enumerate(made["end_states"].T) if q == b]
        paths, total = [], 0.0
        for path, last in segmented(edges, b, int(made["start_end_states"][0, b]), 3, 5 - b):
            cost = sum(weights[e] + costs[models[e], n - 1] for e, _, n in path)
            score = sum(scores[n - 1, t, b, edges[2, e]] for e, t, n in path)
            for i, state in ends:
                if state == last:
                    share = np.exp(score - cost - made["end_weights"][i])
                    paths.append((path, i, share))
                    total += share
        assert len(paths) > 20
        assert loss[b] == pytest.approx(-np.log(total), rel=1e-12)
        for path, end, share in paths:
            d_ends[end] += share / total
            for e, t, n in path:
                d_scores[n - 1, t, b, edges[2, e]] -= share / total
                d_weights[e] += share / total
                d_costs[models[e], n - 1] += share / total
    for found, expected in zip(grads, (d_scores, d_weights, d_costs, d_ends), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@each_level
def test_with_segments_of_one_frame_it_is_the_loss_of_the_automaton(level: str) -> None:
    made, lengths = with_paths(RANDOM, {"t": 30, "b": 3, "c": 4, "e": 40, "m": 4})
    logits, d_out = RANDOM.standard_normal((30, 3, 4)), RANDOM.standard_normal(3)
    with selected(level):
        loss = segmental_loss(logits[None], **made, lengths=lengths)
        grads = segmental_loss_grad(logits[None], **made, lengths=lengths, d_out=d_out)
    np.testing.assert_allclose(
        loss, fsa_loss(logits, **made, lengths=lengths, normalized=True), rtol=1e-12
    )
    expected = fsa_loss_grad(logits, **made, lengths=lengths, d_out=d_out, normalized=True)
    np.testing.assert_allclose(grads.d_scores[0], expected.d_logits, atol=1e-12)
    np.testing.assert_allclose(grads.d_weights, expected.d_weights, atol=1e-11)
    np.testing.assert_allclose(grads.d_end_weights, expected.d_end_weights, atol=1e-12)


def frame_by_frame(labels: Any, most: int, costs: Any) -> Any:
    """The same model with an edge for each frame: a chain of states for each label and length."""
    arcs = []
    for row in labels:
        own, new = [], len(row) + 1
        for i, label in enumerate(row):
            for n in range(1, most + 1):
                states = [i, *range(new, new + n - 1), i + 1]
                new += n - 1
                weights = [costs[n - 1]] + [0.0] * (n - 1)
                own += zip(states, states[1:], [int(label)] * n, weights, strict=False)
        arcs.append(own)
    ends = [{len(row): 0.0} for row in labels]
    return automata.from_arcs(arcs, 0, ends, given="cost").arguments()


@each_level
@pytest.mark.parametrize(("dtype", "close"), [("float64", 1e-11), ("float32", 1e-4)])
def test_where_scores_add_up_it_is_an_automaton_of_frames(level, dtype, close) -> None:
    most, t, b, c, s = 7, 400, 2, 5, 100
    logits = RANDOM.standard_normal((t, b, c)) * 4
    labels = RANDOM.integers(0, c, (b, s))
    costs = RANDOM.exponential(1.0, (1, most)).astype("float32")  # as automata have them
    sums = np.cumsum(np.concatenate([np.zeros((1, b, c)), logits]), 0)
    scores = np.zeros((most, t, b, c))
    for n in range(1, most + 1):
        scores[n - 1, : t - n + 1] = sums[n:] - sums[: t - n + 1]
    frames = in_double(frame_by_frame(labels, most, costs[0]))
    expected = fsa_loss(logits, **frames, normalized=True)
    d_logits = fsa_loss_grad(logits, **frames, d_out=np.ones(b), normalized=True).d_logits
    own = {k: v.astype(dtype) if v.dtype == "float32" else v for k, v in in_order(labels).items()}
    given = scores.astype(dtype), costs.astype(dtype), np.ones(b, dtype)
    with selected(level):
        loss = segmental_loss(given[0], **own, length_costs=given[1])
        grads = segmental_loss_grad(given[0], **own, length_costs=given[1], d_out=given[2])
    assert loss.dtype == dtype
    np.testing.assert_allclose(loss, expected, rtol=close)
    covered = np.zeros((t, b, c))  # what a frame has of the segments that it lies in
    for n in range(1, most + 1):
        for i in range(n):
            covered[i : t - n + 1 + i] += grads.d_scores[n - 1, : t - n + 1]
    np.testing.assert_allclose(covered, d_logits, atol=10 * close)
    np.testing.assert_allclose(grads.d_length_costs.sum(), b * s, rtol=close)


def test_gradcheck_for_scores_weights_length_costs_and_end_weights() -> None:
    sizes = {"t": 6, "b": 2, "c": 3, "e": 14, "m": 3}
    made = {k: torch.from_numpy(v) for k, v in with_paths(RANDOM, sizes)[0].items()}
    models = torch.from_numpy(RANDOM.integers(0, 2, 14).astype("int32"))
    lengths = torch.tensor([6, 4], dtype=torch.int32)

    def loss(scores, weights, costs, end_weights):
        return segmental_loss(
            scores, made["edges"], weights, made["start_end_states"], lengths, costs, models,
            made["end_states"], end_weights,
        )  # fmt: skip

    inputs = (
        torch.from_numpy(RANDOM.standard_normal((3, 6, 2, 3))).requires_grad_(),
        made["weights"].clamp(max=9.0).requires_grad_(),
        torch.from_numpy(RANDOM.exponential(1.0, (2, 3))).requires_grad_(),
        made["end_weights"].requires_grad_(),
    )
    assert torch.isfinite(loss(*inputs)).all()
    torch.autograd.gradcheck(loss, inputs)


@each_level
def test_every_frame_is_in_one_segment_however_long_a_sequence_is(level: str) -> None:
    t, most = 6000, 20
    scores = (RANDOM.standard_normal((most, t, 1, 3)) * 30).astype("float32")
    edges = np.array([[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 0], [0] * 4], "int32")
    given = edges, np.zeros(4, "float32"), np.array([[0], [1]], "int32")
    with selected(level):
        loss = segmental_loss(scores, *given)
        d_scores = segmental_loss_grad(scores, *given, np.ones(1, "float32")).d_scores
    assert np.isfinite(loss).all()
    starts = -d_scores[:, :, 0].sum(2)
    covered = sum(np.convolve(starts[n], np.ones(n + 1))[:t] for n in range(most))
    np.testing.assert_allclose(covered, 1, atol=2e-3)
    exact = segmental_loss(scores.astype("float64"), edges, np.zeros(4), given[2])
    np.testing.assert_allclose(loss, exact, rtol=1e-5)


@each_level
def test_segments_beyond_the_end_do_not_count_and_nan_stays_in_its_sequence(level: str) -> None:
    labels = np.array([[0, 1], [1, 2], [2, 0]])
    scores = RANDOM.standard_normal((4, 9, 3, 3))
    lengths = np.array([7, 9, 7], "int32")
    given = in_double(in_order(labels))
    with selected(level):
        expected = segmental_loss(scores, **given, lengths=lengths)
        for n in range(4):
            scores[n, max(0, 7 - n) :, 0] = np.nan  # would end after frame 7
        scores[2, 3, 1, 2] = np.nan
        scores[2, 3, 2, 1] = np.nan  # a class that this automaton does not have
        loss = segmental_loss(scores, **given, lengths=lengths)
        grads = segmental_loss_grad(scores, **given, lengths=lengths, d_out=np.ones(3))
    assert np.isnan(loss).tolist() == [False, True, False]
    assert np.array_equal(loss[::2], expected[::2])
    assert np.isnan(grads.d_scores[0, :, 1]).all()
    assert not np.isnan(grads.d_scores[:, :, ::2]).any()
    assert np.isnan(grads.d_weights).tolist() == [False, False, True, True, False, False]


@each_level
def test_nan_is_the_gradient_of_an_end_that_no_edge_leads_to(level: str) -> None:
    edges, ends = (
        np.array([[0, 0], [1, 1], [0, 0], [0, 1]], "int32"),
        np.array([[0, 0, 1], [1, 5, 1]]),
    )
    given = edges, np.zeros(2), np.zeros((2, 2), "int32"), np.ones(2)
    scores = np.zeros((1, 1, 2, 1))
    scores[0, 0, 0] = np.nan
    with selected(level):
        found = segmental_loss_grad(
            scores, *given, end_states=ends.astype("int32"), end_weights=np.zeros(3)
        ).d_end_weights
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1])


@each_level
def test_nan_cost_of_a_length_counts_where_an_edge_could_have_it(level: str) -> None:
    labels = np.array([[0, 1], [1, 2]])
    scores, costs = np.zeros((4, 9, 2, 3)), np.zeros((2, 4))
    costs[1, 2] = np.nan
    given = {**in_double(in_order(labels)), "length_costs": costs}
    with selected(level):
        loss = segmental_loss(scores, **given, length_models=np.array([0, 0, 0, 1], "int32"))
        assert np.isnan(loss).tolist() == [False, True]
        short = {**given, "lengths": np.array([2, 2], "int32")}  # no segment of three frames
        loss = segmental_loss(scores, **short, length_models=np.array([0, 0, 0, 1], "int32"))
    np.testing.assert_allclose(loss, 0, atol=1e-12)


@each_level
def test_without_a_path_the_loss_is_infinite_and_nothing_flows_back(level: str) -> None:
    given = in_order(np.array([[0, 1], [0, 1], [0, 1]]))
    scores = torch.randn(2, 6, 3, 2, requires_grad=True)
    lengths = torch.tensor([1, 4, 5], dtype=torch.int32)  # two segments make up 2 to 4 frames
    tensors = {k: torch.from_numpy(v) for k, v in given.items()}
    with selected(level):
        loss = segmental_loss(scores, **tensors, lengths=lengths)
        zero = segmental_loss(scores, **tensors, lengths=lengths, zero_infinity=True)
        [grad] = torch.autograd.grad(loss, scores, torch.ones(3))
    assert torch.isposinf(loss).tolist() == [True, False, True]
    assert zero[::2].tolist() == [0, 0]
    assert not grad[:, :, ::2].any()
    assert grad[:, :, 1].sum() == pytest.approx(-2)
    assert torch.isfinite(grad).all()


@each_level
def test_gradient_of_an_end_without_a_path_is_zero(level: str) -> None:
    edges, ends = np.array([[0, 1], [1, 2], [0, 0], [0, 0]], "int32"), np.array([[0, 0], [1, 2]])
    given = np.zeros((1, 3, 1, 1)), edges, np.zeros(2), np.zeros((2, 1), "int32"), np.ones(1)
    more = {"end_states": ends.astype("int32"), "end_weights": np.zeros(2)}
    places = (None, None, None, np.full(2, np.nan))
    with selected(level):  # two edges do not make up three frames
        found = segmental_loss_grad(*given, **more, out=places).d_end_weights
    assert found.tolist() == [0, 0]


@each_level
def test_scores_of_minus_infinity_are_segments_that_are_not(level: str) -> None:
    scores = np.full((3, 6, 1, 2), -np.inf)
    scores[2, 0, 0, 0] = scores[2, 3, 0, 1] = -1.5
    given = in_double(in_order(np.array([[0, 1]])))
    with selected(level):
        assert segmental_loss(scores, **given) == 3
        grads = segmental_loss_grad(scores, **given, d_out=np.ones(1))
    assert np.array_equal(grads.d_scores, np.where(scores > -np.inf, -1.0, 0.0))


@each_level
@pytest.mark.parametrize("steps", [180, 365])
def test_a_large_loss_has_the_gradients_of_a_small_one(level: str, steps: int) -> None:
    scores = np.full((2, steps, 1, 1), -1e6, "float32")
    scores[1] = -2e6
    given = np.zeros((4, 1), "int32"), np.zeros(1, "float32"), np.zeros((2, 1), "int32")
    with selected(level):
        loss = segmental_loss(scores, *given)
        grads = segmental_loss_grad(scores, *given, np.ones(1, "float32"))
    exact = segmental_loss_grad.reference(scores.astype("float64"), *given, np.ones(1))
    np.testing.assert_allclose(loss, 1e6 * steps, rtol=1e-5)
    np.testing.assert_allclose(grads.d_scores, exact.d_scores, atol=1e-4)
    np.testing.assert_allclose(grads.d_weights, exact.d_weights, rtol=1e-4)


@each_level
@pytest.mark.parametrize("arriving", [np.nan, np.inf])
def test_what_arrives_at_a_sequence_without_a_path_goes_nowhere(level: str, arriving) -> None:
    given = {
        "edges": np.array([[0, 1], [1, 2], [0, 0], [0, 1]], "int32"),
        "weights": np.zeros(2),
        "start_end_states": np.array([[0, 1], [1, 2]], "int32"),
        "lengths": np.array([3, 1], "int32"),
        "length_costs": np.zeros((2, 1)),
        "length_models": np.array([0, 1], "int32"),
    }
    scores, d_out = np.zeros((1, 3, 2, 1)), np.array([arriving, 1.0])
    with selected(level):
        found = segmental_loss_grad(scores, **given, d_out=d_out)
        both = segmental_loss_grad(scores, **{**given, "lengths": None}, d_out=d_out)
    for ours, expected in zip(
        found, segmental_loss_grad.reference(scores, **given, d_out=d_out), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)
    assert not np.nan_to_num(both.d_length_costs, nan=1).any()


@pytest.mark.parametrize(
    ("most", "t", "b", "c", "s"),
    [(0, 3, 2, 2, 0), (2, 0, 2, 2, 0), (2, 3, 0, 2, 1), (2, 0, 1, 0, 0)],
)
def test_empty_axes(most: int, t: int, b: int, c: int, s: int) -> None:
    given = in_order(np.zeros((b, s), int)) if b else {
        "edges": np.zeros((4, 0), "int32"), "weights": np.zeros(0, "float32"),
        "start_end_states": np.zeros((2, 0), "int32")}  # fmt: skip
    loss = segmental_loss(np.zeros((most, t, b, c), "float32"), **given)
    assert loss.tolist() == [np.inf if t else 0.0] * b, "without frames, the start is the end"


def test_any_number_of_threads_gives_the_same_bits() -> None:
    scores = RANDOM.standard_normal((9, 60, 7, 6)).astype("float32")
    given = in_order(RANDOM.integers(0, 6, (7, 12)))
    given["length_costs"] = RANDOM.exponential(1.0, (3, 9)).astype("float32")
    given["length_models"] = RANDOM.integers(0, 3, 7 * 12).astype("int32")
    results = []
    for n in (1, 2, 3):
        with num_threads(n):
            grads = segmental_loss_grad(scores, **given, d_out=np.ones(7, "float32"))
            results.append([segmental_loss(scores, **given), *grads])
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"length_models": np.array([0, 2], "int32")}, r"`length_models\[1\]` is 2, but must be "
         "from 0 to 1, the rows of `length_costs`"),
        ({"length_models": np.array([-1, 0], "int32")}, r"`length_models\[0\]` is -1"),
        ({"length_costs": np.zeros((0, 3), "float32")}, r"`length_models\[0\]` is 0, but there is "
         "none, the rows of `length_costs`"),
        ({"lengths": np.array([7], "int32")}, r"`lengths\[0\]` is 7, but must be from 0 to 6, the "
         "frames of `scores`"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(change: dict[str, Any], text: str) -> None:
    given = {**in_order([[0, 1]]), "length_costs": np.zeros((2, 3), "float32"), **change}
    with pytest.raises(RangeError, match=text):
        segmental_loss(np.zeros((3, 6, 1, 2), "float32"), **given)
    dead = {**given, "weights": np.full(2, np.inf, "float32"), "lengths": None}
    assert np.isposinf(segmental_loss(np.zeros((3, 6, 1, 2), "float32"), **dead)).all()
    torch = pytest.importorskip("torch")  # whose arrays without elements have no place
    arrays = {name: torch.from_numpy(np.asarray(array)) for name, array in given.items()}
    with pytest.raises(RangeError, match=text):
        segmental_loss(torch.zeros(3, 6, 1, 2), **arrays)


@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_only_path_has_all_of_the_gradient(dtype: str, level: str) -> None:
    """Also where rounding puts the total on one side of a power of two and a product beyond it."""
    random = np.random.default_rng(2)
    frames, most = 4, 4000
    scores = -random.exponential(1.0, (1, frames, most, 1))
    scores[0, 0] = 0
    scores[0, -1] -= scores.sum((0, 1)) % np.log(2)  # to a power of two
    scores = scores.astype(dtype)
    edges = np.zeros((4, most), "int32")
    edges[3] = np.arange(most)
    ends = np.zeros((2, most), "int32")
    with selected(level):
        grads = segmental_loss_grad(
            scores, edges, np.zeros(most, dtype), ends, np.ones(most, dtype)
        )
    bound = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(grads.d_scores, -np.ones_like(scores), rtol=bound)
    np.testing.assert_allclose(grads.d_weights, np.full(most, frames), rtol=bound)


@each_level
def test_totals_beyond_all_numbers_are_told(level: str) -> None:
    """What 2^(2^28) is too small for is NaN, what 2^-(2^29) is too large for is no path."""
    one = np.zeros((4, 1), "int32"), np.zeros(1, "float32"), np.zeros((2, 1), "int32")
    for score, expected in ((1e4, np.nan), (-3e4, np.inf)):
        scores = np.full((1, 20000, 1, 1), score, "float32")
        with selected(level):
            loss = segmental_loss(scores, *one)
            grads = segmental_loss_grad(scores, *one, d_out=np.ones(1, "float32"))
        np.testing.assert_array_equal(loss, expected)
        value = np.nan if np.isnan(expected) else 0
        np.testing.assert_array_equal(grads.d_scores, np.full(scores.shape, value))
