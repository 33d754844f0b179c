# SPDX-License-Identifier: Apache-2.0
"""The small sparse ops: what is true beyond agreeing with their references."""

from typing import Any

import numpy as np
import pytest

from nativeops import (
    cross_entropy_softmax_and_gradient_sparse,
    get_num_threads,
    max_and_argmax_sparse,
    set_num_threads,
    sparse_to_dense,
    subtensor_batched_index,
)
from nativeops.errors import NativeOpsError
from nativeops.ops.sparse import sparse_to_dense_grad, subtensor_batched_index_grad
from nativeops.testing.aspects import levels, selected

RANDOM = np.random.default_rng(11)


def entries(t: int, b: int, d: int, n: int) -> tuple[Any, ...]:
    """Times, labels, weights and mask; many entries at one place."""
    places = (RANDOM.integers(0, t, (n, b)), RANDOM.integers(0, d, (n, b)))
    return (*places, RANDOM.standard_normal((n, b)), RANDOM.random((n, b)) < 0.8)


@pytest.mark.parametrize("level", levels())
def test_dense_array_is_scipys(level: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    t, b, d, n = 7, 3, 9, 200
    time, label, weight, mask = entries(t, b, d, n)
    initial = RANDOM.standard_normal((t, b, d))
    with selected(level):
        found = sparse_to_dense(initial, time, label, weight, mask)
    for i in range(b):
        on = mask[:, i]
        one = sparse.coo_array((weight[on, i], (time[on, i], label[on, i])), shape=(t, d))
        np.testing.assert_allclose(found[:, i], initial[:, i] + one.toarray(), atol=1e-12)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_entries_are_added_in_the_order_of_the_portable_kernel(
    level: str, dtype: str, index: str
) -> None:
    """To the same bits, whatever the steps of the arrays and however many sequences there are."""
    for t, b, d, n in ((1, 1, 1, 900), (7, 3, 9, 200), (50, 90, 2, 70), (3, 1, 400, 5)):
        time, label, weight, mask = entries(t, b, d, n)
        initial = np.asfortranarray(RANDOM.standard_normal((t, b, d)).astype(dtype))
        given = initial, *(a.astype(index)[::-1] for a in (time, label)), weight.astype(dtype)
        picked = RANDOM.integers(0, d, (t, b)).astype(index)
        found = []
        for each in (level, "portable"):
            with selected(each):
                made = [sparse_to_dense(*given), sparse_to_dense(*given, mask)]
                made += [sparse_to_dense(initial.copy(), *given[1:], mask.T.copy().T)]
                made += [subtensor_batched_index(a, picked) for a in (initial, initial.copy("C"))]
                made += [subtensor_batched_index_grad(initial, picked, initial[..., 0])]
                for entry_mask in (None, mask):
                    frames = initial[..., 0], picked
                    made += max_and_argmax_sparse(*given[1:], *frames, entry_mask)
                found.append([a.tobytes() for a in made])
        assert found[0] == found[1]


@pytest.mark.parametrize("level", levels())
def test_entry_that_is_refused_leaves_the_initial_array_as_it_was(level: str) -> None:
    initial, zero = np.ones((2, 2, 3), np.float32), np.zeros((2, 2), int)
    with selected(level):
        for wrong in (-1, 2, 2**40):
            time = np.array([[0, 0], [0, wrong]])
            with pytest.raises(NativeOpsError, match=rf"`time\[1, 1\]` is {wrong}, but"):
                sparse_to_dense.into(initial)(initial, time, zero, np.ones((2, 2), np.float32))
    assert (initial == 1).all()


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("shape", [(70_000, 1), (1, 70_000), (300, 300)])
def test_place_that_is_none_is_found_anywhere(level: str, shape: tuple[int, int]) -> None:
    n, b = shape
    state = np.zeros((2, b), np.float32), np.zeros((2, b), np.int32)
    for turned in (False, True):
        for place in (0, n * b // 2, n * b - 1):
            time = np.zeros((b, n), np.int32).T if turned else np.zeros((n, b), np.int32)
            i, j = divmod(place, b)
            time[i, j] = 2
            given = time, np.zeros((n, b), np.int32), np.ones((n, b), np.float32), *state
            mask = np.ones((n, b), bool)
            with selected(level):
                with pytest.raises(NativeOpsError, match=rf"`time\[{i}, {j}\]` is 2, but"):
                    max_and_argmax_sparse(*given)
                mask[i, j] = False
                assert max_and_argmax_sparse(*given, mask).largest.sum() == b - (n == 1)


def test_torch_gradients_are_those_of_its_own_ops() -> None:
    torch = pytest.importorskip("torch")
    t, b, d, n = 5, 3, 4, 60
    time, label, weight, _ = (torch.from_numpy(a) for a in entries(t, b, d, n))
    initial = torch.randn(t, b, d, dtype=torch.float64, requires_grad=True)
    weight.requires_grad_()
    theirs = initial.index_put((time, torch.arange(b).expand(n, b), label), weight, accumulate=True)
    ours = sparse_to_dense(initial, time, label, weight)
    torch.testing.assert_close(ours, theirs)
    d_out = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad(ours, (initial, weight), d_out),
        torch.autograd.grad(theirs, (initial, weight), d_out),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
    index = torch.randint(0, d, (t, b))
    picked, gathered = (
        subtensor_batched_index(initial, index),
        initial.gather(2, index[..., None])[..., 0],
    )
    assert torch.equal(picked, gathered)
    d_picked = torch.randn_like(picked)
    assert torch.equal(*(torch.autograd.grad(y, initial, d_picked)[0] for y in (picked, gathered)))


def test_first_of_equal_weights_wins_and_nan_beats_all() -> None:
    time = np.array([[0], [0], [1], [1], [2], [2]])
    label = np.arange(6)[:, None]
    weight = np.array([[3.0], [3.0], [-5.0], [-1.0], [np.nan], [9.0]])
    start = np.full((4, 1), -np.inf), np.full((4, 1), -1)
    found = max_and_argmax_sparse(time, label, weight, *start)
    np.testing.assert_array_equal(found.largest.ravel(), [3, -1, np.nan, -np.inf])
    assert found.argmax.ravel().tolist() == [0, 3, 4, -1]
    again = max_and_argmax_sparse(time, label + 10, weight, *found)
    assert again.argmax.ravel().tolist() == [0, 3, 4, -1], "equal weights came later"


def test_masked_entries_may_be_anywhere() -> None:
    out_of_range, label = np.array([[7], [0]]), np.array([[-3], [1]])
    mask = np.array([[False], [True]])
    found = sparse_to_dense(np.zeros((2, 1, 2)), out_of_range, label, np.ones((2, 1)), mask)
    assert found.tolist() == [[[0, 1]], [[0, 0]]]


FRAMEWORKS = ["numpy", "torch", "jax", "tensorflow"]


def maker(framework: str) -> Any:
    """From an array of NumPy to one of a framework."""
    module = pytest.importorskip(framework)
    make = {"torch": "from_numpy", "tensorflow": "constant"}.get(framework, "asarray")
    return getattr(module.numpy if framework == "jax" else module, make)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("wrong", "bound"), [("time", "2, the last frame"), ("label", "3, the last label")]
)
def test_entry_out_of_range_is_refused_everywhere(framework: str, wrong: str, bound: str) -> None:
    array = maker(framework)
    places = {name: np.zeros((1, 2), np.int32) for name in ("time", "label")}
    places[wrong][0, 1] = 9
    given = [array(a) for a in (np.zeros((3, 2, 4)), *places.values(), np.zeros((1, 2)))]
    with pytest.raises(NativeOpsError) as caught:
        sparse_to_dense(*given)
    text = f"sparse_to_dense: `{wrong}[0, 1]` is 9, but must be from 0 to {bound}."
    assert str(caught.value) == text


@pytest.mark.parametrize("level", levels())
def test_no_entry_fits_where_there_are_no_labels(level: str) -> None:
    z, one, weight = np.zeros((2, 3, 0)), np.zeros((1, 3), np.int32), np.ones((1, 3))
    calls = (
        lambda *entry: sparse_to_dense_grad(z, *entry[:2], entry[3]),
        lambda *entry: cross_entropy_softmax_and_gradient_sparse(z, *entry),
    )
    with selected(level):
        for call in calls:
            with pytest.raises(NativeOpsError, match=r"`label\[0, 0\]` is 0, but there is none"):
                call(one, one, weight, None)
            call(one, one, weight, np.zeros((1, 3), bool))
            call(one[:0], one[:0], weight[:0], None)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_index_out_of_range_is_refused_everywhere(framework: str) -> None:
    array, index = maker(framework), np.zeros((3, 2), np.int32)
    index[2, 1] = 4
    x, picked = array(np.zeros((3, 2, 4), np.float32)), array(index)
    with pytest.raises(NativeOpsError) as caught:
        subtensor_batched_index(x, picked)
    text = "subtensor_batched_index: `index[2, 1]` is 4, but must be from 0 to 3, "
    assert str(caught.value) == text + "the last number of a vector of `x`."


def test_sums_of_many_duplicates_have_the_same_bits_for_any_number_of_threads() -> None:
    t, b, d, n = 30, 5, 20, 5000
    time, label, weight, mask = entries(t, b, d, n)
    made, before = [], get_num_threads()
    try:
        for threads in (1, 2, 3):
            set_num_threads(threads)
            dense = sparse_to_dense(
                np.zeros((t, b, d), np.float32), time, label, weight.astype(np.float32), mask
            )
            made.append(dense.tobytes())
    finally:
        set_num_threads(before)
    assert made[0] == made[1] == made[2]


def test_dense_array_may_take_over_the_memory_of_the_initial_one() -> None:
    initial = np.ones((4, 2, 3))
    time, label, weight, mask = entries(4, 2, 3, 9)
    expected = sparse_to_dense(initial.copy(), time, label, weight, mask)
    found = sparse_to_dense.into(initial)(initial, time, label, weight, mask)
    assert found is initial
    assert np.array_equal(initial, expected)
