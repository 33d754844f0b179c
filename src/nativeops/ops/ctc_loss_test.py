# SPDX-License-Identifier: Apache-2.0
"""ctc_losses: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import itertools
from typing import Any

import numpy as np
import pytest

from nativeops import NativeOpsError, ctc_loss
from nativeops.ops.ctc_loss import ctc_losses, ctc_losses_grad
from nativeops.testing.aspects import levels, num_threads, selected

RANDOM = np.random.default_rng(11)
FLOATS = ("float32", "float64")
LEVELS = pytest.mark.parametrize("level", levels())


def normal(*shape: int, dtype: str = "float64", scale: float = 1.0) -> Any:
    return (scale * RANDOM.standard_normal(shape)).astype(dtype)


def labels(*shape: int, classes: int, blank: int = 0) -> Any:
    return RANDOM.choice([c for c in range(classes) if c != blank], shape)


def log_softmax(x: Any) -> Any:
    return x - np.logaddexp.reduce(x, -1, keepdims=True)


def loss_and_gradient(x: Any, targets: Any, frames: Any = None, counts: Any = None, **options):
    """Of each sequence; the gradient of their sum."""
    lengths = [None if n is None else np.asarray(n, np.int32) for n in (frames, counts)]
    kept = {"blank": 0, "normalized": False, "label_loop": True}
    kept |= {name: options[name] for name in kept if name in options}
    with_kept = ctc_losses.reference(x.astype(np.float64), targets, *lengths, **options)
    one = np.ones(x.shape[1], x.dtype)
    gradient = ctc_losses_grad(x, targets, *with_kept[1:], one, *lengths, **kept)
    return ctc_losses(x, targets, *lengths, **options).loss, gradient


def say(way: tuple[int, ...], blank: int, label_loop: bool) -> tuple[int, ...]:
    """What a way says."""
    merged = [c for t, c in enumerate(way) if not (label_loop and t and way[t - 1] == c)]
    return tuple(c for c in merged if c != blank)


def enumerated(x: Any, target: Any, blank: int = 0, label_loop: bool = True) -> tuple[float, Any]:
    """Loss and gradient over all ways there are, one by one."""
    log_probs = log_softmax(x)
    (frames, classes), total = x.shape, 0.0
    occupied = np.zeros(x.shape)
    for way in itertools.product(range(classes), repeat=frames):
        if say(way, blank, label_loop) != tuple(target):
            continue
        p = np.exp(sum(log_probs[t, c] for t, c in enumerate(way)))
        total += p
        occupied[np.arange(frames), list(way)] += p
    if total == 0:
        return np.inf, np.zeros(x.shape)
    return -np.log(total), np.exp(log_probs) - occupied / total


SMALL = [
    (5, 3, (1, 2)),
    (5, 3, (2, 2)),
    (4, 3, (1, 1, 2)),
    (3, 3, (1, 1)),
    (6, 2, (1, 1)),
    (4, 3, ()),
    (1, 4, (3,)),
    (0, 3, ()),
    (0, 3, (1,)),
    (2, 3, (1, 2, 1)),
    (2, 3, (1, 1)),
]


@LEVELS
@pytest.mark.parametrize("label_loop", [True, False])
@pytest.mark.parametrize(("frames", "classes", "target"), SMALL, ids=str)
def test_equals_the_sum_over_all_ways_one_by_one(frames, classes, target, label_loop, level):
    for blank in range(classes):
        order = [c for c in range(classes) if c != blank]
        named = [order[c - 1] for c in target]  # the same target, whichever class is blank
        x = normal(frames, classes)
        expected, slope = enumerated(x, named, blank, label_loop)
        targets = np.array([named], np.int64).reshape(1, len(named))
        with selected(level):
            loss, gradient = loss_and_gradient(
                x[:, None], targets, blank=blank, label_loop=label_loop
            )
        np.testing.assert_allclose(loss[0], expected, rtol=1e-12)
        np.testing.assert_allclose(gradient[:, 0], slope, atol=1e-13)


def torch_case(t: int, b: int, c: int, s: int, dtype: str, blank: int = 0):
    """Logits, targets and lengths that torch's loss is right for."""
    import torch

    x = torch.from_numpy(normal(t, b, c, dtype=dtype)).requires_grad_()
    targets = torch.from_numpy(labels(b, s, classes=c, blank=blank))
    frames = torch.from_numpy(RANDOM.integers(2 * s + 1, t + 1, b))
    counts = torch.from_numpy(RANDOM.integers(1, s + 1, b))
    return x, targets, frames, counts


@LEVELS
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-11)])
@pytest.mark.parametrize("size", [(40, 7, 12, 9), (130, 3, 70, 40), (33, 5, 3, 15)], ids=str)
def test_equals_torch_with_its_gradient(size, dtype, tolerance, reduction, level) -> None:
    torch = pytest.importorskip("torch")
    blank = size[2] // 2
    x, targets, frames, counts = torch_case(*size, dtype, blank)
    theirs = torch.nn.functional.ctc_loss(
        x.log_softmax(2), targets, frames, counts, blank=blank, reduction=reduction
    )
    d_loss = torch.rand(theirs.shape, dtype=theirs.dtype) if reduction == "none" else None
    (expected,) = torch.autograd.grad(theirs, x, d_loss)
    with selected(level):
        ours = ctc_loss(x, targets, frames, counts, blank=blank, reduction=reduction)
        (found,) = torch.autograd.grad(ours, x, d_loss)
        from_log_probs = ctc_loss(
            x.log_softmax(2), targets, frames, counts,
            blank=blank, reduction=reduction, normalized=True,
        )  # fmt: skip
        (through_log_softmax,) = torch.autograd.grad(from_log_probs, x, d_loss)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0)
    torch.testing.assert_close(from_log_probs, theirs, rtol=tolerance, atol=0)
    torch.testing.assert_close(found, expected, rtol=0, atol=20 * tolerance)
    torch.testing.assert_close(through_log_softmax, expected, rtol=0, atol=20 * tolerance)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("label_loop", [True, False])
def test_torch_gradcheck_passes(normalized: bool, label_loop: bool) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(normal(20, 3, 5)).requires_grad_()
    targets = torch.tensor([[1, 1, 2], [3, 4, 3], [2, 0, 0]])

    def function(x):
        return ctc_loss(
            x, targets, [20, 17, 9], [3, 3, 1],
            reduction="none", normalized=normalized, label_loop=label_loop,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, x)


@LEVELS
@pytest.mark.parametrize("normalized", [True, False])
def test_gradient_is_the_slope_across_blocks_of_frames(normalized: bool, level: str) -> None:
    x, targets = normal(37, 2, 6), np.array([[1, 2, 2, 5], [4, 3, 0, 0]])
    lengths, options = ([37, 33], [4, 2]), {"normalized": normalized}
    direction, step = normal(*x.shape), 1e-6

    def total(shift: float) -> float:
        return float(
            loss_and_gradient(x + shift * direction, targets, *lengths, **options)[0].sum()
        )

    with selected(level):
        _, gradient = loss_and_gradient(x, targets, *lengths, **options)
        slope = (total(step) - total(-step)) / (2 * step)
    np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-7)


@LEVELS
@pytest.mark.parametrize("dtype", FLOATS)
def test_impossible_target_costs_infinity_and_has_no_gradient(dtype: str, level: str) -> None:
    x = normal(3, 4, 5, dtype=dtype)
    targets = np.array([[1, 2, 3, 4], [1, 1, 0, 0], [1, 1, 1, 0], [2, 0, 0, 0]])
    frames, counts = [3, 2, 3, 0], [4, 2, 3, 1]  # too long; no room for a blank, twice; no frame
    with selected(level):
        loss, gradient = loss_and_gradient(x, targets, frames, counts)
        again, same = loss_and_gradient(x, targets, frames, counts, zero_infinity=True)
    assert loss.tolist() == [np.inf] * 4
    assert again.tolist() == [0] * 4
    assert not gradient.any()
    assert not same.any()


def test_impossible_target_trains_nothing_in_torch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 2, 3, requires_grad=True)
    targets = torch.tensor([[1, 1], [1, 2]])
    for zero_infinity, expected in ((False, np.inf), (True, 0.0)):
        loss = ctc_loss(x, targets, reduction="none", zero_infinity=zero_infinity)
        assert loss[0].item() == expected
        assert np.isfinite(loss[1].item())
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        assert not gradient[:, 0].any()
        assert gradient[:, 1].abs().sum() > 0


@LEVELS
def test_empty_target_costs_all_blanks_and_no_frame_costs_nothing(level: str) -> None:
    x = normal(4, 3, 5)
    with selected(level):
        loss, gradient = loss_and_gradient(x, np.zeros((3, 0), np.int64), [4, 2, 0], blank=3)
    blanks = log_softmax(x)[..., 3]
    np.testing.assert_allclose(loss, [-blanks[:4, 0].sum(), -blanks[:2, 1].sum(), 0])
    assert str(loss[2]) == "0.0"
    one_hot = np.eye(5)[3]
    np.testing.assert_allclose(gradient[:, 0], np.exp(log_softmax(x[:, 0])) - one_hot, atol=1e-13)
    assert not gradient[2:, 1].any()
    assert not gradient[:, 2].any()


@LEVELS
@pytest.mark.parametrize("dtype", FLOATS)
def test_frame_of_minus_infinity_makes_the_target_impossible(dtype: str, level: str) -> None:
    x = normal(20, 2, 4, dtype=dtype)
    x[17, 0] = -np.inf
    with selected(level):
        loss, gradient = loss_and_gradient(x, np.array([[1, 2], [1, 2]]))
    assert loss[0] == np.inf
    assert np.isfinite(loss[1])
    assert not gradient[:, 0].any()
    assert np.isfinite(gradient).all()


@LEVELS
@pytest.mark.parametrize("dtype", FLOATS)
def test_classes_of_minus_infinity_have_no_part(dtype: str, level: str) -> None:
    x = normal(9, 1, 6, dtype=dtype)
    x[:, :, 4:] = -np.inf
    x[3, 0, 0] = -np.inf
    targets = np.array([[1, 2]])
    expected, slope = loss_and_gradient(np.delete(x, (4, 5), 2), targets)
    with selected(level):
        loss, gradient = loss_and_gradient(x, targets)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient[..., :4], slope, atol=1e-6)
    assert not gradient[..., 4:].any()


@LEVELS
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [50.0, 3000.0, 1e5])
def test_all_mass_on_one_label_is_exact(size: float, dtype: str, level: str) -> None:
    """What is more improbable than any float can say still is the only way."""
    frames, n = 60, 25
    x = np.zeros((frames, 1, 5), dtype)
    x[..., 0] = size
    targets = labels(1, n, classes=5)
    expected, _ = loss_and_gradient(x.astype(np.float64), targets)
    with selected(level):
        loss, gradient = loss_and_gradient(x, targets)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert loss[0] > 0.9 * n * size
    reference = ctc_losses_grad.reference(
        x.astype(np.float64), targets, *ctc_losses.reference(x.astype(np.float64), targets)[1:],
        np.ones(1), blank=0, normalized=False, label_loop=True,
    )  # fmt: skip
    np.testing.assert_allclose(gradient, reference, atol=5e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("dtype", FLOATS)
def test_twenty_thousand_frames_are_exact(dtype: str) -> None:
    x = normal(20000, 1, 30, dtype=dtype, scale=3.0)
    targets = labels(1, 400, classes=30)
    exact = ctc_losses.reference(x.astype(np.float64), targets)
    loss, gradient = loss_and_gradient(x, targets)
    np.testing.assert_allclose(loss, exact.loss, rtol=1e-7 if dtype == "float32" else 1e-12)
    expected = ctc_losses_grad.reference(
        x.astype(np.float64), targets, *exact[1:], np.ones(1),
        blank=0, normalized=False, label_loop=True,
    )  # fmt: skip
    np.testing.assert_allclose(gradient, expected, atol=1e-5 if dtype == "float32" else 1e-10)


@LEVELS
@pytest.mark.parametrize("dtype", [*FLOATS, "float16"])
def test_nan_stays_in_its_own_sequence(dtype: str, level: str) -> None:
    x = normal(20, 4, 5, dtype=dtype)
    x[7, 1, 2] = x[19, 3, 4] = np.nan
    with selected(level):
        loss, gradient = loss_and_gradient(x, labels(4, 3, classes=5), [20, 20, 20, 19])
    assert np.isnan(loss).tolist() == [False, True, False, False]
    assert np.isnan(gradient).any((0, 2)).tolist() == [False, True, False, False]
    assert np.isnan(gradient[:, 1]).all()


@LEVELS
@pytest.mark.parametrize("dtype", [*FLOATS, "float16"])
def test_any_strides_give_the_same_bits(dtype: str, level: str) -> None:
    x, targets = normal(35, 6, 40, dtype=dtype), labels(6, 8, classes=40)
    batch_major = np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    every_other = np.repeat(x, 2, 2)[..., ::2]
    backwards = x[::-1].copy()[::-1]
    with selected(level):
        expected = loss_and_gradient(x, targets)
        for view in (batch_major, every_other, backwards):
            for mine, other in zip(loss_and_gradient(view, targets), expected, strict=True):
                assert np.array_equal(mine, other)
        wide = np.repeat(targets, 3, 1)[:, ::3]
        assert np.array_equal(loss_and_gradient(x, wide)[1], expected[1])


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_bits(batch: int) -> None:
    x, targets = normal(300, batch, 90, dtype="float32"), labels(batch, 40, classes=90)
    expected = loss_and_gradient(x, targets)
    for threads in (1, 2, 3):
        with num_threads(threads):
            for mine, other in zip(loss_and_gradient(x, targets), expected, strict=True):
                assert np.array_equal(mine, other), threads


def test_targets_one_behind_the_other_equal_padded_ones() -> None:
    x, padded, counts = normal(12, 4, 6), labels(4, 5, classes=6), [5, 0, 2, 3]
    joined = np.concatenate([row[:n] for row, n in zip(padded, counts, strict=True)])
    for dtype in (np.int32, np.int64):
        found = ctc_loss(x, joined.astype(dtype), target_lengths=counts, reduction="none")
        expected = ctc_loss(x, padded, target_lengths=np.array(counts), reduction="none")
        assert np.array_equal(found, expected)


def test_lengths_may_be_lists_or_arrays_of_any_integers() -> None:
    x, targets = normal(12, 3, 6), labels(3, 4, classes=6)
    expected = ctc_loss(x, targets, [12, 9, 10], [4, 2, 3])
    for dtype in ("int8", "int32", "int64", "uint8"):
        frames, counts = np.array([12, 9, 10], dtype), np.array([4, 2, 3], dtype)
        assert ctc_loss(x, targets, frames, counts) == expected
    assert ctc_loss(x, targets, (12, 9, 10), (4, 2, 3)) == expected


def test_mean_divides_by_the_labels_of_each_and_by_one_of_none() -> None:
    x, targets = normal(12, 3, 6), labels(3, 4, classes=6)
    each = ctc_loss(x, targets, target_lengths=[4, 0, 2], reduction="none")
    assert ctc_loss(x, targets, target_lengths=[4, 0, 2], reduction="sum") == each.sum()
    mean = ctc_loss(x, targets, target_lengths=[4, 0, 2])
    np.testing.assert_allclose(mean, (each / [4, 1, 2]).mean())
    np.testing.assert_allclose(
        ctc_loss(x, targets), (ctc_loss(x, targets, reduction="none") / 4).mean()
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"input_lengths": [5, 6]}, r"`input_lengths\[1\]` is 6, but must be from 0 to 5, the fra"),
        ({"input_lengths": [-1, 5]}, r"`input_lengths\[0\]` is -1, but must be from 0 to 5"),
        ({"target_lengths": [2, 3]}, r"`target_lengths\[1\]` is 3, but must be from 0 to 2, the l"),
        ({"target_lengths": [2, 2**40]}, r"`target_lengths\[1\]` is 2147483647, but must be from"),
        ({"targets": np.array([[1, 4], [1, 1]])}, r"`targets\[0, 1\]` is 4, but must be from 0 to"),
        ({"targets": np.array([[1, 2], [-1, 1]])}, r"`targets\[1, 0\]` is -1, but must be from 0"),
        ({"targets": np.array([[1, 2], [1, 0]])}, r"`targets\[1, 1\]` is 0, but must be another "),
        ({"blank": 4}, r"`blank` is 4, but must be from 0 to 3, the classes of `logits`"),
        ({"reduction": "avg"}, "`reduction` must be 'none', 'sum' or 'mean', but is 'avg'"),
        ({"targets": np.array([1, 2])}, "`targets` has one axis, so `target_lengths` must say"),
        ({"targets": np.array([1, 2]), "target_lengths": [1, 2]}, "has the sum 3, but `targets` h"),
        ({"input_lengths": [1.5, 2]}, "`input_lengths` must have integers, but has float64"),
        ({"targets": np.array([[1, 2], [1, 1], [1, 1]])}, "axis `b` is 2 in `logits` but 3 in"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_is_explained(change: dict[str, Any], text: str) -> None:
    given = {"logits": normal(5, 2, 4), "targets": np.array([[1, 2], [1, 1]])}
    with pytest.raises(NativeOpsError, match=text):
        ctc_loss(**{**given, **change})


def test_what_is_beyond_a_target_is_never_read() -> None:
    x, targets = normal(9, 2, 4), np.array([[1, 99], [-7, 10**12]])
    assert np.isfinite(ctc_loss(x, targets, target_lengths=[1, 0]))


@LEVELS
def test_half_precision_computes_in_float(level: str) -> None:
    exact = normal(200, 2, 30).astype(np.float16)
    targets = labels(2, 20, classes=30)
    expected, slope = loss_and_gradient(exact.astype(np.float32), targets)
    with selected(level):
        loss, gradient = loss_and_gradient(exact, targets)
    np.testing.assert_allclose(loss.astype(np.float64), expected, rtol=2**-11)
    np.testing.assert_allclose(gradient.astype(np.float64), slope, rtol=2**-11, atol=1e-6)
