# SPDX-License-Identifier: Apache-2.0
"""ctc_losses: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import numpy as np
import pytest

from nativeops import ctc_loss
from nativeops.testing.aspects import levels, selected
from nativeops.testing.ctc import RANDOM, enumerated, labels, loss_and_gradient, normal

pytest.importorskip("torch")  # which gives the gradients
LEVELS = pytest.mark.parametrize("level", levels())

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
@pytest.mark.parametrize(
    "size", [(40, 7, 12, 9), (130, 3, 70, 40), (33, 5, 3, 15), (52, 40, 12, 9)], ids=str
)
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
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_beside_classes_that_are_ruled_out_makes_the_loss_nan(dtype: str, level: str) -> None:
    """All that the target needs is -infinity there, from which NaN is taken."""
    x = np.zeros((3, 2, 4), dtype)
    x[1, 0] = [-np.inf, -np.inf, np.nan, 0]
    with selected(level):
        loss, gradient = loss_and_gradient(x, np.array([[1], [1]]))
    assert np.isnan(loss).tolist() == [True, False]
    assert np.isfinite(gradient[:, 1]).all()
