# SPDX-License-Identifier: Apache-2.0
"""RETURNN's ops on automata for PyTorch: their contracts, and mistakes that are not repeated."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from nativeops.compat import returnn  # noqa: E402

RANDOM = np.random.default_rng(2)
INF = float("inf")


def draw(t: int = 30, b: int = 4, c: int = 7, s: int = 6):
    logits = torch.from_numpy(RANDOM.standard_normal((b, t, c)).astype("float32"))
    targets = torch.from_numpy(RANDOM.integers(0, c - 1, (b, s)).astype("int32"))
    frames, lengths = torch.tensor([t, t - 7, t - 3, 2 * s]), torch.tensor([s, 0, s - 2, 1])
    return logits, frames, targets, lengths


def arguments(**changes):
    logits, frames, targets, lengths = draw()
    return {
        "logits": logits, "logits_seq_lens": frames, "targets": targets,
        "targets_seq_lens": lengths, **changes,
    }  # fmt: skip


def torchs(given, blank: int = 6):
    scores = given["logits"].log_softmax(-1).transpose(0, 1)
    lengths = given["logits_seq_lens"], given["targets_seq_lens"]
    return torch.nn.functional.ctc_loss(
        scores, given["targets"].long(), *lengths, blank, reduction="none"
    )


@pytest.mark.parametrize("bound", [None, 0, 7])
def test_baum_welch_on_its_automaton_is_ctc(bound) -> None:
    given = arguments()
    targets, lengths = given["targets"], given["targets_seq_lens"]
    bound = None if bound is None else int(5 * lengths.sum() + 5 * 4 + bound)
    fsa = dict(
        zip(
            ("edges", "weights", "start_end_states"),
            returnn.get_ctc_fsa_fast_bw(
                targets=targets, seq_lens=lengths, blank_idx=6, edges_bound=bound
            ),
            strict=True,
        )
    )
    assert fsa["edges"].shape == (4, bound or 4 * 35)
    assert fsa["edges"].dtype == torch.int32
    costs = -given["logits"].log_softmax(-1).transpose(0, 1)
    mask = torch.arange(30)[:, None] < given["logits_seq_lens"]
    fwdbwd, sums = returnn.fast_baum_welch(am_scores=costs, seq_mask=mask, **fsa, n_states=99)
    torch.testing.assert_close(sums[0], torchs(given), rtol=1e-5, atol=1e-5)
    assert not sums[~mask].any()
    assert torch.isposinf(fwdbwd[~mask]).all()
    torch.testing.assert_close((-fwdbwd).exp().sum(-1)[mask], torch.ones(int(mask.sum())))
    rows = costs.transpose(0, 1).reshape(-1, 7)
    packed, packed_sums = returnn.fast_baum_welch_packed(
        am_scores=rows, seq_mask=mask.float(), seq_starts=torch.arange(4) * 30, **fsa
    )
    assert torch.equal(packed_sums, sums)
    assert torch.equal(packed.reshape(4, 30, 7).transpose(0, 1), fwdbwd)
    path, score = returnn.fast_viterbi(
        am_scores=-costs, am_seq_len=given["logits_seq_lens"], **fsa, mask_idx=6
    )
    assert path.dtype == torch.int32
    assert torch.isfinite(score).all(), "places that nobody fills were taken"
    assert torch.equal(path, returnn.ctc_best_path(**given))


def test_viterbi_adds_its_weights() -> None:
    edges = torch.tensor([[0, 0], [1, 1], [0, 1], [0, 0]], dtype=torch.int32)
    ends = torch.tensor([[0], [1]], dtype=torch.int32)
    path, score = returnn.fast_viterbi(
        am_scores=torch.zeros(1, 1, 2), am_seq_len=torch.tensor([1]), edges=edges,
        weights=torch.tensor([-1.0, -0.5]), start_end_states=ends,
    )  # fmt: skip
    assert path.tolist() == [[1]]
    assert score.tolist() == [-0.5]


@pytest.mark.parametrize("time_major", [False, True])
def test_ctc_loss_is_torchs_with_its_gradient(time_major: bool) -> None:
    given = arguments()
    leaf = given["logits"].requires_grad_()
    expected = torchs(given)
    [grad] = torch.autograd.grad(expected.sum(), leaf)
    given["logits"] = leaf.transpose(0, 1) if time_major else leaf
    loss = returnn.ctc_loss(**given, logits_time_major=time_major)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), leaf)[0], grad, rtol=1e-4, atol=1e-5)


def test_best_path_is_what_max_approx_learns() -> None:
    given = arguments()
    leaf = given["logits"].requires_grad_()
    loss = returnn.ctc_loss(**given, max_approx=True)
    assert (loss >= returnn.ctc_loss(**given) - 1e-5).all()
    path = returnn.ctc_best_path(**given).long()
    picked = leaf.log_softmax(-1).transpose(0, 1).gather(-1, path[..., None])[..., 0]
    mask = torch.arange(30)[:, None] < given["logits_seq_lens"]
    torch.testing.assert_close(loss, -(picked * mask).sum(0))
    assert torch.isfinite(torch.autograd.grad(loss.sum(), leaf)[0]).all()


def test_frames_beyond_the_longest_sequence_change_nothing() -> None:
    given = arguments()
    longer = torch.nn.functional.pad(given["logits"], (0, 0, 0, 9), value=INF)
    loss = returnn.ctc_loss(**given)
    assert torch.equal(returnn.ctc_loss(**{**given, "logits": longer}), loss)


@pytest.mark.parametrize("max_approx", [False, True])
def test_without_a_path_the_loss_is_infinite_and_the_gradient_zero(max_approx: bool) -> None:
    given = arguments()
    given["logits_seq_lens"] = torch.tensor([30, 20, 2, 12])  # two frames for four labels
    leaf = given["logits"].requires_grad_()
    loss = returnn.ctc_loss(**given, max_approx=max_approx)
    assert torch.isposinf(loss).tolist() == [False, False, True, False]
    grad = torch.autograd.grad(loss.sum(), leaf)[0]
    assert torch.isfinite(grad).all()
    assert not grad[2].any()


def test_no_argument_is_written_to_and_other_dtypes_stay() -> None:
    given = arguments()
    before = {name: value.clone() for name, value in given.items()}
    given["logits"] = given["logits"].double()
    assert returnn.ctc_loss(**given).dtype == torch.float64
    assert all(
        torch.equal(given[name], value) for name, value in before.items() if name != "logits"
    )


def test_nan_is_seen() -> None:
    given = arguments()
    given["logits"][1, 3, 6] = torch.nan
    assert torch.isnan(returnn.ctc_loss(**given)).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"targets": torch.full((4, 6), 7)}, "is 7, but must be from 0 to 6"),
        ({"logits_seq_lens": torch.tensor([31, 3, 3, 3])}, "is 31, but must be from 0 to 30"),
        ({"targets_seq_lens": torch.tensor([7, 0, 0, 0])}, "is 7, but must be from 0 to 6"),
    ],
)
def test_labels_and_lengths_that_fit_nothing_are_refused(changes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        returnn.ctc_loss(**arguments(**changes))


def test_mask_with_a_gap_and_too_small_bounds_are_refused() -> None:
    edges, weights, ends = returnn.get_ctc_fsa_fast_bw(
        targets=torch.tensor([[1]]), seq_lens=torch.tensor([1]), blank_idx=0
    )
    with pytest.raises(ValueError, match="`seq_mask` has a gap"):
        returnn.fast_baum_welch(
            am_scores=torch.zeros(3, 1, 2), seq_mask=torch.tensor([[1], [0], [1]]), edges=edges,
            weights=weights, start_end_states=ends,
        )  # fmt: skip
    with pytest.raises(ValueError, match="`edges_bound` is 9, but 10 are needed"):
        returnn.get_ctc_fsa_fast_bw(
            targets=torch.tensor([[1]]), seq_lens=torch.tensor([1]), blank_idx=0, edges_bound=9
        )


def test_empty_batch() -> None:
    given = {name: value[:0] for name, value in arguments().items()}
    assert returnn.ctc_loss(**given).shape == (0,)
    assert returnn.ctc_best_path(**given).shape == (30, 0)
