# SPDX-License-Identifier: Apache-2.0
"""ctc_beam_search: lists, frameworks, and a scorer of one's own."""

import itertools
import re

import numpy as np
import pytest

import nativeops
from nativeops.arrays import total
from nativeops.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    NativeOpsError,
    RangeError,
)
from nativeops.ops.ctc_beam_search_test import all_sequences, hypotheses, log_softmax
from nativeops.testing.arrays import arrays_of
from nativeops.testing.marks import missing

RANDOM = np.random.default_rng(5)
TABLE = log_softmax(RANDOM.standard_normal((4, 4)))  # of a bigram, by the label before


def bigram(prefixes):
    return np.stack([TABLE[prefix[-1] if prefix else 0] for prefix in prefixes])


@pytest.mark.parametrize("bonus", [0.0, 0.5])
def test_scorer_with_beam_of_all_prefixes_is_exact(bonus) -> None:
    x = RANDOM.standard_normal((5, 2, 4))
    found = nativeops.ctc_beam_search(
        x, beam_width=5000, n_best=400, scorer=bigram, scorer_weight=0.7, insertion_bonus=bonus
    )
    for b in range(2):
        total, begins = all_sequences(log_softmax(x[:, b]), 0)
        seen = list(hypotheses(found, b))[: len(total)]
        assert {labels for labels, _, _ in seen} == set(total)
        assert [s for _, s, _ in seen] == sorted((s for _, s, _ in seen), reverse=True)
        for labels, score, frames in seen:
            steps = itertools.pairwise((0, *labels))
            extra = sum(0.7 * TABLE[before, label] + bonus for before, label in steps)
            assert score == pytest.approx(total[labels] + extra, abs=1e-11)
            assert frames == begins[labels]


def test_scorer_of_zeros_changes_nothing() -> None:
    x = RANDOM.standard_normal((20, 3, 9))
    lengths = [20, 0, 7]
    plain = nativeops.ctc_beam_search(x, lengths, beam_width=6, n_best=6, insertion_bonus=0.3)
    scored = nativeops.ctc_beam_search(
        x, lengths, beam_width=6, n_best=6, insertion_bonus=0.3,
        scorer=lambda prefixes: np.zeros((len(prefixes), 9)),
    )  # fmt: skip
    for a, b in zip(plain, scored, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_scorer_sees_each_prefix_of_a_frame_at_once_and_none_twice_while_it_stays() -> None:
    calls = []

    def scorer(prefixes):
        calls.append(list(prefixes))
        return np.zeros((len(prefixes), 3))

    nativeops.ctc_beam_search(RANDOM.standard_normal((8, 1, 3)), beam_width=4, scorer=scorer)
    assert calls[0] == [()]
    assert len(calls) <= 8
    assert max(map(len, calls)) > 1
    assert all(len(set(prefixes)) == len(prefixes) for prefixes in calls)


@pytest.mark.parametrize("wrong", [3, np.zeros((1, 3)), "lm.arpa"])
def test_scorer_that_is_no_function_is_told(wrong: object) -> None:
    text = f"`scorer` must be a function of prefixes, but is {type(wrong).__name__}"
    with pytest.raises(ArgumentError, match=text):
        nativeops.ctc_beam_search(np.zeros((4, 1, 3)), scorer=wrong)  # type: ignore[arg-type]


def test_scorer_may_forbid_labels() -> None:
    x = RANDOM.standard_normal((12, 1, 5))
    never = np.array([[0, 0, -np.inf, 0, -np.inf]])
    found = nativeops.ctc_beam_search(
        x, n_best=9, scorer=lambda prefixes: np.repeat(never, len(prefixes), 0)
    )
    for labels, score, _ in hypotheses(found):
        assert not {2, 4} & set(labels)
        assert np.isfinite(score)


def test_scorer_without_weight_forbids_nothing() -> None:
    x = RANDOM.standard_normal((6, 2, 4))
    never = lambda prefixes: np.full((len(prefixes), 4), -np.inf)  # noqa: E731
    found = nativeops.ctc_beam_search(x, n_best=3, scorer=never, scorer_weight=0)
    expected = nativeops.ctc_beam_search(x, n_best=3)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores)


def test_wrong_arguments_are_refused_with_a_scorer_too() -> None:
    x = np.zeros((5, 1, 4))
    for weight in (np.inf, np.nan):
        with pytest.raises(RangeError, match=r"`scorer_weight` must be a (finite )?number, but is"):
            nativeops.ctc_beam_search(x, scorer=bigram, scorer_weight=weight)
    with pytest.raises(DtypeError, match="`scorer_weight` must be float, but is '1'"):
        nativeops.ctc_beam_search(x, scorer=bigram, scorer_weight="1")
    for wrong_rank in (np.zeros(3), np.zeros((2, 3)), [[[0.0]]]):
        with pytest.raises(NativeOpsError) as native:
            nativeops.ctc_beam_search(wrong_rank)
        with pytest.raises(NativeOpsError) as scored:
            nativeops.ctc_beam_search(wrong_rank, scorer=bigram)
        assert str(scored.value) == str(native.value)
    for wrong in ("text", [["0.5"] * 4], 1j * np.zeros((1, 4))):
        with pytest.raises(DtypeError, match="`scorer` must return numbers, but they have dtype"):
            nativeops.ctc_beam_search(x, scorer=lambda prefixes, wrong=wrong: wrong)
    with pytest.raises(ValueError, match=r"must return an array of shape \(1, 4\)"):
        nativeops.ctc_beam_search(x, scorer=lambda prefixes: np.zeros(3))
    for wrong in (
        {"blank": 4},
        {"n_best": 17},
        {"lengths": [9]},
        {"beam_width": 0},
        {"insertion_bonus": np.inf},
    ):
        with pytest.raises(RangeError) as native:
            nativeops.ctc_beam_search(x, **wrong)
        with pytest.raises(RangeError) as scored:
            nativeops.ctc_beam_search(x, scorer=bigram, **wrong)
        assert str(scored.value) == str(native.value)
    for logits, lengths in ((x, [1, 2, 3]), (x.astype(int), None)):
        with pytest.raises(NativeOpsError, match=r"logits: \w+64\[5, 1, 4\]"):
            nativeops.ctc_beam_search(logits, lengths, scorer=bigram)


@pytest.mark.parametrize(
    ("wrong", "weight"),
    [(np.nan, 1), (np.nan, -1), (np.inf, 1), (-np.inf, -1), (1e300, 1e300), (-1e300, -1e300)],
)
def test_scores_that_give_no_order_are_refused(wrong: float, weight: float) -> None:
    x = RANDOM.standard_normal((3, 1, 4))
    unread = lambda prefixes: np.tile([0, 0, 0, wrong], (len(prefixes), 1))  # noqa: E731
    for blank in (3, -1):
        nativeops.ctc_beam_search(x, blank=blank, scorer=unread, scorer_weight=weight)

    def scorer(prefixes):
        return np.array([[0, 0, wrong if prefix == (1,) else 0, 0] for prefix in prefixes])

    text = rf"`scorer` gives label 2 after the prefix \(1,\) the score {re.escape(str(wrong))}, "
    with pytest.raises(RangeError, match=f"^ctc_beam_search: {text}"):
        nativeops.ctc_beam_search(x, scorer=scorer, scorer_weight=weight)


def test_scores_that_forbid_by_their_weight_are_taken() -> None:
    x = RANDOM.standard_normal((6, 1, 4))
    for forbids, weight in ((np.inf, -1), (-1e300, 1e300)):
        own = np.array([0, 0, forbids, 0])
        found = nativeops.ctc_beam_search(
            x, n_best=9, scorer=lambda prefixes, own=own: np.tile(own, (len(prefixes), 1)),
            scorer_weight=weight,
        )  # fmt: skip
        assert not (found.tokens == 2).any()


@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_all_frameworks_find_the_same(framework) -> None:
    module = pytest.importorskip({"jax": "jax.numpy"}.get(framework, framework))
    x = RANDOM.standard_normal((9, 2, 4)).astype("f")
    make = getattr(module, "asarray", None) or module.constant
    for scorer in (None, bigram):
        expected = nativeops.ctc_beam_search(x, [9, 5], n_best=3, scorer=scorer)
        found = nativeops.ctc_beam_search(make(x), [9, 5], n_best=3, scorer=scorer)
        for mine, other in zip(found, expected, strict=True):
            assert type(mine).__module__.startswith((framework, "jaxlib"))
            np.testing.assert_allclose(np.asarray(mine), other, rtol=1e-6)


def test_bfloat16_of_torch_comes_back_as_it_went() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(RANDOM.standard_normal((6, 1, 4))).bfloat16()
    found = nativeops.ctc_beam_search(x, scorer=bigram)
    assert found.scores.dtype == torch.bfloat16
    assert found.tokens.dtype == torch.int32


def test_scorer_may_be_a_model_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x = RANDOM.standard_normal((6, 2, 4))
    model = torch.nn.Linear(1, 4).to(torch.bfloat16)
    score = lambda prefixes: model(torch.ones(len(prefixes), 1, dtype=torch.bfloat16))  # noqa: E731
    plain = lambda prefixes: score(prefixes).detach().float().numpy()  # noqa: E731
    found, expected = (nativeops.ctc_beam_search(x, scorer=one) for one in (score, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_lengths_that_are_none_are_refused(framework: str) -> None:
    pytest.importorskip(framework)
    x = arrays_of(framework, "cpu").place(RANDOM.standard_normal((6, 2, 4)), "float32").array
    for wrong, text in (([3.9, 2.7], "must have integers"), ([True, False], "must have integers"),
                        ([], "axis `b` is 2 in `logits` but 0"), ([6, 2**40], "from 0 to 6"),
                        ([2**32 + 3, 2], "from 0 to 6")):  # fmt: skip
        with pytest.raises(NativeOpsError, match=text):
            nativeops.ctc_beam_search(x, wrong)


def test_torch_compiles_it_for_any_number_of_frames() -> None:
    torch = pytest.importorskip("torch")
    search = torch.compile(
        lambda x: nativeops.ctc_beam_search(x, scorer_weight=0.5).scores,
        backend="aot_eager", fullgraph=True, dynamic=True,
    )  # fmt: skip
    for frames in (6, 9):
        x = torch.from_numpy(RANDOM.standard_normal((frames, 2, 5)))
        assert torch.equal(search(x), nativeops.ctc_beam_search(x).scores)


def test_compiled_function_cannot_call_a_scorer() -> None:
    jax = pytest.importorskip("jax")
    search = jax.jit(lambda x: nativeops.ctc_beam_search(x).tokens)
    x = RANDOM.standard_normal((6, 1, 4)).astype("f")
    assert np.array_equal(search(x), nativeops.ctc_beam_search(x).tokens)
    with pytest.raises(ArgumentError, match="search outside of it"):
        jax.jit(lambda x: nativeops.ctc_beam_search(x, scorer=bigram).tokens)(x)


def test_program_of_torch_cannot_call_a_scorer() -> None:
    torch = pytest.importorskip("torch")
    search = torch.compile(
        lambda x: nativeops.ctc_beam_search(x, scorer=bigram).scores, backend="aot_eager"
    )
    with pytest.raises(ArgumentError, match="search outside of it"):
        search(torch.from_numpy(RANDOM.standard_normal((6, 1, 4))))


def gradient_of_torch(function, x, stop):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(x).requires_grad_()
    function(x.detach() if stop else x, x).backward()
    return x.grad


def gradient_of_jax(function, x, stop):
    jax = pytest.importorskip("jax")
    held = jax.lax.stop_gradient if stop else lambda x: x
    return jax.grad(lambda x: function(held(x), x))(jax.numpy.asarray(x))


def gradient_of_tensorflow(function, x, stop):
    tf = pytest.importorskip("tensorflow")
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(tf.stop_gradient(x) if stop else x, x)
    return tape.gradient(y, x)


@pytest.mark.parametrize("scorer", [None, bigram])
@pytest.mark.parametrize(
    "gradient", [gradient_of_torch, gradient_of_jax, gradient_of_tensorflow],
    ids=["torch", "jax", "tensorflow"],
)  # fmt: skip
def test_derivative_is_refused_where_one_is_asked_for(gradient, scorer) -> None:
    x = RANDOM.standard_normal((6, 2, 4)).astype("f")

    def searched(logits, x):
        return total(nativeops.ctc_beam_search(logits, scorer=scorer).scores) + total(x)

    def unread(logits, x):
        found = nativeops.ctc_beam_search(logits, scorer=scorer)
        assert found.tokens.shape == (2, 1, 6)
        return total(x)

    with pytest.raises(GradientError, match=r"^ctc_beam_search: has no gradient.\n  hint: .*stop_"):
        gradient(searched, x, stop=False)
    np.testing.assert_array_equal(gradient(searched, x, stop=True), np.ones_like(x))
    np.testing.assert_array_equal(gradient(unread, x, stop=False), np.ones_like(x))


def test_scores_need_no_gradient_where_torch_records_none() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(RANDOM.standard_normal((6, 2, 4))).requires_grad_()
    with torch.no_grad():
        assert not nativeops.ctc_beam_search(x, scorer=bigram).scores.requires_grad
    assert not nativeops.ctc_beam_search(x.detach(), scorer=bigram).scores.requires_grad


@pytest.mark.cuda
def test_logits_on_a_gpu_are_searched_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        missing("cuda", "this machine has no NVIDIA GPU that PyTorch can use")
    x = torch.from_numpy(RANDOM.standard_normal((20, 3, 9)))
    here = nativeops.ctc_beam_search(x, [20, 0, 7], beam_width=6, n_best=6)
    there = nativeops.ctc_beam_search(x.cuda(), [20, 0, 7], beam_width=6, n_best=6)
    for a, b in zip(here, there, strict=True):
        assert b.is_cuda
        assert torch.equal(a, b.cpu())
