# SPDX-License-Identifier: Apache-2.0
"""Cross entropy against sparse targets: what is true beyond agreeing with its reference."""

import numpy as np
import pytest

from nativeops import cross_entropy_softmax_and_gradient_sparse as cross_entropy
from nativeops import get_num_threads, set_num_threads
from nativeops.arrays import namespace
from nativeops.ops.sparse_cross_entropy import cross_entropy_softmax_and_gradient_sparse_grad
from nativeops.testing.arrays import arrays_of
from nativeops.testing.aspects import levels, selected

RANDOM = np.random.default_rng(12)


def gradients(z, time, label, weight, *flows):  # type: ignore[no-untyped-def]
    """What flows back, from what flows to the loss, to its gradient and to the largest."""
    made = cross_entropy(z, time, label, weight).grad_z
    return cross_entropy_softmax_and_gradient_sparse_grad(z, time, label, weight, made, *flows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loss_and_gradients_are_torchs_cross_entropy(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    t, b, d, n = 6, 3, 8, 40
    time, label = torch.randint(0, t, (n, b)), torch.randint(0, d, (n, b))
    weight, mask = torch.rand(n, b, dtype=torch.float64), torch.rand(n, b) < 0.8
    kind = getattr(torch, dtype)
    z = (3 * torch.randn(t, b, d, dtype=kind)).requires_grad_()
    weight = weight.to(kind).requires_grad_()
    z_mask = torch.rand(t, b) < 0.7
    made = cross_entropy(z, time, label, weight, mask, z_mask)
    place = (time, torch.arange(b).expand(n, b), label)
    dense = torch.zeros(t, b, d, dtype=kind).index_put(place, weight * mask, accumulate=True)
    dense = dense * z_mask[..., None]
    loss = -(dense * z.log_softmax(-1)).sum(-1)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(made.loss, loss, **close)
    torch.testing.assert_close(made.max_z, z.amax(-1), rtol=0, atol=0)
    d_loss = torch.randn(t, b, dtype=kind)
    (own,) = torch.autograd.grad(loss.sum(), z, retain_graph=True)
    torch.testing.assert_close(made.grad_z, own, **close)
    pairs = zip(
        torch.autograd.grad(made.loss, (z, weight), d_loss),
        torch.autograd.grad(loss, (z, weight), d_loss),
        strict=True,
    )
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, **close)


@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_gradient_of_the_loss_alone_is_its_multiple(framework: str) -> None:
    """Also where the largest logit counts too; no softmax is made again for it."""
    pytest.importorskip(framework)
    shapes = (4, 3, 70), (4, 3), (4, 3), (9, 3)
    z, d_loss, d_most, weight = (RANDOM.standard_normal(shape, "f") for shape in shapes)
    time, label = RANDOM.integers(0, 4, (9, 3)), RANDOM.integers(0, 70, (9, 3))
    grad_z = cross_entropy(z, time, label, weight).grad_z
    expected = d_loss[..., None] * grad_z
    largest = np.arange(70) == z.argmax(-1)[..., None]
    arrays = arrays_of(framework, "cpu")
    given = [arrays.place(x, str(x.dtype)).array for x in (z, time, label, weight, d_loss, d_most)]
    rest, module = given[1:4], namespace(given[0])
    add = module.reduce_sum if framework == "tensorflow" else module.sum

    def alone(z):  # type: ignore[no-untyped-def]
        return add(cross_entropy(z, *rest).loss * given[4])

    def both(z):  # type: ignore[no-untyped-def]
        made = cross_entropy(z, *rest)
        return add(made.loss * given[4]) + add(made.max_z * given[5])

    for total, exact in ((alone, expected), (both, expected + d_most[..., None] * largest)):
        np.testing.assert_allclose(slope(framework, total, given[0]), exact, rtol=1e-6)


def slope(framework, total, z):  # type: ignore[no-untyped-def]
    if framework == "torch":
        import torch

        return torch.autograd.grad(total(z.requires_grad_()), z)[0].numpy()
    if framework == "jax":
        import jax

        return np.asarray(jax.grad(total)(z))
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(z)
        value = total(z)
    return tape.gradient(value, z).numpy()


def test_classic_gradient_where_weights_sum_to_one() -> None:
    """RETURNN's: softmax less the targets."""
    z, frames = RANDOM.standard_normal((5, 2, 3)), np.arange(5)[:, None].repeat(2, 1)
    label = RANDOM.integers(0, 3, (5, 2))
    made = cross_entropy(z, frames, label, np.ones((5, 2)))
    softmax = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    picked = np.take_along_axis(softmax, label[..., None], -1)[..., 0]
    np.testing.assert_allclose(made.loss, -np.log(picked), rtol=1e-12)
    onehot = np.arange(3) == label[..., None]
    np.testing.assert_allclose(made.grad_z, softmax - onehot, atol=1e-15)


def test_large_logits_lose_nothing() -> None:
    z = np.array([[[1e4, 0.0]]], np.float32)
    zero = np.zeros((1, 1), int)
    made = cross_entropy(z, zero, zero + 1, np.ones((1, 1), np.float32))
    assert made.loss == 1e4, "a probability that underflows has a logarithm all the same"


@pytest.mark.parametrize("base", [1e4, 1e6, 8e6, -8e6])
def test_what_all_logits_have_in_common_makes_no_difference(base: float) -> None:
    zero, one = np.zeros((1, 1), int), np.ones((1, 1), np.float32)
    losses, slopes = [], []
    for z in (np.array([[[2, 2, 1]]], np.float32) + np.float32(shift) for shift in (0, base)):
        losses.append(cross_entropy(z, zero, zero, one).loss)
        slopes.append(gradients(z, zero, zero, one, one, np.zeros_like(z), one).d_weight)
    assert losses[0] == losses[1]
    assert slopes[0] == slopes[1]


@pytest.mark.parametrize("low", [-np.inf, -3e38])
def test_label_without_probability_costs_infinity_or_nothing_without_weight(low: float) -> None:
    z = np.array([[[low, 3e38, 0.0]]], np.float32)
    zero, one = np.zeros((1, 1), int), np.ones((1, 1), np.float32)
    assert cross_entropy(z, zero, zero, one).loss == np.inf
    assert cross_entropy(z, zero, zero, 0 * one).loss == 0
    found = gradients(z, zero, zero, one, 0 * one, np.zeros_like(z), one)
    assert found.d_weight == 0
    assert found.d_z.tolist() == [[[0, 1, 0]]]


def test_gradient_of_the_largest_goes_to_the_first_of_equals() -> None:
    zero = np.zeros((1, 1))
    index = np.zeros((0, 1), int)
    z = np.array([[[1.0, 2.0, 2.0, 0.0, 2.0]]])
    found = gradients(z, index, index, np.zeros((0, 1)), zero, np.zeros_like(z), zero + 3)
    assert found.d_z.tolist() == [[[0, 3, 0, 0, 0]]]


def test_nan_in_a_frame_without_entries_does_not_matter() -> None:
    z = np.array([[[np.nan, 1.0]], [[-np.inf, -np.inf]], [[0.0, 0.0]]])
    place = np.full((1, 1), 2)
    made = cross_entropy(z, place, place * 0, np.ones((1, 1)))
    assert made.loss.ravel() == pytest.approx([0, 0, np.log(2)])
    assert not made.grad_z[:2].any()
    grads = gradients(
        z, place, place * 0, np.ones((1, 1)), np.ones((3, 1)), np.zeros_like(z), np.zeros((3, 1))
    )
    assert not grads.d_z[:2].any()


def test_weights_that_sum_up_to_nothing_hide_no_nan() -> None:
    z = np.array([[[np.nan, 1.0, 2.0]], [[-np.inf] * 3], [[np.inf, 0.0, 1.0]], [[1.0, 2.0, 3.0]]])
    time, label = np.arange(4).repeat(2)[:, None], np.array([0, 1] * 4)[:, None]
    given = z, time, label, np.array([[1.0], [-1.0]] * 4)
    made = cross_entropy(*given)
    with np.errstate(invalid="ignore"):
        expected = cross_entropy.reference(*given)
    np.testing.assert_allclose(made.grad_z, expected.grad_z)
    assert np.isnan(made.grad_z[:3]).all()
    grads = gradients(*given, np.ones((4, 1)), np.zeros_like(z), np.zeros((4, 1)))
    assert np.isnan(grads.d_z[:3]).all()
    np.testing.assert_allclose(grads.d_z[3], [[-1, 1, 0]])


def test_losses_have_the_same_bits_for_any_number_of_threads() -> None:
    z = RANDOM.standard_normal((30, 5, 20), dtype=np.float32)
    time, label = RANDOM.integers(0, 30, (5000, 5)), RANDOM.integers(0, 20, (5000, 5))
    weight = RANDOM.random((5000, 5), dtype=np.float32)
    made, before = [], get_num_threads()
    try:
        for threads in (1, 2, 3):
            set_num_threads(threads)
            made.append([a.tobytes() for a in cross_entropy(z, time, label, weight)])
    finally:
        set_num_threads(before)
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("level", [level for level in levels() if level != "portable"])
@pytest.mark.parametrize(("dtype", "close"), [("float32", 2e-6), ("float64", 1e-13)])
def test_vectors_give_what_the_portable_kernel_gives(level: str, dtype: str, close: float) -> None:
    """For rows of any length and layout, with what has no usual softmax among them."""
    t, b, n = 9, 3, 12
    for d in (1, 7, 16, 33, 70, 300):
        z = 30 * RANDOM.standard_normal((t, b, d)).astype(dtype)
        z[0, 0], z[1, 0, 0], z[2, 1, -1], z[3, 2, 0], z[4] = -np.inf, np.nan, np.inf, -np.inf, 1e30
        z[5, 0, :1], z[5, 0, -1] = np.inf, np.nan
        time, label = RANDOM.integers(0, t, (n, b)), RANDOM.integers(0, d, (n, b))
        weight = RANDOM.random((n, b)).astype(dtype)
        shapes = ((t, b), (t, b, d), (t, b))
        flows = [RANDOM.standard_normal(shape).astype(dtype) for shape in shapes]
        for rows in (z, z[..., ::-1], np.asfortranarray(z)):
            entries, made = (rows, time, label, weight), []
            for each in (level, "portable"):
                with selected(each):
                    made.append(cross_entropy(*entries))
                    made[-1] += gradients(*entries, *flows)
            for found, expected in zip(*made, strict=True):
                np.testing.assert_allclose(found, expected, rtol=close, atol=close)
