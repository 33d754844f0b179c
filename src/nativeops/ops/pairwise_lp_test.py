# SPDX-License-Identifier: Apache-2.0
"""pairwise_lp: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import math
from itertools import pairwise

import numpy as np
import pytest

from nativeops import pairwise_l1, pairwise_lp
from nativeops.errors import RangeError
from nativeops.ops.pairwise_lp import pairwise_lp_grad
from nativeops.testing.aspects import levels, num_threads, selected

RANDOM = np.random.default_rng(11)
POWERS = (1.0, 1.5, 2.0, 3.0, 7.5, math.inf)


def normal(*shape: int, dtype: str = "float64") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def quarters(*shape: int, dtype: str = "float64") -> np.ndarray:
    """Multiples of 1/4, whose differences are exact in all dtypes, with many ties."""
    return (RANDOM.integers(-8, 9, shape) / 4).astype(dtype)


@pytest.mark.parametrize("p", POWERS)
def test_equals_scipy_cdist(p: float) -> None:
    distance = pytest.importorskip("scipy.spatial.distance")
    x, y = normal(37, 19), normal(41, 19)
    if math.isinf(p):
        expected = distance.cdist(x, y, "chebyshev")
    else:
        expected = distance.cdist(x, y, "minkowski", p=p)
    np.testing.assert_allclose(pairwise_lp(x, y, p=p), expected, rtol=1e-13)


@pytest.mark.parametrize("p", POWERS)
def test_equals_torch_cdist_with_its_gradient(p: float) -> None:
    torch = pytest.importorskip("torch")
    x, y = (torch.from_numpy(normal(3, n, 9)).requires_grad_() for n in (7, 5))
    d_out = torch.from_numpy(normal(3, 7, 5))
    ours, theirs = pairwise_lp(x, y, p=p), torch.cdist(x, y, p=p)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    for mine, expected in zip(
        torch.autograd.grad(ours, (x, y), d_out),
        torch.autograd.grad(theirs, (x, y), d_out),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("p", POWERS)
def test_all_sizes_around_block_edges(level: str, dtype: str, p: float) -> None:
    unit = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11}[dtype]
    with selected(level):
        for _ in range(12):
            n, m, d = (int(size) for size in RANDOM.integers(1, 70, 3))
            x, y = quarters(n, d, dtype=dtype), quarters(m, d, dtype=dtype)
            exact = pairwise_lp.reference(x.astype(np.float64), y.astype(np.float64), p=p)
            found = pairwise_lp(x, y, p=p)
            in_sums = 2.0**-53 if dtype == "float64" else 2.0**-24
            np.testing.assert_allclose(
                found, exact, rtol=(d + 8) * in_sums + unit, err_msg=f"{n} {m} {d}"
            )


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [(205, 70, 300), (65, 600, 40), (1000, 17, 33)], ids=str)
def test_large_blocks_agree_with_the_reference(level: str, dtype: str, size) -> None:
    n, m, d = size
    x, y, d_out = (quarters(*shape, dtype=dtype) for shape in ((n, d), (m, d), (n, m)))
    unit = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11}[dtype]
    in_sums = 2.0**-53 if dtype == "float64" else 2.0**-24
    for p in (2.0, 3.0, math.inf):
        exact = pairwise_lp.reference(x.astype(np.float64), y.astype(np.float64), p=p)
        out = exact.astype(dtype)
        wide = [array.astype(np.float64) for array in (x, y, out, d_out)]
        expected = pairwise_lp_grad.reference(*wide, p=p)
        with selected(level):
            np.testing.assert_allclose(pairwise_lp(x, y, p=p), exact, rtol=d * in_sums + unit)
            found = pairwise_lp_grad(x, y, out, d_out, p=p)
        for mine, other in zip(found, expected, strict=True):
            allowed = max(n, m) * in_sums + unit
            np.testing.assert_allclose(mine, other, rtol=allowed, atol=8 * allowed)


# Beyond these sizes p = 1 and 2 go by Σ min(x, y) and Σ xy where that loses nothing.
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [(130, 150, 40), (129, 133, 300)], ids=str)
def test_small_distances_of_many_large_vectors_keep_their_digits(level, dtype, size) -> None:
    n, m, d = size
    unit = np.finfo(dtype).eps / 2
    x, y = normal(n, d, dtype=dtype), normal(m, d, dtype=dtype)
    some = y.copy()
    some[7:107] = x[:100] * (1 + RANDOM.random((100, 1)) * 1e-3)
    some[5] = x[9]
    extreme = y.copy()
    extreme[3, 2], extreme[4, 1], extreme[5] = np.nan, -np.inf, math.sqrt(np.finfo(dtype).max)
    extreme[6], extreme[7] = np.finfo(dtype).max, -np.finfo(dtype).max
    small = np.sqrt(np.finfo(dtype).smallest_normal)
    tiny_x, tiny_y = x.copy(), some.copy()
    tiny_x[8], tiny_y[9] = small * 1e-9 * x[8], small * 1e-9 * y[9]
    cases = [(x, y), (x, some), (x + 1.7, y + 1.7), (-x - 2.1, -y - 2.1), (tiny_x, tiny_y)]
    cases += [(x + 1000, y + 1000), (x * small, y * small), (x, extreme)]
    for a, b in ((wide_x.astype(dtype), wide_y.astype(dtype)) for wide_x, wide_y in cases):
        with np.errstate(over="ignore", invalid="ignore"):
            exact = pairwise_lp.reference(a.astype(np.longdouble), b.astype(np.longdouble), p=2.0)
            exact = np.where(exact > np.finfo(dtype).max, np.inf, exact)
        with selected(level):
            found = pairwise_lp(a, b, p=2.0)
        np.testing.assert_allclose(found, exact, rtol=(8 * math.sqrt(d) + 8) * unit, atol=0)


@pytest.mark.parametrize("p", POWERS)
def test_is_a_metric(p: float) -> None:
    x, y, z = normal(9, 5), normal(8, 5), normal(7, 5)
    xy, yz, xz = (pairwise_lp(*pair, p=p) for pair in ((x, y), (y, z), (x, z)))
    assert np.array_equal(xy, pairwise_lp(y, x, p=p).T), "it is not symmetric"
    assert not pairwise_lp(x, x, p=p).diagonal().any()
    assert (xz <= (xy[:, :, None] + yz[None]).min(1) + 1e-12).all(), "a detour is shorter"


def test_grows_smaller_with_larger_powers() -> None:
    x, y = normal(9, 5), normal(8, 5)
    found = [pairwise_lp(x, y, p=p) for p in (1.0, 1.2, 2.0, 4.0, 60.0, math.inf)]
    for larger, smaller in pairwise(found):
        assert (smaller <= larger * (1 + 1e-12)).all()


def test_power_one_is_pairwise_l1() -> None:
    x, y = normal(33, 17), normal(21, 17)
    assert np.array_equal(pairwise_lp(x, y, p=1.0), pairwise_l1(x, y))


def test_power_just_above_one_is_nearly_pairwise_l1() -> None:
    x, y = normal(9, 6), normal(8, 6)
    p = 1 + 2.0**-40
    np.testing.assert_allclose(pairwise_lp(x, y, p=p), pairwise_l1(x, y), rtol=1e-10)
    out, d_out = pairwise_lp(x, y, p=p), normal(9, 8)
    near = pairwise_lp_grad(x, y, out, d_out, p=p)
    limit = pairwise_lp_grad(x, y, out, d_out, p=1.0)
    for mine, expected in zip(near, limit, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-9)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [50.0, 1e3, 1e30])
def test_large_power_is_nearly_the_largest_difference(level: str, dtype: str, p: float) -> None:
    x, y = normal(9, 6, dtype=dtype), normal(8, 6, dtype=dtype)
    largest = pairwise_lp(x, y, p=math.inf)
    with selected(level):
        found = pairwise_lp(x, y, p=p)
        gradients = pairwise_lp_grad(x, y, found, np.ones_like(found), p=p)
    assert (found >= largest * (1 - 1e-5)).all()
    assert (found <= largest * 6 ** (1 / p) * (1 + 1e-5)).all()
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 20.0])
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_differences_whose_powers_leave_float32_have_right_distances(level, p, size) -> None:
    x = (normal(20, 7) * size).astype(np.float32)
    y = (normal(19, 7) * size).astype(np.float32)
    with selected(level):
        found = pairwise_lp(x, y, p=p)
        gradients = pairwise_lp_grad(x, y, found, np.ones_like(found), p=p)
    wide = (x.astype(np.float64), y.astype(np.float64))
    exact = pairwise_lp.reference(*wide, p=p)
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    expected = pairwise_lp_grad.reference(*wide, exact, np.ones_like(exact), p=p)
    for mine, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("p", POWERS)
def test_equal_vectors_have_distance_and_gradient_zero(p: float) -> None:
    x = normal(5, 3)
    out = pairwise_lp(x, x, p=p)
    assert not out.diagonal().any()
    d_x, d_y = pairwise_lp_grad(x, x, out, np.eye(5), p=p)
    assert not d_x.any()
    assert not d_y.any()


def test_ties_of_the_largest_difference_share_the_gradient() -> None:
    x, y = np.array([[0.0, 0.0, 0.0, 1.0]]), np.array([[2.0, -2.0, 1.0, 3.0]])
    out = pairwise_lp(x, y, p=math.inf)
    d_x, d_y = pairwise_lp_grad(x, y, out, np.array([[6.0]]), p=math.inf)
    assert d_x.tolist() == [[-2, 2, 0, -2]]
    assert d_y.tolist() == [[2, -2, 0, 2]]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_gradient_of_the_largest_difference_equals_its_reference(level: str, dtype: str) -> None:
    x, y = quarters(2, 13, 21, dtype=dtype), quarters(2, 18, 21, dtype=dtype)
    d_out = quarters(2, 13, 18, dtype=dtype)
    with selected(level):
        out = pairwise_lp(x, y, p=math.inf)
        found = pairwise_lp_grad(x, y, out, d_out, p=math.inf)
    wide = [array.astype(np.float64) for array in (x, y, out, d_out)]
    expected = pairwise_lp_grad.reference(*wide, p=math.inf)
    unit = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3}[dtype]
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=unit, atol=4 * unit)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("p", POWERS)
def test_nan_reaches_its_own_row_and_column_only(level: str, dtype: str, p: float) -> None:
    x, y = normal(23, 40, dtype=dtype), normal(35, 40, dtype=dtype)
    x[3, 7], y[30, 39] = np.nan, np.nan
    expected = np.zeros((23, 35), bool)
    expected[3], expected[:, 30] = True, True
    with selected(level):
        assert np.array_equal(np.isnan(pairwise_lp(x, y, p=p)), expected)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 37), (37, 2)])
def test_few_long_rows(level: str, dtype: str, p: float, n: int, m: int) -> None:
    distance = pytest.importorskip("scipy.spatial.distance")
    for d in (64, 65, 300, 1031):
        x, y = normal(n, d, dtype=dtype), normal(m, d, dtype=dtype)
        kwargs = {} if math.isinf(p) else {"p": p}
        metric = "chebyshev" if math.isinf(p) else "minkowski"
        expected = distance.cdist(x.astype(float), y.astype(float), metric, **kwargs)
        with selected(level):
            np.testing.assert_allclose(
                pairwise_lp(x, y, p=p), expected, rtol=64 * np.finfo(dtype).eps
            )
            x[0, d // 2] = np.nan
            found = pairwise_lp(x, y, p=p)
        assert np.isnan(found[0]).all()
        assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("p", POWERS)
def test_nan_beside_equal_or_infinite_numbers_is_nan(level: str, dtype: str, p: float) -> None:
    others = [[np.nan], [np.nan, 0], [0, np.nan], [np.nan, np.inf], [-np.inf, np.nan], [np.nan, 1]]
    with selected(level):
        for vector in others:
            x = np.array([vector], dtype)
            found = pairwise_lp(x, np.zeros((3, len(vector)), dtype), p=p)
            assert np.isnan(found).all(), vector


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("p", POWERS)
def test_nan_in_one_vector_leaves_the_gradients_of_others_alone(level: str, p: float) -> None:
    x, y = normal(9, 5, dtype="float32"), normal(8, 5, dtype="float32")
    clean = pairwise_lp_grad(x, y, pairwise_lp(x, y, p=p), np.ones((9, 8), np.float32), p=p)
    x[3, 2] = np.nan
    with selected(level):
        d_x, d_y = pairwise_lp_grad(x, y, pairwise_lp(x, y, p=p), np.ones((9, 8), np.float32), p=p)
    assert np.isnan(d_x[3, 2])
    assert np.isnan(d_y[:, 2]).all()
    others = np.arange(9) != 3
    np.testing.assert_allclose(d_x[others], clean.d_x[others], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", POWERS)
def test_infinity_is_infinitely_far(p: float) -> None:
    x, y = np.array([[np.inf, 0.0], [1.0, 2.0]]), np.array([[0.0, 0.0], [-np.inf, 0.0]])
    found = pairwise_lp(x, y, p=p)
    assert np.isposinf(found[0]).all()
    assert np.isposinf(found[1, 1])
    assert np.isfinite(found[1, 0])


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 7.5])
def test_distance_too_large_for_its_dtype_has_no_gradient(level: str, dtype: str, p: float) -> None:
    most = np.finfo(dtype).max
    x, y = np.array([[most, 1], [1, 2]], dtype), np.array([[-most, 1], [4, -2]], dtype)
    with selected(level), np.errstate(over="ignore"):
        out = pairwise_lp(x, y, p=p)
        assert np.isposinf(out[0, 0])
        found = pairwise_lp_grad(x, y, out, np.ones((2, 2), dtype), p=p)
        alone = pairwise_lp_grad(x[1:], y[1:], out[1:, 1:], np.ones((1, 1), dtype), p=p)
    assert np.isfinite(found.d_x).all()
    assert np.isfinite(found.d_y).all()
    np.testing.assert_allclose(found.d_x[1, 1], alone.d_x[0, 1], rtol=0.01)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [1.001, 2.0])
def test_gradient_where_quotients_leave_the_range(level: str, dtype: str, p: float) -> None:
    """What arrives over a distance, and a difference over the largest; but not the results."""
    least, most = np.finfo(dtype).smallest_normal, np.finfo(dtype).max
    x = np.array([[0, 0], [4 * least, 0], [least, most / 4]], dtype)
    y, d_out = np.zeros((1, 2), dtype), np.array([[1], [most / 64], [-1]], dtype)
    with selected(level):
        out = pairwise_lp(x, y, p=p)
        d_x, d_y = pairwise_lp_grad(x, y, out, d_out, p=p)
    wide = (array.astype(np.longdouble) for array in (x, y, out, d_out))
    expected = pairwise_lp_grad.reference(*wide, p=p)
    np.testing.assert_allclose(d_x, expected.d_x, rtol=1e-4, atol=least)
    np.testing.assert_allclose(d_y, expected.d_y, rtol=1e-4, atol=least)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize(("n", "m", "d"), [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)])
def test_empty_axis_gives_empty_or_zero_result(n: int, m: int, d: int, p: float) -> None:
    out = pairwise_lp(np.ones((n, d)), np.ones((m, d)), p=p)
    assert out.shape == (n, m)
    assert not out.any()
    gradients = pairwise_lp_grad(np.ones((n, d)), np.ones((m, d)), out, out, p=p)
    assert [gradient.shape for gradient in gradients] == [(n, d), (m, d)]
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("p", POWERS)
def test_any_number_of_threads_gives_the_same_bits(p: float) -> None:
    x, y = normal(131, 37, dtype="float32"), normal(95, 37, dtype="float32")
    out, d_out = pairwise_lp(x, y, p=p), normal(131, 95, dtype="float32")
    expected = pairwise_lp_grad(x, y, out, d_out, p=p)
    for n in (1, 2, 3, 5):
        with num_threads(n):
            assert np.array_equal(pairwise_lp(x, y, p=p), out)
            found = pairwise_lp_grad(x, y, out, d_out, p=p)
            assert np.array_equal(found.d_x, expected.d_x)
            assert np.array_equal(found.d_y, expected.d_y)


@pytest.mark.parametrize("p", POWERS)
def test_torch_gradient_agrees_with_finite_differences(p: float) -> None:
    torch = pytest.importorskip("torch")
    x, y = (torch.from_numpy(normal(n, 4)).requires_grad_() for n in (3, 5))
    assert torch.autograd.gradcheck(lambda x, y: pairwise_lp(x, y, p=p), (x, y))


@pytest.mark.parametrize("p", [0.999, 0.0, -1.0, math.nan, -math.inf])
def test_power_below_one_is_refused(p: float) -> None:
    with pytest.raises(RangeError, match="`p` must be at least 1"):
        pairwise_lp(np.ones((2, 3)), np.ones((2, 3)), p=p)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("p", [100.0, 1e3, 1e5, 1e7, 1e39, 1e300])
def test_large_powers_come_near_to_the_largest(p: float, dtype: str, level: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    x = torch.zeros((1, 3), dtype=kind, requires_grad=True)
    for row, slope in (([3, 4, 1], [0, 1, 0]), ([0.37, 0, 0], [1, 0, 0]), ([-2, 1, 2], None)):
        y = torch.tensor([row], dtype=kind)
        with selected(level):
            out = pairwise_lp(x, y, p=p)
            [d_x] = torch.autograd.grad(out.sum(), x)
        largest = y.abs().max().item()
        expected = [0.5, 0, -0.5] if slope is None else [-each for each in slope]
        n = expected.count(0.5) + 1
        assert out.item() == pytest.approx(largest * n ** (1 / p), rel=2e-2)
        bound = 3e-2 if dtype in ("bfloat16", "float16") else 1e-5
        scale = n ** (1 / p)  # of both that attain it
        np.testing.assert_allclose(d_x[0].float(), np.array(expected) * scale, atol=bound)
