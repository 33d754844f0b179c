# SPDX-License-Identifier: Apache-2.0
"""fsa_loss: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import numpy as np
import pytest

from nativeops import ctc_fsa, fast_baum_welch, fsa_loss, segmental_loss
from nativeops.ops._paths import example
from nativeops.ops.fsa_loss import fsa_loss_grad
from nativeops.testing.aspects import first_of_threads, levels, selected
from nativeops.testing.paths import enumerated

torch = pytest.importorskip("torch")
RANDOM = np.random.default_rng(8)
each_level = pytest.mark.parametrize("level", levels())


def ctc(t: int, b: int, c: int, s: int, blank: int = 0, kind=torch.float64):
    labels = RANDOM.integers(0, c - 1, (b, s))
    targets = torch.from_numpy(labels + (labels >= blank))
    logits = torch.from_numpy(RANDOM.standard_normal((t, b, c))).to(kind).requires_grad_()
    frames = torch.from_numpy(RANDOM.integers(t // 2, t + 1, b))
    lengths = torch.from_numpy(RANDOM.integers(0, s + 1, b))
    edges, weights, ends = ctc_fsa(targets, lengths, blank=blank)
    return logits, targets, frames, lengths, (edges, weights.to(kind), ends)


@each_level
@pytest.mark.parametrize("blank", [0, 3, 8])
@pytest.mark.parametrize("normalized", [False, True])
def test_on_an_automaton_of_ctc_it_is_torchs_ctc_loss(level: str, blank, normalized: bool) -> None:
    logits, targets, frames, lengths, fsa = ctc(50, 7, 9, 12, blank)
    given = logits.log_softmax(-1).detach().requires_grad_() if normalized else logits
    arriving = torch.from_numpy(RANDOM.standard_normal(7))
    with selected(level):
        loss = fsa_loss(given, *fsa, frames.int(), normalized=normalized)
        [ours] = torch.autograd.grad(loss, given, arriving)
    log_probs = given if normalized else given.log_softmax(-1)
    theirs = torch.nn.functional.ctc_loss(
        log_probs, targets, frames, lengths, blank, reduction="none"
    )
    torch.testing.assert_close(loss, theirs, rtol=1e-12, atol=1e-12)
    if not normalized:  # torch's own gradient assumes that a softmax follows
        [expected] = torch.autograd.grad(theirs, given, arriving)
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


@each_level
def test_gradients_are_those_of_the_sum_over_all_paths(level: str) -> None:
    random = np.random.default_rng(1)
    made = example(random, {"b": 2, "c": 3, "e": 50, "m": 8})
    logits = random.standard_normal((4, 2, 3))
    with selected(level):
        loss = fsa_loss(logits, **made, normalized=True)
        grads = fsa_loss_grad(logits, **made, d_out=np.ones(2), normalized=True)
    for b in range(2):
        ends: dict[int, float] = {}
        for q, s, w in zip(*made["end_states"], made["end_weights"], strict=True):
            ends |= {int(s): ends.get(int(s), 0) + np.exp(-w)} if q == b else {}
        ends = {s: -np.log(share) for s, share in ends.items()}
        assert ends, "a sequence has no end states of its own"
        start = int(made["start_end_states"][0, b])
        automaton = made["edges"], made["weights"], start, ends
        total, posterior, taken, _ = enumerated(-logits[:, b], b, *automaton)
        assert total > 0
        assert loss[b] == pytest.approx(-np.log(total), rel=1e-12)
        np.testing.assert_allclose(grads.d_logits[:, b], -posterior / total, atol=1e-12)
        own = made["edges"][3] == b
        np.testing.assert_allclose(grads.d_weights[own], taken[own] / total, atol=1e-12)
        assert grads.d_end_weights[made["end_states"][0] == b].sum() == pytest.approx(1)


@pytest.mark.parametrize("normalized", [False, True])
def test_gradcheck_for_logits_weights_and_end_weights(normalized: bool) -> None:
    made = {
        k: torch.from_numpy(v)
        for k, v in example(RANDOM, {"b": 2, "c": 3, "e": 14, "m": 3}).items()
    }
    made["weights"] = made["weights"].clamp(max=9.0)
    logits = torch.from_numpy(RANDOM.standard_normal((5, 2, 3))).requires_grad_()
    lengths = torch.tensor([5, 3], dtype=torch.int32)

    def loss(logits, weights, end_weights):
        return fsa_loss(
            logits, made["edges"], weights, made["start_end_states"], lengths,
            made["end_states"], end_weights, normalized=normalized, zero_infinity=True,
        )  # fmt: skip

    inputs = logits, made["weights"].requires_grad_(), made["end_weights"].requires_grad_()
    assert (loss(*inputs) != 0).any()
    torch.autograd.gradcheck(loss, inputs)


@each_level
@pytest.mark.parametrize("offset", [-1e9, -1e4, 1e6])
def test_what_is_added_to_all_logits_changes_nothing(level: str, offset: float) -> None:
    """Beyond the rounding of the logits themselves: the sum of a frame keeps its digits."""
    x = torch.randn(40, 2, 12) + offset
    arguments = ctc_fsa(torch.tensor([[1, 2, 2, 5], [3, 7, 1, 9]], dtype=torch.int32))
    made = []
    for dtype in (torch.float32, torch.float64):
        own = x.to(dtype).requires_grad_()
        rest = [a.to(dtype) if a.is_floating_point() else a for a in arguments]
        with selected(level):
            loss = fsa_loss(own, *rest)
            made.append([loss.detach(), torch.autograd.grad(loss.sum(), own)[0]])
    for found, expected in zip(*made, strict=True):
        torch.testing.assert_close(found, expected.float(), rtol=2e-6, atol=2e-6)


@each_level
@pytest.mark.parametrize("size", [1e4, 1e5, 2e6])
def test_paths_by_a_class_that_is_masked_everywhere_differ_as_in_double(level, size) -> None:
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((30, 2, 6))).float()
    x[..., 3] = -size
    targets = torch.tensor([[1, 3, 2], [3, 1, 2]])
    edges, weights, ends = ctc_fsa(targets)
    own = x.requires_grad_()
    with selected(level):
        loss = fsa_loss(own, edges, weights, ends)
        [found] = torch.autograd.grad(loss.sum(), own)
    log_probs = x.double().log_softmax(-1)
    lengths = torch.full((2,), 30), torch.full((2,), 3)
    theirs = torch.nn.functional.ctc_loss(log_probs, targets, *lengths, reduction="none")
    [expected] = torch.autograd.grad(theirs.sum(), own)
    torch.testing.assert_close(loss, theirs.float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(found, expected, rtol=0, atol=4e-6)


@each_level
def test_infeasible_target_is_infinite_with_zero_gradient(level: str) -> None:
    logits = torch.randn(4, 3, 5, requires_grad=True)
    edges, weights, ends = ctc_fsa(torch.tensor([[1, 2, 3], [1, 1, 1], [4, 2, 1]]))
    with selected(level):
        loss = fsa_loss(logits, edges, weights, ends)
        zero = fsa_loss(logits, edges, weights, ends, zero_infinity=True)
        [grad] = torch.autograd.grad(loss, logits, torch.ones(3))
    assert torch.isposinf(loss).tolist() == [False, True, False]
    assert zero[1] == 0
    assert torch.equal(zero[::2], loss[::2])
    assert not grad[:, 1].any()
    assert grad[:, ::2].any()
    assert torch.isfinite(grad).all()


@each_level
def test_row_of_minus_infinity_has_no_path_and_frames_beyond_the_end_do_not_count(level) -> None:
    logits, *_, fsa = ctc(12, 3, 5, 2)
    with torch.no_grad():
        logits[3, 0] = -torch.inf
        logits[8:, 1] = torch.nan
    lengths = torch.tensor([12, 8, 12], dtype=torch.int32)
    with selected(level):
        loss = fsa_loss(logits, *fsa, lengths)
        [grad] = torch.autograd.grad(loss.sum(), logits)
    assert torch.isposinf(loss[0])
    assert torch.isfinite(loss[1:]).all()
    assert torch.isfinite(grad).all()
    assert not grad[:, 0].any()
    assert not grad[8:, 1].any()


@each_level
def test_nan_logit_makes_its_own_sequence_nan(level: str) -> None:
    logits, *_, fsa = ctc(12, 3, 5, 2)
    with torch.no_grad():
        logits[3, 1, 0] = torch.nan
    with selected(level):
        loss = fsa_loss(logits, *fsa)
        [grad] = torch.autograd.grad(loss.sum(), logits)
    assert torch.isnan(loss).tolist() == [False, True, False]
    assert torch.isnan(grad[:, 1]).all()
    assert not torch.isnan(grad[:, ::2]).any()


@each_level
@pytest.mark.parametrize("frame", [0, 4, 5, 9])
def test_nan_in_any_frame_is_seen(level: str, frame: int) -> None:
    edges, weights, ends = ctc_fsa(np.array([[1, 2], [1, 2]]))
    logits = np.zeros((10, 2, 4), "float32")
    logits[frame, 1, 2] = np.nan
    with selected(level):
        loss = fsa_loss(logits, edges, weights, ends, normalized=True)
    assert np.isnan(loss).tolist() == [False, True]


@each_level
def test_nan_logit_makes_gradients_of_its_automaton_nan_and_of_no_other(level: str) -> None:
    logits = RANDOM.standard_normal((12, 3, 5))
    logits[3, 1, 0] = np.nan
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, 5, (3, 2)))
    given = np.ones(3), None, np.array([[0, 1, 2], ends[1]], "int32"), np.zeros(3)
    with selected(level):
        grads = fsa_loss_grad(logits, edges, weights.astype("float64"), ends, *given)
    assert np.isnan(grads.d_weights[(edges[3] == 1) & (weights < np.inf)]).all()
    assert not np.isnan(grads.d_weights[edges[3] != 1]).any()
    assert np.isnan(grads.d_end_weights).tolist() == [False, True, False]
    np.testing.assert_allclose(grads.d_end_weights[::2], 1, rtol=1e-6)


def test_all_mass_on_the_target_costs_nothing() -> None:
    logits = np.full((6, 1, 4), -np.inf, "float32")
    for t, label in enumerate([0, 2, 2, 0, 2, 0]):
        logits[t, 0, label] = 0
    edges, weights, ends = ctc_fsa(np.array([[2, 2]]))
    assert str(fsa_loss(logits, edges, weights, ends)[0]) == "0.0"
    grads = fsa_loss_grad(logits, edges, weights, ends, np.ones(1, "float32"))
    assert np.abs(grads.d_logits).max() == 0


@pytest.mark.parametrize("size", [(0, 2, 3, 1), (4, 0, 3, 2), (4, 2, 3, 0), (0, 0, 1, 0)])
def test_empty_axes(size) -> None:
    t, b, c, s = size
    edges, weights, ends = ctc_fsa(np.ones((b, s), int))
    loss = fsa_loss(np.zeros((t, b, c), "float32"), edges, weights, ends)
    assert loss.shape == (b,)
    if t == 0 or s:
        assert np.isposinf(loss).all(), "the end state is reached in a frame, not without one"
    else:
        np.testing.assert_allclose(loss, t * np.log(c), rtol=1e-6)


@each_level
def test_any_number_of_threads_gives_the_same_bits(level: str) -> None:
    logits, *_, fsa = ctc(60, 7, 12, 15, kind=torch.float32)
    arrays = logits.detach().numpy(), *(a.numpy() for a in fsa)

    def results():
        grads = fsa_loss_grad(*arrays, np.ones(7, "float32"))
        return [fsa_loss(*arrays), grads.d_logits, grads.d_weights]

    with selected(level):
        first_of_threads(results)


@each_level
@pytest.mark.parametrize(("t", "s"), [(900, 30), (5000, 90)])
@pytest.mark.parametrize("scattered", [False, True])
def test_threads_that_share_long_sequences_give_the_same_bits(level, t, s, scattered) -> None:
    logits = RANDOM.standard_normal((t, 2, 12)).astype("float32")
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, 12, (2, s)))
    weights = weights.astype("float32")
    if scattered:  # states are numbered as edges come: no diagonals are left
        mixed = RANDOM.permutation(edges.shape[1])
        edges, weights = edges[:, mixed], weights[mixed]
    lengths = np.array([t, t // 2 + 1], "int32")
    some = np.array([[0, 0, 1], [ends[1, 0], ends[1, 0], ends[1, 1]]], "int32")
    given = lengths, some, np.array([0.5, 1.5, 0.0], "float32")
    d_out = np.array([0.7, -1.0], "float32")
    one = edges[3] == 0
    alone = logits[:, :1], edges[:, one], weights[one], ends[:, :1]
    its = {"end_states": some[:, :2], "end_weights": given[2][:2]}

    def results():
        return [
            fsa_loss(logits, edges, weights, ends, *given),
            fsa_loss(*alone, **its),
            *fsa_loss_grad(logits, edges, weights, ends, d_out, *given),
            *fsa_loss_grad(*alone, d_out[:1], **its),
        ]

    with selected(level):
        first = first_of_threads(results, (1, 2, 3, 4))
    loss, alone_loss, d_logits, d_weights, d_ends, alone_logits, alone_weights, alone_ends = first
    assert np.array_equal(d_ends[:2], alone_ends)
    assert np.isfinite(loss).all()
    assert loss[0] == alone_loss[0]
    assert np.array_equal(d_logits[:, :1], alone_logits)
    assert np.array_equal(d_weights[one], alone_weights)
    np.testing.assert_allclose(d_weights[one].sum(), 0.7 * t, rtol=1e-4)


def test_posteriors_of_baum_welch_are_the_gradient() -> None:
    logits, *_, fsa = ctc(40, 4, 9, 8)
    costs = -logits.log_softmax(-1).detach()
    found = fast_baum_welch(costs, *fsa)
    loss = fsa_loss(-costs, *fsa, normalized=True)
    finite = torch.isfinite(loss)
    torch.testing.assert_close(found.obs_scores[0], loss, rtol=1e-12, atol=0)
    grad = torch.autograd.grad(fsa_loss(logits, *fsa).sum(), logits)[0]
    expected = (-costs).exp() - (-found.fwdbwd).exp()
    torch.testing.assert_close(grad[:, finite], expected[:, finite], rtol=0, atol=1e-12)


@each_level
@pytest.mark.parametrize("batch", [1, 3])
def test_totals_beyond_all_numbers_are_told(batch: int, level: str) -> None:
    """What 2^(2^28) is too small for is NaN, what 2^-(2^29) is too large for is no path."""
    edges = np.zeros((4, batch), "int32")
    edges[3] = np.arange(batch)
    ends = np.zeros((2, batch), "int32")
    for score, expected in ((1e4, np.nan), (-3e4, np.inf)):
        logits = np.full((20000, batch, 1), score, "float32")
        one = edges, np.zeros(batch, "float32"), ends
        with selected(level):
            loss = fsa_loss(logits, *one, normalized=True)
            sums = fast_baum_welch(-logits, *one).obs_scores
            grads = fsa_loss_grad(logits, *one, np.ones(batch, "float32"), normalized=True)
        np.testing.assert_array_equal(loss, np.full(batch, expected))
        np.testing.assert_array_equal(sums[0] if sums.ndim > 1 else sums, np.full(batch, expected))
        value = np.nan if np.isnan(expected) else 0
        np.testing.assert_array_equal(grads.d_logits, np.full(logits.shape, value))


@each_level
def test_sum_that_was_beyond_all_numbers_on_the_way_is_told(level: str) -> None:
    """The first frames together are as -inf, the others as +inf: NaN or +inf, no wrong number."""
    costs = np.array([-2.8e6] * 150 + [2.8e6] * 150, "float32")
    scores = np.repeat(costs[:, None, None], 2, 2)
    arcs = np.array([[0, 0, 1], [0, 1, 1], [0, 1, 1], [0, 0, 0]], "int32")
    one = arcs, np.zeros(3, "float32"), np.array([[0], [1]], "int32")
    with selected(level):
        assert not np.isfinite(fsa_loss(-scores, *one, normalized=True))
        assert not np.isfinite(fast_baum_welch(scores, *one).obs_scores).any()
        assert not np.isfinite(segmental_loss(-scores[None], *one))
        grads = fsa_loss_grad(-scores, *one, np.ones(1, "float32"), normalized=True)
    assert np.isnan(grads.d_logits).all() or not grads.d_logits.any()


@each_level
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 2.0**21), ("float64", 2.0**48)])
def test_posteriors_are_exact_where_scores_are_nearly_too_large(dtype, size, sign, level) -> None:
    """Two arcs of one state: `size` has no digits for more than their difference of a half."""
    logits = np.array([[[sign * size, sign * size + 0.5]]] * 2, dtype)
    edges = np.array([[0, 0], [0, 0], [0, 1], [0, 0]], "int32")
    one = edges, np.zeros(2, dtype), np.zeros((2, 1), "int32")
    with selected(level):
        found = fsa_loss_grad(logits, *one, np.ones(1, dtype), normalized=True).d_logits
    of_second = 1 / (1 + np.exp(-0.5))
    atol = 2e-6 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(found[:, 0], [[of_second - 1, -of_second]] * 2, rtol=0, atol=atol)


def test_where_no_class_is_possible_the_reference_has_no_path_either() -> None:
    logits = np.full((1, 1, 2), -np.inf)
    one = np.zeros((4, 1), "int32"), np.zeros(1), np.zeros((2, 1), "int32")
    assert fsa_loss.reference(logits, *one).tolist() == [np.inf]
    assert fsa_loss(logits, *one).tolist() == [np.inf]
