# SPDX-License-Identifier: Apache-2.0
"""ctc_losses at the edges: what is impossible, empty, infinite, long or not a number."""

from typing import Any

import numpy as np
import pytest

from nativeops import NativeOpsError, ctc_loss
from nativeops.errors import GradientError
from nativeops.testing.aspects import levels, num_threads, selected
from nativeops.testing.ctc import labels, log_softmax, loss_and_gradient, normal, reference

pytest.importorskip("torch")  # which gives the gradients
FLOATS = ("float32", "float64")
LEVELS = pytest.mark.parametrize("level", levels())


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


@pytest.mark.parametrize("size", [1.0, -1e9, -1e17, -3.4028234663852886e38, 2.0**100])
@pytest.mark.parametrize("batch", [2, 40])
@pytest.mark.parametrize("level", levels())
def test_frame_whose_classes_are_equal_is_even_however_large_they_are(
    size: float, batch: int, level: str
) -> None:
    x = normal(12, batch, 7)
    y = labels(batch, 4, classes=7)
    found = []
    for value in (0, size):
        x[5] = value
        with selected(level):
            found.append(loss_and_gradient(x, y))
    for even, large in zip(*found, strict=True):
        np.testing.assert_allclose(large, even, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [-1.7976931348623157e308, -1e39, -1e30, -1e17, 1e300])
@pytest.mark.parametrize("batch", [2, 40])
@pytest.mark.parametrize("level", levels())
def test_frame_beyond_what_is_kept_of_it_is_even_in_double_too(
    size: float, batch: int, level: str
) -> None:
    x = normal(12, batch, 7, dtype="float64")
    y = labels(batch, 4, classes=6)
    found = []
    for value in (0, size):
        x[5] = value
        x[5, :, 6] = -np.inf
        with selected(level):
            found.append(loss_and_gradient(x, y))
    for even, large in zip(*found, strict=True):
        np.testing.assert_allclose(large, even, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1e4, 1e6, 1e9, 1e10])
@pytest.mark.parametrize("batch", [2, 40])
@pytest.mark.parametrize("level", levels())
def test_ways_by_a_class_that_is_masked_everywhere_differ_as_in_double(
    size: float, batch: int, level: str
) -> None:
    x = 2 * normal(20, batch, 6, dtype="float32")
    x[..., 3] = -size
    y = np.tile(np.array([[1, 3, 2], [3, 1, 2]]), (batch // 2, 1))
    with selected(level):
        loss, gradient = loss_and_gradient(x, y)
    expected, slope = loss_and_gradient(x.astype("float64"), y)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, atol=2e-6)


@LEVELS
@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("floor", [-7e10, -1e30, -3.4e38])
def test_class_that_is_ruled_out_counts_the_same_however_it_is(
    floor: float, dtype: str, batch: int, level: str
) -> None:
    x = np.array([[0, 0, 0], [0, 0, 3.0], [0, 0, 6]], dtype)[:, None].repeat(batch, 1)
    x[..., 0] = floor  # a path has two blanks
    given = x, np.ones((batch, 1), np.int32)
    with selected(level):
        loss, gradient = loss_and_gradient(*given, label_loop=False)
    np.testing.assert_allclose(loss, 2.0**37, rtol=1e-6)
    label = np.exp(log_softmax(x.astype("float64")))[..., 1]  # what the label has of the softmax
    posterior = label / label.sum(0)
    np.testing.assert_allclose(gradient[..., 1], label - posterior, atol=1e-4)


@LEVELS
@pytest.mark.parametrize("dtype", FLOATS)
def test_logits_whose_difference_is_beyond_a_float_are_no_infinite_loss(
    dtype: str, level: str
) -> None:
    x = np.array([[[3.3e38, -3.3e38]]] * 3, dtype)
    with selected(level):
        loss, gradient = loss_and_gradient(x, np.array([[1]]))
    np.testing.assert_allclose(loss, 2.0**36, rtol=1e-6)
    np.testing.assert_allclose(gradient.sum(-1), 0, atol=1e-6)
    np.testing.assert_allclose(gradient[..., 1].sum(), -1, atol=1e-3)


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
    expected, slope = reference(x, targets)
    with selected(level):
        loss, gradient = loss_and_gradient(x, targets)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert loss[0] > 0.9 * n * size
    np.testing.assert_allclose(gradient, slope, atol=2e-5 if dtype == "float32" else 1e-10)


@LEVELS
@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("floor", [-1e5, -3e6, -1e7, -1e10, -1e20, -3.4e38])
@pytest.mark.parametrize("dtype", FLOATS)
def test_masked_class_that_the_target_needs_leaves_posteriors_right(
    dtype: str, floor: float, normalized: bool, batch: int, level: str
) -> None:
    """Every way says it once, however improbable that is: as at -1e4, where exp is 0 already."""
    x = np.round(16 * normal(40, 1, 5, dtype=dtype)) / 16
    targets = np.array([[1, 3, 2]])
    x[..., 3] = -1e4
    _, expected = reference(x, targets, normalized=normalized)
    x[..., 3] = floor
    with selected(level):
        loss, gradient = loss_and_gradient(
            x.repeat(batch, 1), targets.repeat(batch, 0), normalized=normalized
        )
    np.testing.assert_allclose(loss, -max(floor, -(2.0**36)), rtol=2e-3)
    if normalized or (dtype == "float64" and floor >= -1e10):
        # Elsewhere what the softmax subtracts is less than the last digit of a masked logit.
        np.testing.assert_allclose(gradient, expected.repeat(batch, 1), atol=2e-5)
    total = gradient.sum(-1)
    np.testing.assert_allclose(total, -1 if normalized else 0, atol=1e-4)
    assert np.abs(gradient).max() <= 1 + 1e-6


@LEVELS
@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("dtype", FLOATS)
def test_frames_that_differ_by_millions_have_posteriors(dtype: str, batch: int, level: str) -> None:
    x = np.round(1e6 * normal(50, 1, 7, dtype=dtype))
    targets = labels(1, 12, classes=7)
    expected, slope = reference(x, targets, normalized=True)
    with selected(level):
        loss, gradient = loss_and_gradient(
            x.repeat(batch, 1), targets.repeat(batch, 0), normalized=True
        )
    np.testing.assert_allclose(loss, expected.repeat(batch), rtol=1e-6)
    np.testing.assert_allclose(gradient, slope.repeat(batch, 1), atol=1e-6)


@LEVELS
@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("size", [12.0, 17.0, 25.0, 40.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_only_way_between_unlikely_ones_is_exact(
    dtype: str, size: float, batch: int, level: str
) -> None:
    """Each frame must be a label, and wants to be a blank: most weights lead nowhere."""
    frames = 70
    x = np.zeros((frames, 1, frames + 1), dtype)
    x[..., 0] = size
    targets = 1 + np.arange(frames)[None]
    expected, slope = reference(x, targets)
    with selected(level):
        loss, gradient = loss_and_gradient(x.repeat(batch, 1), targets.repeat(batch, 0))
    np.testing.assert_allclose(loss, expected.repeat(batch), rtol=1e-6)
    tolerance = 2e-5 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(gradient, slope.repeat(batch, 1), atol=tolerance)


@LEVELS
@pytest.mark.parametrize("batch", [2, 34])
@pytest.mark.parametrize("dtype", FLOATS)
def test_calm_and_wild_frames_in_turn_are_exact(dtype: str, batch: int, level: str) -> None:
    x = normal(230, 2, 9, dtype=dtype)
    x[40:60] *= 200
    x[100] *= 1e4
    x[150:155, 0, :3] = -np.inf
    targets = labels(2, 30, classes=9)
    expected, slope = reference(x, targets)
    many = np.arange(batch) % 2
    with selected(level):
        loss, gradient = loss_and_gradient(x[:, many], targets[many])
    np.testing.assert_allclose(loss, expected[many], rtol=1e-6)
    tolerance = 2e-4 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(gradient, slope[:, many], atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
def test_twenty_thousand_frames_are_exact(dtype: str) -> None:
    x = normal(20000, 1, 30, dtype=dtype, scale=3.0)
    targets = labels(1, 400, classes=30)
    expected, slope = reference(x, targets)
    loss, gradient = loss_and_gradient(x, targets)
    np.testing.assert_allclose(loss, expected, rtol=1e-7 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(gradient, slope, atol=1e-5 if dtype == "float32" else 1e-10)


@LEVELS
@pytest.mark.parametrize("dtype", [*FLOATS, "float16"])
def test_nan_stays_in_its_own_sequence(dtype: str, level: str) -> None:
    x = normal(20, 4, 5, dtype=dtype)
    x[7, 1, 2] = x[19, 3, 4] = np.nan
    with selected(level):
        loss, gradient = loss_and_gradient(x, labels(4, 3, classes=5), [20, 15, 20, 19])
    assert np.isnan(loss).tolist() == [False, True, False, False]
    assert np.isnan(gradient).any((0, 2)).tolist() == [False, True, False, False]
    assert np.isnan(gradient[:15, 1]).all()
    assert not gradient[15:, 1].any()


@LEVELS
@pytest.mark.parametrize("batch", [3, 40])
@pytest.mark.parametrize(("frame", "label"), [(0, 2), (11, 1), (5, 2), (5, 0)])
def test_nan_at_a_class_of_the_target_counts_whether_or_not_a_way_is_there(
    frame: int, label: int, batch: int, level: str
) -> None:
    """With `normalized`: no way can be at the last label in the first frame."""
    x, y = log_softmax(normal(12, batch, 7)), np.tile([1, 3, 2], (batch, 1))
    x[frame, 1, [label, 5]] = np.nan
    x[:, 2, 6] = np.nan  # of no label
    with selected(level):
        loss, gradient = loss_and_gradient(x, y, normalized=True)
    expected, slope = reference(x, y, normalized=True)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, atol=1e-6)
    assert np.isnan(loss).tolist() == [b == 1 for b in range(batch)]
    assert np.isnan(gradient).any((0, 2)).tolist() == [b == 1 for b in range(batch)]
    assert np.isnan(gradient[:, 1]).all()


@LEVELS
@pytest.mark.parametrize("dtype", [*FLOATS, "float16"])
def test_any_strides_give_the_same_bits(dtype: str, level: str) -> None:
    x, targets = normal(35, 6, 40, dtype=dtype), labels(6, 8, classes=40)
    batch_major = np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    every_other = np.repeat(x, 2, 2)[..., ::2]
    with selected(level):
        expected = loss_and_gradient(x, targets)
        for view in (batch_major, every_other):
            for mine, other in zip(loss_and_gradient(view, targets), expected, strict=True):
                assert np.array_equal(mine, other)
        wide = np.repeat(targets, 3, 1)[:, ::3]
        assert np.array_equal(loss_and_gradient(x, wide)[1], expected[1])


@LEVELS
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("label_loop", [True, False])
def test_many_sequences_equal_the_same_in_parts(
    label_loop: bool, dtype: str, tolerance: float, level: str
) -> None:
    batch, steps = 37, 230  # so many are walked back block by block
    random = np.random.default_rng(7)
    x, targets = normal(steps, batch, 9, dtype=dtype), labels(batch, 20, classes=9)
    frames, counts = random.integers(0, steps + 1, batch), random.integers(0, 21, batch)
    frames[:6], counts[:6] = [0, 16, 17, 32, 230, 229], [0, 3, 1, 20, 0, 7]
    targets[7], frames[7], counts[7] = 1, 20, 20  # impossible with a label loop
    x[11, 9, 3] = np.nan
    frames[9] = 30
    parts = [slice(0, 5), slice(5, 30), slice(30, batch)]
    with selected(level):
        loss, gradient = loss_and_gradient(x, targets, frames, counts, label_loop=label_loop)
        some = [
            loss_and_gradient(
                x[:, part], targets[part], frames[part], counts[part], label_loop=label_loop
            )
            for part in parts
        ]
    assert np.array_equal(loss, np.concatenate([each for each, _ in some]), equal_nan=True)
    assert np.isinf(loss[7]) == label_loop
    assert np.isnan(gradient).any((0, 2)).tolist() == [b == 9 for b in range(batch)]
    expected = np.concatenate([slope for _, slope in some], 1)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance)


def test_gradient_of_some_of_many_sequences_is_that_of_all() -> None:
    torch = pytest.importorskip("torch")
    x, targets = torch.from_numpy(normal(210, 40, 9, dtype="float32")), labels(40, 20, classes=9)
    frames = torch.from_numpy(np.random.default_rng(5).integers(0, 211, 40).astype(np.int32))
    counts = torch.full((40,), 7, dtype=torch.int32)
    given = x, torch.from_numpy(targets), frames, counts
    every_result = 0b111
    loss, *kept = torch.ops.nativeops.ctc_losses(*given, 0, False, True, False, every_result)

    def gradient(part: slice) -> Any:
        some = [tensor[:, part] for tensor in kept]
        return torch.ops.nativeops.ctc_losses_grad(
            x[:, part], given[1][part], *some, torch.ones_like(loss[part]),
            frames[part], counts[part], 0, False,
        )  # fmt: skip

    whole = gradient(slice(None))
    assert not whole.isnan().any()
    for part in (slice(0, 5), slice(5, 36), slice(36, 40)):
        assert torch.equal(gradient(part), whole[:, part])


@pytest.mark.parametrize("batch", [1, 2, 5, 35])
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
        ({"targets": np.array([[1, 2], [1, 0]])}, r"`targets\[1, 1\]` is 0, but that is `blank`"),
        ({"blank": 4}, r"`blank` is 4, but must be from 0 to 3, the classes of `logits`"),
        ({"reduction": "avg"}, r"`reduction` must be one of \['none', 'sum', 'mean'\]"),
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


@LEVELS
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("dtype", [*FLOATS, "float16"])
def test_last_frames_may_be_as_improbable_as_any(
    dtype: str, batch: int, normalized: bool, level: str
) -> None:
    """Of the few frames left over by blocks, each may need all that a number can hold."""
    for frames in (1, 2, 3, 4, 5, 17, 18, 19, 20, 33):
        for gap in (60, 80, 88, 95, 110, 130, 180, 400):
            x = np.zeros((frames, 1, 4), dtype)
            x[-4:, 0, 3] = gap  # which no path may say
            x[-1, 0, :2] = -gap, -gap / 4
            given = log_softmax(x.astype(np.float64)).astype(dtype) if normalized else x
            targets = np.array([[1]] if frames > 1 else [[]], np.int64).reshape(1, -1)
            scores = given if normalized else log_softmax(x.astype(np.float64))
            expected, slope = reference(scores.astype(np.float64), targets)
            if normalized:  # of what is not divided: minus the posteriors
                slope = slope - np.exp(log_softmax(scores.astype(np.float64)))
            many = np.zeros(batch, int)
            with selected(level):
                loss, gradient = loss_and_gradient(
                    given[:, many], targets[many], normalized=normalized
                )
            bound = 2e-3 if dtype == "float16" else 1e-5
            np.testing.assert_allclose(loss, expected[many], rtol=bound)
            np.testing.assert_allclose(gradient, slope[:, many], atol=bound)


def test_second_derivative_is_refused_by_the_name_that_users_know() -> None:
    torch = pytest.importorskip("torch")
    logits = torch.randn(4, 1, 3, requires_grad=True)
    loss = ctc_loss(logits, torch.tensor([[1]]))
    (slope,) = torch.autograd.grad(loss, logits, create_graph=True)
    sentence = "^ctc_loss: its gradient has none itself, so it cannot be differentiated twice"
    with pytest.raises(GradientError, match=sentence):
        slope.square().sum().backward()
