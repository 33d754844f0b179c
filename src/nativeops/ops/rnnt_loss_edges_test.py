# SPDX-License-Identifier: Apache-2.0
"""rnnt_costs at the edges: lengths, infinities, NaN and wrong values."""

import numpy as np
import pytest

from nativeops.errors import RangeError
from nativeops.ops.rnnt_loss import rnnt_costs, rnnt_costs_grad
from nativeops.ops.rnnt_loss_test import TOPOLOGIES, draw, softmax
from nativeops.testing.aspects import levels, selected


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_edges_of_lengths(level, topology) -> None:
    x, y, _, _ = draw(6, 3, 4, 5)
    t_len = np.array([0, 0, 1, 1, 3, 2], np.int32)
    u_len = np.array([0, 2, 0, 1, 4, 2], np.int32)
    with selected(level):
        costs = rnnt_costs(x, y, t_len, u_len, topology=topology).costs
        grads = rnnt_costs_grad(x, y, t_len, u_len, np.ones(6), topology=topology)
    log_p = np.log(softmax(x))
    assert costs[0] == 0
    assert not np.signbit(costs[0])
    assert costs[1] == np.inf, "labels need a frame"
    assert costs[2] == pytest.approx(-log_p[2, 0, 0, -1], rel=1e-14)
    one = log_p[3, 0, 0, y[3, 0]] + (log_p[3, 0, 1, -1] if topology == "rnnt" else 0)
    assert costs[3] == pytest.approx(-one, rel=1e-14)
    assert (costs[4] == np.inf) == (topology != "rnnt"), "four labels in three frames"
    assert np.isfinite(grads).all()
    for b in np.flatnonzero((costs == np.inf) | (t_len == 0)):
        assert not grads[b].any(), "no path, no gradient"
    assert not grads[5, 2:].any()
    assert not grads[5, :, 3:].any()
    assert grads[5, :2, :2].any()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_mass_on_one_path_costs_nothing(level, topology) -> None:
    x = np.full((1, 4, 3, 5), -np.inf)
    x[..., 0] = 0  # what lies beside the path says a wrong label
    labels = np.array([[2, 1]], np.int32)
    path = [(0, 0, -1), (1, 0, 2), (1, 1, -1), (2, 1, 1), (2, 2, -1), (3, 2, -1)]
    if topology != "rnnt":  # a label takes a frame
        path = [(0, 0, -1), (1, 0, 2), (2, 1, 1), (3, 2, -1)]
    for t, u, label in path:
        x[0, t, u] = -np.inf
        x[0, t, u, label] = 0
    lengths = np.array([4], np.int32), np.array([2], np.int32)
    with selected(level):
        costs = rnnt_costs(x, labels, *lengths, topology=topology).costs
        grads = rnnt_costs_grad(x, labels, *lengths, np.ones(1), topology=topology)
    assert costs == 0
    assert not grads.any()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("size", [1e4, 1e5, 1e7, 1e9])
@pytest.mark.parametrize("kept", [False, True])
def test_paths_by_a_class_that_is_masked_everywhere_differ_as_in_double(
    level, topology, size, kept
) -> None:
    x, y, t_len, u_len = draw(3, 9, 4, 5, dtype="float32")
    y[:, 1], x[..., y[0, 1]] = y[0, 1], -size
    given = x, y, t_len, u_len, np.ones(3, "f")
    with selected(level):
        costs, lattice = rnnt_costs(*given[:-1], topology=topology)
        found = rnnt_costs_grad(*given, *[lattice] * kept, topology=topology)
    np.testing.assert_allclose(
        costs, rnnt_costs.reference(*given[:-1], topology=topology).costs, rtol=1e-6
    )
    expected = rnnt_costs_grad.reference(*given, topology=topology)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_class_that_is_ruled_out_counts_the_same_however_it_is(level, dtype) -> None:
    x, y, t_len, u_len = draw(3, 6, 4, 5, dtype=dtype)
    y[:, 1] = y[0, 1]
    found = []
    for mask in (-1e11, -1e15, np.finfo(np.float32).min, np.finfo(dtype).min):
        x[..., y[0, 1]] = mask
        with selected(level):
            found.append(rnnt_costs_grad(x, y, t_len, u_len, np.ones(3, dtype)))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-4)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    "kind", [("float32", 3e37), ("float64", 1e20), ("float64", 1e300), ("float64", 3e307)]
)
def test_finite_logits_of_any_size_have_finite_gradients(level, kind) -> None:
    dtype, size = kind
    for seed in range(100):
        x = (np.random.default_rng(seed).standard_normal((2, 3, 3, 3)) * size).astype(dtype)
        y, lengths = np.array([[1, 0], [0, 1]]), np.array([3, 3], np.int32)
        with selected(level):
            costs = rnnt_costs(x, y, lengths, lengths - 1).costs
            grads = rnnt_costs_grad(x, y, lengths, lengths - 1, np.ones(2, dtype))
        assert np.isfinite(costs).all()
        assert np.isfinite(grads).all()
        np.testing.assert_allclose(grads.sum(-1), 0, atol=1e-4)


@pytest.mark.parametrize("level", levels())
def test_nothing_beyond_the_lengths_is_read(level) -> None:
    x, y, t_len, u_len = draw(2, 5, 4, 6, dtype="float32")
    t_len[:], u_len[:] = (3, 5), (2, 1)
    dirty, odd = x.copy(), y.copy()
    for b in range(2):
        dirty[b, t_len[b] :], dirty[b, :, u_len[b] + 1 :] = np.nan, np.nan
        odd[b, u_len[b] :] = -77
    with selected(level):
        assert np.array_equal(
            rnnt_costs(x, y, t_len, u_len).costs, rnnt_costs(dirty, odd, t_len, u_len).costs
        )
        ones = np.ones(2, "f")
        assert np.array_equal(
            rnnt_costs_grad(x, y, t_len, u_len, ones),
            rnnt_costs_grad(dirty, odd, t_len, u_len, ones),
        )


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("classes", [5, 33])
def test_nan_stays_in_its_own_sequence(level, dtype, classes) -> None:
    x, y, t_len, u_len = draw(3, 4, 2, classes, dtype=dtype)
    x[1, 2, 1, 3] = np.nan
    with selected(level):
        costs = rnnt_costs(x, y, t_len, u_len).costs
        grads = rnnt_costs_grad(x, y, t_len, u_len, np.ones(3, dtype))
    assert np.isnan(costs).tolist() == [False, True, False]
    assert np.isfinite(grads[[0, 2]]).all()
    assert np.isnan(grads[1, 2, 1]).any()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_infinite_logits_close_ways(level, dtype) -> None:
    x, y, t_len, u_len = draw(4, 4, 2, 6, dtype=dtype)
    x[0, 1, 1] = -np.inf  # a cell that no path passes
    x[1, :, :, [0, 2]] = -np.inf  # symbols that never come ..
    y[1] = 1  # .. and are not needed
    x[2, :, :, 3], y[2, 1] = -np.inf, 3  # but here one is
    x[3, 1] = -np.inf  # a whole frame
    with selected(level):
        costs = rnnt_costs(x, y, t_len, u_len).costs
        grads = rnnt_costs_grad(x, y, t_len, u_len, np.ones(4, dtype))
    assert np.isfinite(costs).tolist() == [True, True, False, False]
    assert (costs[2:] == np.inf).all()
    assert np.isfinite(grads).all()
    assert not grads[2:].any()
    assert not grads[0, 1, 1].any()
    assert grads[0].any()
    assert not grads[1][..., [0, 2]].any()


WRONG = {
    "`logit_lengths[1]` is 6, but must be from 0 to 5, the frames of `logits`.": ("t", 6),
    "`target_lengths[1]` is -1, but must be from 0 to 3, the labels of `targets`.": ("u", -1),
    "`targets[1, 0]` is 7, but must be from 0 to 6, the classes of `logits`.": ("y", 7),
    "`targets[1, 0]` is 6, but that is `blank`, which stands between targets.": ("y", 6),
    "`blank` is 9, but must be from -1 to 6, where -1 is the last class of `logits`.": ("blank", 9),
}


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("text", WRONG)
def test_wrong_value_is_refused_in_the_same_words(framework, text) -> None:
    module = pytest.importorskip({"jax": "jax.numpy"}.get(framework, framework))
    (x, y, t_len, u_len), (which, value) = draw(2, 5, 3, 7, dtype="float32"), WRONG[text]
    blank = value if which == "blank" else -1
    if which != "blank":
        array = {"t": t_len, "u": u_len, "y": y}[which]
        array[(1, 0)[: array.ndim]] = value
    make = getattr(module, "asarray", None) or module.constant
    with pytest.raises(RangeError) as caught:
        rnnt_costs(*(make(a) for a in (x, y, t_len, u_len)), blank=blank)
    assert str(caught.value) == f"rnnt_loss: {text}"
