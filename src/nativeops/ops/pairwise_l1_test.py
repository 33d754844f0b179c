# SPDX-License-Identifier: Apache-2.0
"""pairwise_l1: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import multiprocessing
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nativeops import pairwise_l1, pairwise_lp
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.aspects import levels, num_threads, selected
from nativeops.testing.marks import without_sanitizer

RANDOM = np.random.default_rng(7)
# Around the blocks of rows and columns that kernels keep in registers, and their rests.
EDGES = (1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)


def normal(*shape: int, dtype: str = "float64") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def whole_numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small integers: all sums of their differences are exact in any order."""
    return RANDOM.integers(-8, 9, shape).astype(dtype)


def test_equals_scipy_cdist() -> None:
    distance = pytest.importorskip("scipy.spatial.distance")
    x, y = normal(37, 19), normal(41, 19)
    np.testing.assert_allclose(pairwise_l1(x, y), distance.cdist(x, y, "cityblock"), rtol=1e-13)


def test_equals_torch_cdist_with_its_gradient() -> None:
    torch = pytest.importorskip("torch")
    x, y = (torch.from_numpy(normal(3, n, 9)).requires_grad_() for n in (7, 5))
    d_out = torch.from_numpy(normal(3, 7, 5))
    ours, theirs = pairwise_l1(x, y), torch.cdist(x, y, p=1)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    for mine, expected in zip(
        torch.autograd.grad(ours, (x, y), d_out),
        torch.autograd.grad(theirs, (x, y), d_out),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_whole_numbers_give_exact_results_at_all_block_edges(level: str, dtype: str) -> None:
    with selected(level):
        for n in EDGES:
            m, d = int(RANDOM.choice(EDGES)), int(RANDOM.choice(EDGES))
            for rows, columns, depth in ((n, m, d), (m, n, d), (m, d, n)):
                check_exact(rows, columns, depth, dtype)


# Sizes beyond each of the blocks into which the work is divided, and their mixtures.
LARGE = [
    (1, 205, 70, 300),
    (1, 65, 600, 40),
    (1, 1000, 17, 33),
    (1, 70, 100, 1030),
    (1, 2, 50001, 3),
    (1, 50001, 2, 3),
    (70, 3, 1000, 2),
    (450, 3, 2000, 4),
]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", LARGE, ids=str)
def test_whole_numbers_give_exact_results_in_large_blocks(level: str, dtype: str, size) -> None:
    with selected(level):
        check_exact(*size[1:], dtype, lead=size[:1])


def check_exact(n: int, m: int, d: int, dtype: str, lead: tuple[int, ...] = ()) -> None:
    x, y = whole_numbers(*lead, n, d, dtype=dtype), whole_numbers(*lead, m, d, dtype=dtype)
    d_out = whole_numbers(*lead, n, m, dtype=dtype)
    wide = [array.astype(np.float32) for array in (x, y, d_out)]  # holds all sums exactly
    expected = [pairwise_l1.reference(*wide[:2]), *pairwise_l1_grad.reference(*wide)]
    found = [pairwise_l1(x, y), *pairwise_l1_grad(x, y, d_out)]
    for what, mine, exact in zip(("out", "d_x", "d_y"), found, expected, strict=True):
        assert np.array_equal(mine, exact.astype(dtype)), (what, n, m, d)


def test_is_a_metric() -> None:
    x, y, z = normal(9, 5), normal(8, 5), normal(7, 5)
    xy, yz, xz = pairwise_l1(x, y), pairwise_l1(y, z), pairwise_l1(x, z)
    assert np.array_equal(xy, pairwise_l1(y, x).T), "it is not symmetric"
    assert not pairwise_l1(x, x).diagonal().any(), "a vector is not at distance 0 from itself"
    through = (xy[:, :, None] + yz[None]).min(1)
    assert (xz <= through + 1e-12).all(), "a detour is shorter"


def test_shift_by_a_common_vector_changes_nothing() -> None:
    x, y, shift = whole_numbers(6, 4), whole_numbers(5, 4), whole_numbers(4)
    assert np.array_equal(pairwise_l1(x + shift, y + shift), pairwise_l1(x, y))


def test_equal_numbers_have_gradient_zero() -> None:
    x = np.array([[1.0, 2.0], [0.0, -0.0]])
    y = np.array([[1.0, 5.0], [-0.0, 0.0]])
    d_x, d_y = pairwise_l1_grad(x, y, np.ones((2, 2)))
    assert d_x.tolist() == [[1, 0], [-1, -1]]
    assert d_y.tolist() == [[1, 2], [-1, -1]]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nan_reaches_its_own_row_and_column_only(level: str, dtype: str) -> None:
    x, y = normal(23, 40, dtype=dtype), normal(35, 40, dtype=dtype)
    x[3, 7], y[30, 39] = np.nan, np.nan
    expected = np.zeros((23, 35), bool)
    expected[3], expected[:, 30] = True, True
    with selected(level):
        assert np.array_equal(np.isnan(pairwise_l1(x, y)), expected)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_in_an_argument_gives_nan_in_the_gradients_that_it_touches(level, dtype) -> None:
    x, y = normal(23, 17, dtype=dtype), normal(35, 17, dtype=dtype)
    x[3, 7] = np.nan
    d_out = np.ones((23, 35), dtype)
    with selected(level):
        d_x, d_y = pairwise_l1_grad(x, y, d_out)
    assert np.argwhere(np.isnan(d_x)).tolist() == [[3, 7]]
    assert np.isnan(d_y[:, 7]).all()
    assert np.isnan(d_y).sum() == 35


# So many rows and columns that the gradients go by ranks, in two slices of the columns, on CPUs
# that have a kernel for it.
RANKED = (2530, 2701, 490)
LOOKED_AT = [0, 1, 15, 16, 31, 32, 100, 224, 255, 256, 288, 488, 489]  # columns
RANKING = [level for level in levels() if level in ("avx512", "amx")]


def check_ranked(x: np.ndarray, y: np.ndarray, d_out: np.ndarray) -> None:
    """All sums are exact: whole numbers as gradients."""
    d_x, d_y = pairwise_l1_grad(x, y, d_out)
    for k in LOOKED_AT:
        with np.errstate(invalid="ignore"):
            terms = np.sign(x[:, None, k] - y[None, :, k]) * d_out
        assert np.array_equal(d_x[:, k], terms.sum(1), equal_nan=True), f"d_x of column {k}"
        assert np.array_equal(d_y[:, k], -terms.sum(0), equal_nan=True), f"d_y of column {k}"


def ranked_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, m, d = RANKED
    return normal(n, d, dtype="float32"), normal(m, d, dtype="float32"), whole_numbers(n, m)


@pytest.mark.parametrize("level", RANKING)
def test_gradients_of_many_vectors_are_exact(level: str) -> None:
    x, y, d_out = ranked_inputs()
    with selected(level):
        check_ranked(x, y, d_out)
        check_ranked(y, x, d_out.T)
        check_ranked(x[:, ::-1], np.asfortranarray(y), whole_numbers(len(x), 2 * len(y))[:, ::2])
        check_ranked(x[:2528], y[:2529], d_out[:2528, :2529])


@pytest.mark.parametrize("level", RANKING)
def test_many_vectors_go_by_ranks(level: str) -> None:
    x, y, _ = ranked_inputs()
    d_out = normal(len(x), len(y), dtype="float32")
    with selected(level):
        found = pairwise_l1_grad(x, y, d_out)
        few = pairwise_l1_grad(x[:, :32], y[:, :32], d_out)  # too few columns to pay
    for mine, other in zip(found, few, strict=True):
        np.testing.assert_allclose(mine[:, :32], other, atol=2e-3)
        assert not np.array_equal(mine[:, :32], other), "summed in the same order"


@pytest.mark.parametrize("level", RANKING)
def test_equal_numbers_among_many_have_gradient_zero(level: str) -> None:
    x, y, d_out = ranked_inputs()
    y[5:12, 0] = x[7, 0]  # one with several
    x[3:9, 15], y[1:9, 15] = 2, 2  # several with several
    x[:, 16] = x[0, 16]  # all of one alike, none of the other
    x[4, 31], y[9, 31], x[40, 31], y[90, 31] = 0.0, -0.0, -0.0, 0.0
    x[-1, 250:], y[-1, 250:] = 1, 1
    with selected(level):
        check_ranked(x, y, d_out)
        x[:, 32], y[:, 32] = x[:, 32].round(), y[:, 32].round()  # too many to be mended one by one
        check_ranked(x, y, d_out)
        check_ranked(x.round(), y.round(), d_out)


@pytest.mark.parametrize("level", RANKING)
def test_extreme_numbers_among_many_have_their_gradient(level: str) -> None:
    x, y, d_out = ranked_inputs()
    largest, least = np.finfo("float32").max, np.float32(1e-45)
    x[:6, 0] = [largest, -largest, least, -least, 0, 1]
    y[:6, 0] = [-largest, largest, 0, least, 1, 2]
    with selected(level), np.errstate(over="ignore"):
        check_ranked(x, y, d_out)
        d_out[700, 801] = np.nan
        d_x, d_y = pairwise_l1_grad(x, y, d_out)
        assert np.argwhere(np.isnan(d_x).all(1)).tolist() == [[700]]
        assert np.argwhere(np.isnan(d_y).all(1)).tolist() == [[801]]
        assert np.isnan(d_x).sum() == np.isnan(d_y).sum() == x.shape[1]
        d_out[700, 801] = 0
        x[300, 100], y[17, 488], x[9, 489] = np.nan, np.inf, -np.inf
        x[5, 255], y[6, 255] = np.inf, np.inf
        check_ranked(x, y, d_out)


@pytest.mark.parametrize("level", RANKING)
def test_one_gradient_of_many_vectors_is_that_of_both(level: str) -> None:
    torch = pytest.importorskip("torch")
    x, y, d_out = (torch.from_numpy(array) for array in ranked_inputs())
    with selected(level):
        both = pairwise_l1_grad(x, y, d_out)
        for of_x in (True, False):
            one, other = x.clone().requires_grad_(of_x), y.clone().requires_grad_(not of_x)
            pairwise_l1(one, other).backward(d_out)
            found = one.grad if of_x else other.grad
            assert torch.equal(found, both.d_x if of_x else both.d_y)


@pytest.mark.parametrize("level", RANKING)
def test_gradients_of_many_vectors_are_the_same_for_any_number_of_threads(level: str) -> None:
    x, y, d_out = ranked_inputs()
    d_out = normal(*d_out.shape, dtype="float32")
    with selected(level):
        expected = pairwise_l1_grad(x, y, d_out)
        for threads in (1, 3):
            with num_threads(threads):
                for mine, other in zip(pairwise_l1_grad(x, y, d_out), expected, strict=True):
                    assert np.array_equal(mine, other), threads


@pytest.mark.parametrize("level", RANKING)
def test_gradients_of_batches_of_many_vectors_are_those_of_each(level: str) -> None:
    x, y, d_out = (np.stack([array, array[::-1]]) for array in ranked_inputs())
    x[1, 9, 9] = np.nan  # one of them by itself
    with selected(level):
        d_x, d_y = pairwise_l1_grad(x, y, d_out)
        for b in range(2):
            one = pairwise_l1_grad(x[b], y[b], d_out[b])
            assert np.array_equal(d_x[b], one.d_x, equal_nan=True)
            assert np.array_equal(d_y[b], one.d_y, equal_nan=True)


def test_infinity_is_infinitely_far() -> None:
    x = np.array([[np.inf, 0.0], [1.0, 2.0]])
    y = np.array([[0.0, 0.0], [-np.inf, 0.0], [np.inf, 0.0]])
    found = pairwise_l1(x, y)
    assert found[:, :2].tolist() == [[np.inf, np.inf], [3.0, np.inf]]
    assert np.isnan(found[0, 2]), "inf - inf is not a number"


# So many rows of so many numbers are summed up by way of the smaller of two numbers, where that
# loses nothing: Σ|x - y| = Σx + Σy - 2 Σmin(x, y). All cases below are beyond these sizes.
MANY = [(1, 130, 150, 40), (2, 129, 133, 300), (1, 200, 131, 24), (1, 128, 140, 256)]
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11}


def check_close(x: np.ndarray, y: np.ndarray, dtype: str) -> None:
    """Each distance by itself, however small it is beside the largest."""
    exact = pairwise_l1.reference(x.astype(np.longdouble), y.astype(np.longdouble))
    error = np.abs(pairwise_l1(x, y) - exact)
    # Sums of float16 are kept in float32: only their last rounding counts.
    terms = 1.01 if dtype == "float16" else 8 * np.sqrt(x.shape[-1]) + 8
    assert (error <= terms * UNIT[dtype] * exact).all(), (error / exact).max() / UNIT[dtype]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", MANY, ids=str)
def test_small_distances_of_large_numbers_keep_their_digits(level: str, dtype: str, size) -> None:
    b, n, m, d = size
    x, y = normal(b, n, d, dtype=dtype), normal(b, m, d, dtype=dtype)
    close = (x[:, :100] * (1 + RANDOM.random((b, 100, 1)) * 0.01)).astype(dtype)
    with selected(level):
        check_close(x, y, dtype)
        for sign in (1, -1):  # around an eighth of the sizes, with few pairs beyond it
            check_close(sign * (x + 3), sign * (y + 3), dtype)
            check_close(sign * (x + 3.6), sign * (y + 3.6), dtype)
        check_close(x + 100, y + 100, dtype)  # all pairs: nothing is left
        y[:, 7:107] = close
        check_close(x, y, dtype)  # some pairs
        check_close(x, np.abs(y), dtype)
        check_close(x, x, dtype)
    with selected(level):
        assert not pairwise_l1(x, x)[:, range(n), range(n)].any(), "not at distance 0 from itself"
        x[:, 0], y[:, -1] = 0, 0
        assert (pairwise_l1(x, y)[:, 0, -1] == 0).all()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_numbers_stay_with_their_pairs_among_many(level: str, dtype: str) -> None:
    x, y = normal(140, 40, dtype=dtype), normal(150, 40, dtype=dtype)
    largest = np.finfo(dtype).max
    x[3, 7], x[4, 1], x[5, 2], x[6], x[8] = np.nan, np.inf, -np.inf, largest, 1e-40
    y[30, 39], y[31, 1], y[32], y[33], y[34] = np.nan, np.inf, largest, -largest, 1e-40
    x[9, 3], y[35, 3], y[36, 4] = largest * 0.7, largest * 0.6, -largest * 0.4
    with np.errstate(over="ignore", invalid="ignore"):
        expected = pairwise_l1.reference(x, y)
    with selected(level):
        found = pairwise_l1(x, y)
    np.testing.assert_allclose(found, expected, rtol=2e-6 if dtype == "float32" else 1e-14)
    assert found[6, 32] == 0
    assert found[6, 33] == np.inf


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("p", [1, 2])
def test_results_written_past_the_caches_are_right(level: str, offset: int, p: int) -> None:
    x, y = normal(5800, 24, dtype="float32"), normal(5801, 24, dtype="float32")
    y[9::500] = x[:12] * np.float32(1.01)  # summed up by themselves
    memory = np.empty(5800 * 5824 + 16, np.float32)  # more than 128 MB
    out = memory[offset : offset + 5800 * 5824].reshape(5800, 5824)[:, :5801]
    with selected(level):
        pairwise_lp(x, y, p=p, out=out)
    for i in [*range(0, 5800, 97), *range(12), 5799]:
        exact = np.linalg.norm(x[i].astype(np.float64) - y, p, axis=-1)
        np.testing.assert_allclose(out[i], exact, rtol=2e-6)


@pytest.mark.parametrize("level", levels())
def test_places_in_memory_and_the_order_of_arguments_change_nothing(level: str) -> None:
    x, y = normal(2, 150, 300, dtype="float32"), normal(2, 170, 300, dtype="float32")
    with selected(level):
        expected = pairwise_l1(x, y)
        assert np.array_equal(pairwise_l1(y, x), expected.swapaxes(1, 2))
        turned = np.asfortranarray(x), np.repeat(y, 2, -1)[..., ::2]
        assert np.array_equal(pairwise_l1(*turned), expected)
        back = x[..., ::-1].copy()[..., ::-1], y[:, ::-1].copy()[:, ::-1]
        assert np.array_equal(pairwise_l1(*back), expected)
        one = np.broadcast_to(x[:1], x.shape)
        assert np.array_equal(pairwise_l1(one, y), pairwise_l1(one.copy(), y))
        same = np.broadcast_to(x[..., :1], (2, 150, 43))  # no step along the last axis
        assert np.array_equal(pairwise_l1(same, y[..., :43]), pairwise_l1(same.copy(), y[..., :43]))
        out = np.empty((2, 170, 150), np.float32).swapaxes(1, 2)
        assert np.array_equal(pairwise_l1(x, y, out=out), expected)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_any_number_of_threads_gives_the_same_bits_of_many_rows(level: str, dtype: str) -> None:
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    x, y = normal(2, 300, 70).astype(kind), normal(2, 333, 70).astype(kind)
    y[:, ::9] = x[:, :37] * kind(1.01) if dtype == "bfloat16" else x[:, :37] * np.float16(1.01)
    with selected(level):
        with num_threads(1):
            expected = pairwise_l1(x, y)
        for threads in (2, 3, 5):
            with num_threads(threads):
                assert np.array_equal(pairwise_l1(x, y), expected), threads
    if dtype == "bfloat16":
        exact = pairwise_l1.reference(x.astype(np.float64), y.astype(np.float64))
        np.testing.assert_allclose(expected.astype(np.float64), exact, rtol=2.0**-8 * 1.01)


@pytest.mark.parametrize("level", [level for level in levels() if level != "portable"])
def test_long_sums_of_like_numbers_do_not_drift(level: str) -> None:
    d = 160_000
    x, y = np.full((128, d), 0.1, np.float32), np.full((128, d), 9 / 64, np.float32)
    exact = d * (9 / 64 - x[0, 0].astype(np.float64))
    with selected(level):
        np.testing.assert_allclose(pairwise_l1(x, y), exact, rtol=1e-4)


@pytest.mark.parametrize(("n", "m", "d"), [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)])
def test_empty_axis_gives_empty_or_zero_result(n: int, m: int, d: int) -> None:
    found = pairwise_l1(np.ones((n, d)), np.ones((m, d)))
    assert found.shape == (n, m)
    assert not found.any()
    d_x, d_y = pairwise_l1_grad(np.ones((n, d)), np.ones((m, d)), np.ones((n, m)))
    assert d_x.shape == (n, d)
    assert d_y.shape == (m, d)
    assert not d_x.any()
    assert not d_y.any()


def test_torch_gradient_of_broadcast_batches_is_the_sum_over_items() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(normal(1, 4, 3)).requires_grad_()
    y = torch.from_numpy(normal(2, 5, 6, 3)).requires_grad_()
    d_out = torch.from_numpy(normal(2, 5, 4, 6))
    found = torch.autograd.grad(pairwise_l1(x, y), (x, y), d_out)
    expected = torch.autograd.grad(pairwise_l1(x.expand(2, 5, 4, 3).contiguous(), y), (x, y), d_out)
    assert [g.shape for g in found] == [x.shape, y.shape]
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_half_precision_is_rounded_once_at_the_end(dtype: str, unit: float) -> None:
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else np.float16
    x, y = normal(20, 500).astype(kind), normal(30, 500).astype(kind)
    exact = pairwise_l1.reference(x.astype(np.float64), y.astype(np.float64))
    error = np.abs(pairwise_l1(x, y).astype(np.float64) - exact)
    assert (error <= unit * exact * (1 + 1e-3)).all(), "sums were not kept in float32"


@pytest.mark.slow
def test_sum_of_more_than_two_billion_numbers_in_two() -> None:
    n = (1 << 31) + 7
    x, y = np.broadcast_to(np.float64(1), (1, n)), np.broadcast_to(np.float64(0), (1, n))
    assert pairwise_l1(x, y) == n


def test_steps_of_more_than_two_billion_elements() -> None:
    step = (1 << 31) + 3
    memory = np.zeros(step + 1, np.float16)  # pages that nobody touches take no memory
    far = memory[::step]
    far[...] = [1, 4]
    zero = np.zeros((1, 1), np.float16)
    assert pairwise_l1(far[:, None], zero).tolist() == [[1], [4]]
    assert pairwise_l1(far[None], zero[:, [0, 0]]).tolist() == [[5]]
    assert pairwise_l1(far[:, None, None], zero).tolist() == [[[1]], [[4]]]
    assert pairwise_l1_grad(far[:, None], zero, np.ones((2, 1), np.float16)).d_y.tolist() == [[-2]]


@pytest.mark.slow
def test_more_than_two_billion_results() -> None:
    n, m = 46342, 46343  # n · m > 2^31
    x = (np.arange(n) % 100).astype(np.float16)[:, None]
    y = (np.arange(m) % 90).astype(np.float16)[:, None]
    found = pairwise_l1(x, y)
    assert found.size > 1 << 31
    for i in (0, 1, n // 2, n - 1):
        assert np.array_equal(found[i], np.abs(x[i, 0] - y[:, 0])), i
    assert np.array_equal(found[:, -1], np.abs(x[:, 0] - y[-1, 0]))


# In a process of its own, since a maximum over the life of a process cannot be reset.
PEAK = """
import numpy as np, sys
from nativeops.ops.pairwise_l1 import pairwise_l1, pairwise_l1_grad
from nativeops.bench.memory import peak
x = np.random.default_rng(0).standard_normal((4000, 256)).astype(sys.argv[1])
y = x[:3500] + x.dtype.type(0.3)
pairwise_l1(x[:9], y[:9])
pairwise_l1_grad(x[:9], y[:9], np.ones((9, 9), x.dtype))
before = peak()
out = pairwise_l1(x, y)
middle = peak()
d_x, d_y = pairwise_l1_grad(x, y, out)
print(middle - before - out.nbytes, peak() - max(middle, before) - d_x.nbytes - d_y.nbytes)
"""


@without_sanitizer
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_workspace_memory_stays_below_what_is_stated(dtype: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, dtype], capture_output=True, text=True, check=True
    )
    for extra in map(int, done.stdout.split()):
        assert extra <= 32 << 20, f"{extra >> 20} MB beyond the results"


def test_concurrent_calls_from_many_threads_are_right() -> None:
    arguments = [(whole_numbers(50 + i, 33), whole_numbers(70, 33)) for i in range(8)]
    expected = [pairwise_l1.reference(x, y) for x, y in arguments]

    def work(i: int) -> bool:
        return all(np.array_equal(pairwise_l1(*arguments[i]), expected[i]) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def child(x: np.ndarray, y: np.ndarray, expected: np.ndarray) -> None:
    sys.exit(0 if np.array_equal(pairwise_l1(x, y), expected) else 1)


def test_forked_child_computes_too() -> None:
    x, y = whole_numbers(300, 40), whole_numbers(200, 40)
    expected = pairwise_l1(x, y)
    process = multiprocessing.get_context("fork").Process(target=child, args=(x, y, expected))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads in general
        process.start()
    process.join(60)
    hangs = process.is_alive()
    process.kill()
    assert not hangs, "the child hangs"
    assert process.exitcode == 0
