# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays of all kinds, and `out=`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nativeops import lstm_layer, pairwise_l1, pairwise_lp
from nativeops.errors import AllocationError, ArgumentError, DtypeError, RangeError, ShapeError
from nativeops.frameworks import numpy as numpy_adapter
from nativeops.library import DTYPES, extension
from nativeops.ops.pairwise_l1 import pairwise_l1_grad

RANDOM = np.random.default_rng(3)
X, Y = RANDOM.standard_normal((5, 3)), RANDOM.standard_normal((4, 3))
EXPECTED = pairwise_l1.reference(X, Y)


def agrees(found: np.ndarray) -> bool:
    return np.allclose(found, EXPECTED, rtol=1e-14)


def test_read_only_arrays_are_read() -> None:
    x = X.copy()
    x.flags.writeable = False
    assert agrees(pairwise_l1(x, Y))


@pytest.mark.parametrize("offset", [1, 2, 4, 7])
def test_unaligned_arrays_are_read(offset: int) -> None:
    memory = np.zeros(X.nbytes + offset, np.uint8)
    x = memory[offset:].view(np.float64).reshape(X.shape)
    x[...] = X
    assert not x.flags.aligned
    assert agrees(pairwise_l1(x, Y))


def test_fields_of_packed_records_are_read() -> None:
    records = np.zeros(X.shape, np.dtype([("flag", "u1"), ("value", "f8")]))
    records["value"] = X
    assert agrees(pairwise_l1(records["value"], Y))


def test_fields_of_aligned_records_are_read() -> None:
    records = np.zeros(X.shape, np.dtype([("other", "f4"), ("value", "f8")], align=True))
    records["value"] = X
    assert agrees(pairwise_l1(records["value"], Y))


def test_parts_of_complex_numbers_are_read() -> None:
    assert agrees(pairwise_l1((X + 1j).real, Y))


def test_memory_maps_are_read_and_give_plain_arrays(tmp_path) -> None:
    x = np.memmap(tmp_path / "x", np.float64, "w+", shape=X.shape)
    x[...] = X
    found = pairwise_l1(x, Y)
    assert type(found) is np.ndarray
    assert agrees(found)
    assert agrees(pairwise_l1(np.memmap(tmp_path / "x", np.float64, "r", shape=X.shape), Y))


def test_masked_elements_are_refused() -> None:
    x = np.ma.masked_array(np.ones((5, 3)), mask=False)
    assert np.array_equal(pairwise_l1(x, x), np.zeros((5, 5)))
    x[1, 2] = x[3, 0] = np.ma.masked
    with pytest.raises(ArgumentError, match="`y` must have no masked elements, but has 2") as error:
        pairwise_l1(np.ones((4, 3)), x)
    assert "`y.filled(0)`" in str(error.value)
    assert np.array_equal(pairwise_l1(x.filled(1), x.data), np.zeros((5, 5)))


def test_subclasses_are_read_and_give_plain_arrays() -> None:
    class Marked(np.ndarray):
        pass

    found = pairwise_l1(X.view(Marked), Y.view(Marked))
    assert type(found) is np.ndarray
    assert agrees(found)


def test_fortran_order_is_read_and_results_are_in_c_order() -> None:
    found = pairwise_l1(np.asfortranarray(X), np.asfortranarray(Y))
    assert found.flags.c_contiguous
    assert agrees(found)


def test_results_own_their_memory_and_are_writable() -> None:
    found = pairwise_l1(X, Y)
    assert found.flags.owndata
    assert found.flags.writeable


def test_scalars_and_arrays_without_axes_are_refused_as_arrays_of_too_few_axes() -> None:
    with pytest.raises(ShapeError, match="but has 0 axes"):
        pairwise_l1(np.array(1.0), Y)
    with pytest.raises(ArgumentError, match="must be an array, but is float64"):
        pairwise_l1(np.float64(1.0), Y)


@pytest.mark.parametrize("dtype", [">f8", ">f4"])
def test_swapped_bytes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(DtypeError, match=r"`x` must be .* but is byte-swapped"):
        pairwise_l1(X.astype(dtype), Y)


@pytest.mark.parametrize("dtype", ["complex128", "int8", "longdouble", "S3", "datetime64[s]", "O"])
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(DtypeError, match="`x` must be"):
        pairwise_l1(np.zeros((2, 3), dtype), Y)


def test_platform_spellings_of_a_dtype_are_one() -> None:
    assert pairwise_l1(X.astype(np.double), Y.astype("d")).dtype == np.float64
    assert pairwise_l1(X.astype(np.single), Y.astype("=f4")).dtype == np.float32


def test_bfloat16_of_ml_dtypes_gives_bfloat16() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    found = pairwise_l1(X.astype(bfloat16), Y[::-1].astype(bfloat16)[::-1])
    assert found.dtype == bfloat16
    assert np.allclose(found.astype(np.float64), EXPECTED, rtol=0.05)
    out = np.empty((5, 4), bfloat16)
    assert pairwise_l1(X.astype(bfloat16), Y.astype(bfloat16), out=out) is out
    assert np.array_equal(out, found)


def test_sixteen_axes_are_taken_and_more_are_refused_in_words() -> None:
    deep = X.reshape(*[1] * 14, 5, 3)
    assert agrees(pairwise_l1(deep, Y)[(0,) * 14])
    with pytest.raises(ShapeError, match="`x` must have at most 16 axes, but has 17"):
        pairwise_l1(X.reshape(*[1] * 15, 5, 3), Y)


def test_given_array_is_filled_and_returned() -> None:
    out = np.full((5, 4), 7.0)
    assert pairwise_l1(X, Y, out=out) is out
    assert agrees(out)
    again = np.empty_like(out)
    assert pairwise_l1.into(again)(X, y=Y) is again
    assert agrees(again)


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ops that the extension did not serve by itself."""
    calls: list[str] = []

    def count(op: Any, args: Any, kwargs: Any) -> Any:
        calls.append(op.name)
        return numpy_adapter.call(op, args, kwargs)

    dtypes = tuple(numpy_adapter._OWN.get(d) for d in DTYPES)
    extension().connect_numpy(np.ndarray, np.empty, dtypes, count)
    yield calls
    extension().connect_numpy(np.ndarray, np.empty, dtypes, numpy_adapter.call)


def test_given_arrays_that_fit_cost_no_more_than_new_ones(slow_calls: list[str]) -> None:
    pairwise_l1(X, Y)  # which defines the op
    slow_calls.clear()
    for out in (np.empty((5, 4)), np.empty((4, 5)).T, np.empty((10, 12))[::2, ::-3]):
        assert pairwise_l1(X, Y, out=out) is out
        assert agrees(out)
    assert agrees(pairwise_l1(X, Y, out=None))
    assert slow_calls == []
    overlapping = np.zeros((6, 4))
    x = overlapping[:5, :3]
    assert pairwise_l1(x, Y, out=overlapping[1:]) is not None
    assert slow_calls == ["pairwise_l1"]


def test_arrays_with_names_cost_no_more_than_in_their_places(slow_calls: list[str]) -> None:
    pairwise_l1(X, Y)  # which defines the op
    slow_calls.clear()
    for found in (pairwise_l1(X, y=Y), pairwise_l1(x=X, y=Y), pairwise_l1(y=Y, x=X)):
        assert agrees(found)
    assert slow_calls == []


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((X,), {"x": X, "y": Y}, "multiple values for argument 'x'"),
        ((), {"x": X}, "missing a required argument: 'y'"),
        ((X,), {"y": None}, "`y` must be an array, but is NoneType"),
        ((X, Y), {"z": Y}, "unexpected keyword argument 'z'"),
    ],
)
def test_arrays_with_names_that_do_not_fit_are_explained(args, kwargs, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        pairwise_l1(*args, **kwargs)


def test_some_of_several_results_are_given(slow_calls: list[str]) -> None:
    expected = pairwise_l1_grad(X, Y, EXPECTED)
    slow_calls.clear()
    d_x, d_y = np.empty_like(X), np.empty_like(Y)
    for out in ((d_x, d_y), (d_x, None), (None, d_y), (None, None)):
        made = pairwise_l1_grad(X, Y, EXPECTED, out=out)
        for one, given, right in zip(made, out, expected, strict=True):
            assert given is None or one is given
            assert np.array_equal(one, right)
    made = pairwise_l1_grad(X, Y, EXPECTED, out=(None, d_y), want=("d_y",))
    assert made.d_x is None
    assert made.d_y is d_y
    assert slow_calls == []


def test_results_in_the_same_memory_are_refused() -> None:
    d_x = np.empty((5, 3))
    with pytest.raises(ArgumentError, match="share memory"):
        pairwise_l1_grad(X, Y, EXPECTED, out=(d_x, d_x[:4]))


def test_results_may_be_columns_of_one_buffer() -> None:
    d_out = RANDOM.standard_normal((5, 5))
    expected, buffer = pairwise_l1_grad(X, X, d_out), np.empty((5, 6))
    for columns in ((buffer[:, :3], buffer[:, 3:]), (buffer[:, ::2], buffer[:, 1::2])):
        pairwise_l1_grad(X, X, d_out, out=columns)
        assert np.array_equal(np.stack(columns), np.stack(expected))
    for columns in ((buffer[:, :3], buffer[:, 2:5]), (buffer[:, ::2], buffer[:, :3])):
        with pytest.raises(ArgumentError, match=r"`out\[0\]` and `out\[1\]` share memory"):
            pairwise_l1_grad(X, X, d_out, out=columns)


def test_results_of_which_nobody_can_tell_whether_they_share_memory_are_refused() -> None:
    # To tell it is to find, in two lists of numbers, some of one and of the other of equal sums.
    random, memory, outs = np.random.default_rng(0), np.zeros(1 << 18), []
    for start in (0, 1):
        steps: list[int] = []  # each beyond the sum of all others
        for _ in range(16):
            steps.insert(0, sum(steps) + 1 + int(random.integers(2)))
        shape, strides = (2,) * len(steps), [memory.itemsize * step for step in steps]
        outs.append(np.ndarray(shape, memory.dtype, memory, start * memory.itemsize, strides))
    x = np.zeros(shape)
    with pytest.raises(ArgumentError, match=r"`out\[0\]` and `out\[1\]` may share memory"):
        pairwise_l1_grad(x, x, x, out=tuple(outs))


def test_array_for_a_result_that_is_not_wanted_is_not_looked_at() -> None:
    expected = pairwise_l1_grad(X, Y, EXPECTED).d_x
    for unwanted in (np.zeros((5, 3)), "abc", Y):
        made = pairwise_l1_grad(X, Y, EXPECTED, want=("d_x",), out=(None, unwanted))
        assert np.array_equal(made.d_x, expected)
        assert made.d_y is None


def test_given_array_with_masked_elements_is_refused() -> None:
    out = np.ma.masked_array(np.zeros((5, 4)), mask=False)
    assert pairwise_l1(X, Y, out=out) is out
    assert agrees(out.data)
    out[1, 2] = np.ma.masked
    with pytest.raises(
        ArgumentError, match="`out` must have no masked elements, but has 1"
    ) as error:
        pairwise_l1(X, Y, out=out)
    assert "`out.data`" in str(error.value)
    assert pairwise_l1(X, Y, out=out.data) is not None
    assert agrees(out.data)


def test_given_subclass_is_filled_past_its_own_assignment() -> None:
    class Doubling(np.ndarray):
        def __setitem__(self, place, value):
            super().__setitem__(place, 2 * value)

    memory = np.zeros((6, 4))
    x, out = memory[:5, :3], memory[1:].view(Doubling)
    x[...] = X
    assert pairwise_l1(x, Y, out=out) is out
    assert agrees(np.asarray(out))


def test_given_array_may_have_any_strides() -> None:
    for out in (np.empty((4, 5)).T, np.empty((10, 12))[::2, ::-3], np.empty((5, 4), order="F")):
        assert pairwise_l1(X, Y, out=out) is out
        assert agrees(out)


def test_given_array_that_is_not_aligned_is_filled() -> None:
    out = np.zeros(EXPECTED.nbytes + 3, np.uint8)[3:].view(np.float64).reshape(5, 4)
    assert pairwise_l1(X, Y, out=out) is out
    assert agrees(out)


def test_given_subclass_and_memory_map_are_filled(tmp_path) -> None:
    out = np.memmap(tmp_path / "out", np.float64, "w+", shape=(5, 4))
    assert pairwise_l1(X, Y, out=out) is out
    assert agrees(out)


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.empty((4, 5)), ShapeError, r"`out` must have the shape \[5, 4\], but has \[4, 5\]"),
        (np.empty((1, 5, 4)), ShapeError, "`out` must have the shape"),
        (np.empty((5, 4), np.float32), DtypeError, "`out` must be float64, but is float32"),
        (np.empty((5, 4), ">f8"), DtypeError, "`out` must be float64, but is >f8"),
        ([[0.0] * 4] * 5, ArgumentError, "`out` must be a NumPy array, but is list"),
    ],
)
def test_given_array_that_does_not_fit_is_refused(out, error, words) -> None:
    with pytest.raises(error, match=words):
        pairwise_l1(X, Y, out=out)


def test_given_array_that_is_read_only_is_refused() -> None:
    out = np.empty((5, 4))
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="`out` is read-only"):
        pairwise_l1(X, Y, out=out)


def test_empty_out_has_no_elements_that_could_share_memory():
    out = np.zeros((0, 5))
    assert out.strides == (0, 0)
    assert pairwise_l1(np.zeros((0, 3)), np.zeros((5, 3)), out=out) is out


@pytest.mark.parametrize("strides", [(0, 8), (16, 8), (8, 24), (-16, 8)])
def test_given_array_whose_elements_share_memory_is_refused(strides: tuple[int, int]) -> None:
    out = np.lib.stride_tricks.as_strided(np.empty(30)[10:], (5, 4), strides)
    with pytest.raises(ArgumentError, match="`out` has elements that share memory"):
        pairwise_l1(X, Y, out=out)


def test_given_array_that_overlaps_an_input_gets_the_right_result() -> None:
    memory = RANDOM.standard_normal((4, 3))
    for out in (memory[:3], memory[1:], memory[2::-1]):  # as in NumPy, it may be its own argument
        x = memory[:3]
        expected = pairwise_l1.reference(x, Y[:3])
        assert pairwise_l1(x, Y[:3], out=out) is out
        assert np.allclose(out, expected)


def test_given_array_for_several_results_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`out` must be a tuple of 2 arrays"):
        pairwise_l1_grad(X, Y, EXPECTED, out=np.empty((5, 3)))


@pytest.mark.parametrize("size", [1 << 24, 1 << 40])
def test_result_without_enough_memory_is_an_error_of_ours(size: int) -> None:
    x = np.broadcast_to(np.float32(0), (size, 1))
    with pytest.raises(AllocationError, match="there is no memory for the result: float32"):
        pairwise_l1(x, x)


def test_op_with_an_input_named_out_takes_it_by_name() -> None:
    from nativeops.ops.pairwise_lp import pairwise_lp_grad

    out = pairwise_lp(X, Y)
    by_name = pairwise_lp_grad(x=X, y=Y, out=out, d_out=np.ones_like(out))
    by_place = pairwise_lp_grad(X, Y, out, np.ones_like(out))
    assert np.array_equal(by_name.d_x, by_place.d_x)


def test_wanted_results_are_made_and_others_are_none() -> None:
    d_x, d_y = pairwise_l1_grad.only(["d_y"])(X, Y, EXPECTED)
    assert d_x is None
    assert np.allclose(d_y, pairwise_l1_grad.reference(X, Y, EXPECTED).d_y)


def test_results_that_are_kept_cost_no_more_where_they_are_wanted(slow_calls: list[str]) -> None:
    given = np.ones((2, 1, 3)), np.ones((8, 3)), np.ones((8, 2))
    expected = lstm_layer.reference(*given)
    lstm_layer(*given)  # which defines the op
    slow_calls.clear()
    made = lstm_layer.only(lstm_layer.result._fields)(*given)
    for found, right in zip(made, expected, strict=True):
        assert np.allclose(found, right)
    some = lstm_layer.only(["output", "h_n", "c_n", "cells"])(*given)
    assert some.gates is None
    assert np.array_equal(some.cells, made.cells)
    assert slow_calls == []
    with pytest.raises(RangeError, match="`want` leaves away `h_n`"):
        lstm_layer.only(["output", "cells"])(*given)
    with pytest.raises(RangeError, match="`want` must be among"):
        lstm_layer.only(["output", "h_n", "c_n", "cell"])(*given)


def test_keywords_and_positions_are_the_same() -> None:
    assert np.array_equal(pairwise_l1(y=Y, x=X), pairwise_l1(X, Y))
    assert np.array_equal(pairwise_lp(X, y=Y, p=1), pairwise_l1(X, Y))


@pytest.mark.parametrize("value", [1, np.float32(1), np.int64(1), np.array(1.0)])
def test_number_of_any_type_is_a_number(value) -> None:
    assert np.array_equal(pairwise_lp(X, Y, p=value), pairwise_l1(X, Y))
