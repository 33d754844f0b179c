# SPDX-License-Identifier: Apache-2.0
"""RETURNN's ops on automata for PyTorch: their contracts, and mistakes that are not repeated."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import nativeops  # noqa: E402
from nativeops.compat import returnn  # noqa: E402
from nativeops.errors import ArgumentError, DtypeError, RangeError, ShapeError  # noqa: E402

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
        am_scores=rows, seq_mask=mask.float(), seq_starts=torch.arange(4) * 30, **fsa,
        edge_offsets=torch.arange(5), max_seq_states=9,
    )  # fmt: skip
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
        weights=torch.tensor([-1.0, -0.5]), start_end_states=ends, n_states=9,
    )  # fmt: skip
    assert path.tolist() == [[1]]
    assert score.tolist() == [-0.5]


@pytest.mark.parametrize("blank", [-1, 0, 6])
@pytest.mark.parametrize("time_major", [False, True])
def test_ctc_loss_is_torchs_with_its_gradient(time_major: bool, blank: int) -> None:
    given = arguments()
    given["targets"] += blank == 0
    leaf = given["logits"].requires_grad_()
    expected, factors = torchs(given, blank % 7), torch.arange(1.0, 5.0)
    [grad] = torch.autograd.grad(expected, leaf, factors)
    given["logits"] = leaf.transpose(0, 1) if time_major else leaf
    loss = returnn.ctc_loss(**given, logits_time_major=time_major, blank_index=blank)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    [found] = torch.autograd.grad(loss, leaf, factors)
    torch.testing.assert_close(found, grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_without_label_loop_it_is_the_loss_of_that_automaton(normalize: bool) -> None:
    given, factors = arguments(), torch.arange(1.0, 5.0)
    leaf = given["logits"].requires_grad_()
    kind = {"logits_normalize": normalize, "label_loop": False}
    lengths = given["targets_seq_lens"].int()
    fsa = nativeops.ctc_fsa(given["targets"], lengths, blank=6, label_loop=False)
    expected = nativeops.fsa_loss(
        leaf.transpose(0, 1), *fsa, given["logits_seq_lens"].int(), normalized=not normalize
    )
    loss = returnn.ctc_loss(**given, **kind)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(each, leaf, factors)[0] for each in (loss, expected)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("max_approx", [False, True])
def test_no_frames_say_no_labels(max_approx: bool, normalize: bool) -> None:
    logits = torch.zeros(2, 0, 3, requires_grad=True)
    lengths, labels = torch.tensor([0, 0]), torch.tensor([0, 1])
    loss = returnn.ctc_loss(
        logits=logits, logits_seq_lens=lengths, targets=torch.tensor([[0], [1]]),
        targets_seq_lens=labels, logits_normalize=normalize, max_approx=max_approx,
    )  # fmt: skip
    assert loss.tolist() == [0, INF]
    assert not torch.signbit(loss).any(), "-0.0"
    loss.sum().backward()


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
    longer = torch.nn.functional.pad(given["logits"], (0, 0, 0, 9), value=INF).requires_grad_()
    for max_approx in (False, True):
        loss = returnn.ctc_loss(**given, max_approx=max_approx)
        found = returnn.ctc_loss(**{**given, "logits": longer}, max_approx=max_approx)
        assert torch.equal(found, loss)
        assert not torch.autograd.grad(found.sum(), longer)[0][:, 30:].any()


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


@pytest.mark.parametrize("max_approx", [False, True])
def test_nan_is_seen(max_approx: bool) -> None:
    given = arguments()
    given["logits"][1, 3, 6] = torch.nan
    loss = returnn.ctc_loss(**given, max_approx=max_approx)
    assert torch.isnan(loss).tolist() == [False, True, False, False]


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


def test_lengths_do_not_wrap_and_are_integers() -> None:
    given = arguments()
    edges, weights, states = returnn.get_ctc_fsa_fast_bw(
        targets=given["targets"], seq_lens=given["targets_seq_lens"], blank_idx=6
    )
    scores = given["logits"].transpose(0, 1)
    automata = {"edges": edges, "weights": -weights, "start_end_states": states}
    lengths = given["logits_seq_lens"]
    calls = {
        "logits_seq_lens": (returnn.ctc_best_path, given),
        "targets_seq_lens": (returnn.ctc_loss, {**given, "max_approx": True}),
        "am_seq_len": (
            returnn.fast_viterbi,
            {"am_scores": scores, "am_seq_len": lengths, **automata},
        ),
        "seq_lens": (
            returnn.get_ctc_fsa_fast_bw,
            {"targets": given["targets"], "seq_lens": given["targets_seq_lens"], "blank_idx": 6},
        ),
    }
    for name, (function, arguments_of_it) in calls.items():
        with pytest.raises(RangeError, match="is 2147483647, but must be"):
            function(**{**arguments_of_it, name: arguments_of_it[name] + 2**32})
        with pytest.raises(DtypeError, match=f"`{name}` must have integers, but has float32"):
            function(**{**arguments_of_it, name: arguments_of_it[name] + 0.5})


def test_mask_with_a_gap_and_too_small_bounds_are_refused() -> None:
    edges, weights, ends = returnn.get_ctc_fsa_fast_bw(
        targets=torch.tensor([[1]]), seq_lens=torch.tensor([1]), blank_idx=0
    )
    with pytest.raises(RangeError, match=r"^fast_baum_welch: `seq_mask` has a gap"):
        returnn.fast_baum_welch(
            am_scores=torch.zeros(3, 1, 2), seq_mask=torch.tensor([[1], [0], [1]]), edges=edges,
            weights=weights, start_end_states=ends,
        )  # fmt: skip
    text = "^get_ctc_fsa_fast_bw: `edges_bound` is 9, but 10 are needed"
    with pytest.raises(RangeError, match=text):
        returnn.get_ctc_fsa_fast_bw(
            targets=torch.tensor([[1]]), seq_lens=torch.tensor([1]), blank_idx=0, edges_bound=9
        )


def test_empty_batch() -> None:
    given = {name: value[:0] for name, value in arguments().items()}
    assert returnn.ctc_loss(**given).shape == (0,)
    assert returnn.ctc_best_path(**given).shape == (30, 0)
    given = packed([0] * 4)[1]
    assert returnn.ctc_loss_packed(**{k: v[:0] for k, v in given.items()}).shape == (0,)


def packed(starts: list[int], rows: int = 100):
    """Sequences in a padded batch, and the same without padding, with NaN in the gaps."""
    given = arguments(logits_seq_lens=torch.tensor([30, 0, 27, 12]))
    logits = torch.full((rows, 7), torch.nan)
    for b, (start, n) in enumerate(zip(starts, given["logits_seq_lens"].tolist(), strict=True)):
        logits[start : start + n] = given["logits"][b, :n]
    return given, {**given, "logits": logits, "seq_starts": torch.tensor(starts)}


@pytest.mark.parametrize(
    ("starts", "rows"), [([0, 30, 30, 57], 69), ([40, 7, 12, 88], 100), ([39, 100, 12, 0], 100)]
)
@pytest.mark.parametrize("longest", [None, 30, 500])
@pytest.mark.parametrize("kind", [{}, {"label_loop": False}, {"logits_normalize": False}])
def test_packed_is_padded(starts, rows: int, longest: int | None, kind) -> None:
    given, flat = packed(starts, rows)
    leaf, leaf_flat = given["logits"].requires_grad_(), flat["logits"].requires_grad_()
    expected, factors = returnn.ctc_loss(**given, **kind), torch.arange(1.0, 5.0)
    loss = returnn.ctc_loss_packed(**flat, max_seq_len=longest, edges_bound=65, **kind)
    assert torch.equal(loss, expected)
    assert loss[1] == 0, "neither frames nor labels"
    [grad] = torch.autograd.grad(expected, leaf, factors)
    [grad_flat] = torch.autograd.grad(loss, leaf_flat, factors)
    for b, (start, n) in enumerate(zip(starts, given["logits_seq_lens"].tolist(), strict=True)):
        assert torch.equal(grad_flat[start : start + n], grad[b, :n])
        grad_flat[start : start + n] = 0
    assert not grad_flat.any(), "a gap"


def test_packed_without_rows() -> None:
    given = packed([0] * 4)[1] | {
        "logits": torch.zeros(0, 7),
        "logits_seq_lens": torch.zeros(4).int(),
    }
    assert returnn.ctc_loss_packed(**given, max_seq_len=30).tolist() == [INF, 0, INF, INF]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"seq_starts": torch.tensor([-1, 7, 42, 88])}, RangeError,
         r"`seq_starts\[0\]` is -1, but must be from 0 to 100, the rows of `logits`"),
        ({"seq_starts": torch.tensor([0, 101, 42, 88])}, RangeError,
         r"`seq_starts\[1\]` is 101, but must be from 0 to 100"),
        ({"seq_starts": torch.tensor([0, 7, 42, 89])}, RangeError,
         r"`logits_seq_lens\[3\]` is 12, but must be from 0 to 11, the rows of `logits` from its"),
        ({"logits_seq_lens": torch.tensor([30, -2, 27, 12])}, RangeError,
         r"`logits_seq_lens\[1\]` is -2, but must be from 0 to 93"),
        ({"seq_starts": torch.tensor([39, 7, 13, 88])}, RangeError,
         r"`logits_seq_lens\[2\]` is 27, but then row 39 belongs to two sequences"),
        ({"max_seq_len": 29}, RangeError, r"`max_seq_len` is 29, but `logits_seq_lens\[0\]` is 30"),
        ({"seq_starts": torch.tensor([0])}, ShapeError,
         r"axis `b` is 1 in `seq_starts` but 4 in `logits_seq_lens`"),
        ({"seq_starts": torch.tensor([0.0, 7, 42, 88])}, DtypeError,
         "`seq_starts` must have integers, but has float32"),
        ({"targets_seq_lens": torch.tensor([1, 2])}, ShapeError,
         "axis `b` is 4 in `seq_starts` but 2 in `targets_seq_lens`"),
        ({"blank_index": 7}, RangeError, "`blank_index` is 7, but must be from -7 to 6, the cl"),
        ({"logits": torch.zeros(2, 50, 7)}, ShapeError,
         r"`logits` must be \[n, c\], but has the shape \[2, 50, 7\]"),
    ],
)  # fmt: skip
def test_packed_sequences_that_do_not_fit_are_refused(changes, error, text: str) -> None:
    given = packed([0, 7, 42, 88])[1]
    returnn.ctc_loss_packed(**given)
    with pytest.raises(error, match=f"^ctc_loss_packed: {text}"):
        returnn.ctc_loss_packed(**{**given, **changes})


@pytest.mark.parametrize("max_approx", [False, True])
def test_blank_is_refused_as_it_was_given(max_approx: bool) -> None:
    for blank in (-8, 7):
        text = f"^ctc_loss: `blank_index` is {blank}, but must be from -7 to 6, the classes of"
        with pytest.raises(RangeError, match=text):
            returnn.ctc_loss(**arguments(blank_index=blank), max_approx=max_approx)
        with pytest.raises(RangeError, match=r"^returnn\.ctc_best_path: `blank_index` is"):
            returnn.ctc_best_path(**arguments(blank_index=blank))


def fsa_arguments():
    """Of `fast_baum_welch`, for 9 frames of 2 sequences."""
    edges, weights, ends = returnn.get_ctc_fsa_fast_bw(
        targets=torch.tensor([[0, 1, 1], [2, 3, 0]]), seq_lens=torch.tensor([3, 2]), blank_idx=4
    )
    scores = torch.from_numpy(RANDOM.standard_normal((9, 2, 5)))
    mask = torch.arange(9)[:, None] < torch.tensor([9, 6])
    automata = {"edges": edges, "weights": weights, "start_end_states": ends}
    return {"am_scores": scores, "seq_mask": mask.float(), **automata}


def test_what_is_empty_is_not_left_away() -> None:
    nothing, fsa = torch.zeros(0).long(), fsa_arguments()
    costs = {name: array for name, array in fsa.items() if name != "seq_mask"}
    empty = fsa["seq_mask"][:, :0]
    for function, given in (
        (returnn.fast_baum_welch, {**fsa, "seq_mask": empty}),
        (returnn.fast_baum_welch_packed,
         {**fsa, "am_scores": fsa["am_scores"][:, 0], "seq_starts": torch.tensor([0, 0]),
          "seq_mask": empty}),
        (returnn.fast_viterbi, {**costs, "am_seq_len": nothing}),
        (returnn.ctc_best_path, arguments(logits_seq_lens=nothing)),
        (returnn.ctc_loss, arguments(targets_seq_lens=nothing)),
        (returnn.ctc_loss, arguments(logits_seq_lens=nothing, max_approx=True)),
        (returnn.get_ctc_fsa_fast_bw,
         {"targets": torch.ones(2, 3).int(), "seq_lens": nothing, "blank_idx": 0}),
    ):  # fmt: skip
        with pytest.raises(ShapeError, match=rf"{function.__name__}: axis `b` is \d in .* but 0"):
            function(**given)


@pytest.mark.parametrize("bound", [None, 60])
def test_lengths_of_other_sequences_are_refused(bound) -> None:
    with pytest.raises(ShapeError, match="axis `b` is 2 in `targets` but 1 in `seq_lens`"):
        returnn.get_ctc_fsa_fast_bw(
            targets=torch.ones(2, 3).int(), seq_lens=torch.tensor([3]), blank_idx=0,
            edges_bound=bound,
        )  # fmt: skip


def in_packs(scores, seq_mask, **automata):
    """`fast_baum_welch_packed` of what `fast_baum_welch` takes."""
    rows = scores.transpose(0, 1).reshape(-1, scores.shape[2])
    return returnn.fast_baum_welch_packed(
        am_scores=rows, seq_mask=seq_mask, seq_starts=torch.tensor([0, 9]), **automata
    )


def compiled_and_mapped():
    """Functions of an array of values that a compiler and a map do not know."""
    fsa = fsa_arguments()
    scores, mask = fsa.pop("am_scores"), fsa.pop("seq_mask")
    given = packed([0, 30, 30, 57], 69)[1]
    frames = given.pop("logits_seq_lens")
    return {
        "fast_baum_welch": (
            lambda mask: returnn.fast_baum_welch(am_scores=scores, seq_mask=mask, **fsa), mask),
        "fast_baum_welch_packed": (lambda mask: in_packs(scores, mask, **fsa), mask),
        "ctc_loss_packed": (
            lambda n: (returnn.ctc_loss_packed(**given, logits_seq_lens=n, max_seq_len=30),),
            frames),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(compiled_and_mapped()))
def test_values_need_not_be_known_while_a_program_is_built(name: str) -> None:
    function, array = compiled_and_mapped()[name]
    expected = function(array)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(array)
    mapped = torch.vmap(function)(torch.stack([array, array]))
    for one, own, both in zip(expected, compiled, mapped, strict=True):
        assert torch.equal(own, one)
        assert torch.equal(both, torch.stack([one, one]))


def test_baum_welch_is_exported() -> None:
    fsa = fsa_arguments()
    scores, mask = fsa.pop("am_scores"), fsa.pop("seq_mask")

    class Model(torch.nn.Module):
        def forward(self, scores, mask):
            return returnn.fast_baum_welch(am_scores=scores, seq_mask=mask, **fsa)

    program = torch.export.export(Model(), (scores, mask)).module()
    for one, other in zip(program(scores, mask), Model()(scores, mask), strict=True):
        assert torch.equal(one, other)


def alive(edges, weights, ends) -> list[list[int]]:
    """The edges that a path can have, in any order: the state before an end leads nowhere."""
    dead = torch.isinf(weights) | torch.isin(edges[1], ends[1] - 1)
    return sorted(edges[:, ~dead].T.tolist())


@pytest.mark.slow  # it compiles its ops; RETURNN_CACHE_DIR keeps them
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
def test_it_is_what_the_original_does(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    pytest.importorskip("returnn")
    monkeypatch.setenv("RETURNN_CACHE_DIR", os.environ.get("RETURNN_CACHE_DIR", str(tmp_path)))
    from returnn.torch.util import native_op as original

    given = arguments()
    targets, lengths = given["targets"], given["targets_seq_lens"].int()
    frames, scores = given["logits_seq_lens"], given["logits"].log_softmax(-1).transpose(0, 1)
    mask = torch.arange(30)[:, None] < frames
    for label_loop in (True, False):
        made = {"seq_lens": lengths, "blank_idx": 6, "label_loop": label_loop}
        fsas = [m.get_ctc_fsa_fast_bw(targets=targets, **made) for m in (returnn, original)]
        edges, weights, ends = fsas[0]
        assert weights.shape == fsas[1][1].shape
        assert torch.equal(ends, fsas[1][2])
        assert alive(*fsas[0]) == alive(*fsas[1])
        drawn = torch.from_numpy(RANDOM.exponential(1, len(weights)).astype("float32"))
        fsa = {"edges": edges, "weights": weights + drawn, "start_end_states": ends}
        costs = {"am_scores": -scores.contiguous(), "seq_mask": mask}
        for ours, theirs in zip(
            returnn.fast_baum_welch(**costs, **fsa),
            original.fast_baum_welch(**costs, **fsa),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        best = {"am_scores": scores.contiguous(), "am_seq_len": frames.int(), "mask_idx": 6}
        path, score = original.fast_viterbi(**best, **fsa)
        fsa["weights"] = -fsa["weights"]  # what differs between 1.20261022 and August 2026
        found, found_score = returnn.fast_viterbi(**best, **fsa)
        assert torch.equal(found, path)
        torch.testing.assert_close(found_score, score, rtol=1e-5, atol=1e-5)


def test_best_path_through_an_impossible_frame_is_none() -> None:
    given = arguments()
    given["logits"][1, 3] = -INF
    given["logits"].requires_grad_()
    loss = returnn.ctc_loss(**given, max_approx=True)
    loss.sum().backward()
    assert loss[1] == INF
    assert loss[[0, 2, 3]].isfinite().all()
    gradient = given["logits"].grad
    assert not gradient[1].any()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["ctc_loss", "ctc_best_path", "ctc_loss_packed"])
@pytest.mark.parametrize("argument", ["logits", "targets"])
def test_what_is_no_tensor_is_told_by_name(name: str, argument: str) -> None:
    given = {
        "logits": torch.zeros(1, 4, 3) if name != "ctc_loss_packed" else torch.zeros(4, 3),
        "logits_seq_lens": [4], "targets": torch.tensor([[1]]), "targets_seq_lens": [1],
    }  # fmt: skip
    given |= {"seq_starts": [0]} if name == "ctc_loss_packed" else {}
    given[argument] = np.asarray(given[argument])
    with pytest.raises(ArgumentError, match=f"`{argument}` must be a tensor, but is ndarray"):
        getattr(returnn, name)(**given)
