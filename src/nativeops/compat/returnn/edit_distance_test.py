# SPDX-License-Identifier: Apache-2.0
"""RETURNN's names of edit distances: arguments in their order, results of their ops."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from nativeops import edit_distance as own_edit_distance  # noqa: E402
from nativeops.compat import returnn  # noqa: E402
from nativeops.errors import ArgumentError, DtypeError, RangeError, ShapeError  # noqa: E402


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    a = torch.from_numpy(random.integers(0, 5, (9, 11)).astype(np.int32))
    b = torch.from_numpy(random.integers(0, 5, (9, 8)).astype(np.int32))
    a_len = torch.from_numpy(random.integers(0, 12, 9))  # int64, as PyTorch makes them
    b_len = torch.from_numpy(random.integers(0, 9, 9))
    return a, a_len, b, b_len


def test_distances_are_those_of_our_ops(batch) -> None:
    a, a_len, b, b_len = batch
    expected = own_edit_distance(a, b, a_len.int(), b_len.int())
    found = returnn.edit_distance(a, a_len, b, b_len)
    assert found.dtype == torch.int32
    assert torch.equal(found, expected)
    assert torch.equal(returnn.edit_distance_via_next_edit_distance_row(*batch), expected)


def test_optimal_completion_is_the_same_step_by_step(batch) -> None:
    least = returnn.optimal_completion_edit_distance(*batch)
    rows = returnn.edit_distance_via_next_edit_distance_row(*batch, optimal_completion=True)
    assert torch.equal(least, rows)
    each = returnn.optimal_completion_edit_distance_per_successor(*batch, 6)
    steps = returnn.optimal_completion_edit_distance_per_successor_via_next_edit_distance(*batch, 6)
    assert each.shape == (9, 6)
    assert torch.equal(each, steps)
    for count in (np.int64(6), np.int32(6)):
        found = returnn.optimal_completion_edit_distance_per_successor(*batch, count)
        assert torch.equal(found, each)
    chosen = torch.tensor([5, 0])
    some = returnn.optimal_completion_edit_distance_per_successor(*batch, chosen)
    assert torch.equal(some, each[:, chosen])


def test_full_rows_hold_the_distance_beyond_the_length(batch) -> None:
    b_len = batch[-1]
    rows = returnn.edit_distance_via_next_edit_distance_row(*batch, full_row_output=True)
    assert rows.shape == (9, 9)
    assert torch.equal(rows[:, -1], returnn.edit_distance(*batch))
    assert torch.equal(rows.gather(1, b_len[:, None])[:, 0], rows[:, -1])


def test_blank_candidates_leave_the_row(batch) -> None:
    a, a_len, b, b_len = batch
    rows = returnn.edit_distance_via_next_edit_distance_row(*batch, full_row_output=True)
    going = torch.zeros_like(a_len)
    candidates = torch.arange(5, dtype=torch.int32)[None]
    found = returnn.next_edit_distance_reduce(rows, candidates, a_len, going, b, b_len, False, 3)
    assert torch.equal(found[:, 3], rows[:, -1])
    without = returnn.next_edit_distance_reduce(rows, candidates, a_len, going, b, b_len)
    row = returnn.next_edit_distance_row(rows, a[:, 0] * 0 + 3, a_len, going, b, b_len)
    assert torch.equal(without[:, 3], row[:, -1])


def test_labels_and_lengths_beyond_32_bits_do_not_wrap() -> None:
    one = torch.tensor([[5, 6]], dtype=torch.int32)
    other, two = torch.tensor([[5 + 2**32, 6]]), torch.tensor([2])
    assert returnn.edit_distance(one, two, other, two).tolist() == [1]
    assert returnn.edit_distance(other, two, one, two).tolist() == [1]
    found = returnn.optimal_completion_edit_distance_per_successor(
        one, two, one, two, torch.tensor([5, 5 + 2**32])
    )
    assert found.tolist() == [[1, 1]]
    with pytest.raises(RangeError, match="a_len"):
        returnn.edit_distance(one, two + 2**32, one, two)


def test_what_is_no_integer_or_no_length_is_refused() -> None:
    one, two = torch.tensor([[5, 6]], dtype=torch.int32), torch.tensor([2])
    by_rows = returnn.edit_distance_via_next_edit_distance_row
    for given in ((one.float(), two, one, two), (one, two + 0.9, one, two),
                  (one, two, one, two + 0.9)):  # fmt: skip
        for call in (returnn.edit_distance, by_rows):
            with pytest.raises(
                DtypeError,
                match=r"^edit_distance: labels and lengths must be integers, not float32",
            ):
                call(*given)
    assert torch.vmap(by_rows)(one[None], two[None], one[None], two[None]).tolist() == [[0]]
    each = returnn.optimal_completion_edit_distance_per_successor_via_next_edit_distance
    wrong = {(99, 2): r"`a_len\[0\]` is 99, but must be from 0 to 2", (0, -9): "b_len"}
    for lengths, text in wrong.items():
        a_len, b_len = (torch.tensor([n]) for n in lengths)
        for call in (by_rows, lambda *given: each(*given, 3)):
            with pytest.raises(RangeError, match=text):
                call(one, a_len, one, b_len)


def test_what_is_empty_is_not_left_away(batch) -> None:
    a, a_len, b, b_len = batch
    nothing = torch.zeros(0).long()
    by_rows = returnn.edit_distance_via_next_edit_distance_row
    for call in (
        returnn.edit_distance, by_rows, returnn.optimal_completion_edit_distance,
        lambda *given: returnn.optimal_completion_edit_distance_per_successor(*given, 6),
    ):  # fmt: skip
        for name, given in {
            "a_len": (a, nothing, b, b_len),
            "b_len": (a, a_len, b, nothing),
        }.items():
            with pytest.raises(ShapeError, match=rf"axis `batch` is 9 in `\w+` but 0 in `{name}`"):
                call(*given)


def test_what_is_no_tensor_is_refused(batch) -> None:
    a, a_len, b, b_len = batch
    with pytest.raises(ArgumentError, match=r"`a_len` must be an array \[batch\], but is list"):
        returnn.edit_distance(a, a_len.tolist(), b, b_len)
    with pytest.raises(ArgumentError, match="labels and lengths must be tensors, not list"):
        returnn.next_edit_distance_row([[0]], a[:, 0], a_len, a_len, b, b_len)


@pytest.mark.parametrize("via", ["", "_via_next_edit_distance"])
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (-1, "`successors` is -1, but must be at least 0"),
        (True, "`successors` must be a tensor, but is bool"),
        (3.0, "`successors` must be a tensor, but is float"),
        ([1, 2], "`successors` must be a tensor, but is list"),
    ],
)
def test_successors_that_are_no_labels_are_refused(batch, wrong, text: str, via: str) -> None:
    name = f"optimal_completion_edit_distance_per_successor{via}"
    with pytest.raises((ArgumentError, RangeError), match=f"^{name}: {text}"):
        getattr(returnn, name)(*batch, wrong)


@pytest.mark.parametrize("wrong", [1.5, "x", float("nan")])
def test_a_blank_that_is_no_integer_is_refused(wrong: object) -> None:
    row, zero = torch.arange(4)[None], torch.tensor([0])
    b, candidates = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2]])
    with pytest.raises(DtypeError, match="`a_blank_idx` must be an integer"):
        returnn.next_edit_distance_reduce(
            row, candidates, zero, zero, b, zero + 3, a_blank_idx=wrong
        )  # fmt: skip
