# SPDX-License-Identifier: Apache-2.0
"""Lists of integers in place of arrays, in every framework."""

import re

import numpy as np
import pytest

from nativeops import ctc_fsa, ctc_loss, edit_distance, forced_align, fsa_loss, rnn_layer
from nativeops.errors import ArgumentError, DeviceError, DtypeError, RangeError, ShapeError
from nativeops.frameworks import framework_of
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import installed
from nativeops.testing.arrays import arrays_of

RANDOM = np.random.default_rng(3)
PRESENT = [name for name in FRAMEWORKS if installed(name)]
SCORES = np.log(RANDOM.dirichlet(np.ones(4), (9, 2))).astype(np.float32)
TARGETS, FRAMES, LENGTHS = [[1, 2], [2, 3]], [9, 7], (2, 1)
EXPECTED = forced_align(SCORES, *(np.array(v, np.int32) for v in (TARGETS, FRAMES, LENGTHS)))


def place(name: str, array) -> object:
    return arrays_of(name, "cpu").place(array, array.dtype.name, "contiguous").array


def check(found, name: str) -> None:
    for field, own, theirs in zip(found._fields, found, EXPECTED, strict=True):
        assert framework_of(type(own)) == name, field
        assert np.array_equal(arrays_of(name, "cpu").values(own), theirs), field


@pytest.mark.parametrize("name", PRESENT)
def test_lists_are_read_as_arrays_of_the_call(name: str) -> None:
    scores, targets = place(name, SCORES), place(name, np.array(TARGETS, np.int32))
    check(forced_align(scores, targets, FRAMES, LENGTHS), name)
    check(forced_align(scores, TARGETS, FRAMES, target_lengths=LENGTHS), name)
    check(forced_align(log_probs=scores, targets=TARGETS, input_lengths=FRAMES,
                       target_lengths=[np.int64(2), 1]), name)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in PRESENT if name != "jax"])  # it has no int64
def test_lists_have_the_dtype_of_the_arrays_beside_them(name: str) -> None:
    found = forced_align(place(name, SCORES), place(name, np.array(TARGETS)), FRAMES, LENGTHS)
    values = [arrays_of(name, "cpu").values(one) for one in found]
    assert values[0].dtype == np.int64
    assert all(np.array_equal(own, theirs) for own, theirs in zip(values, EXPECTED, strict=True))


@pytest.mark.parametrize("name", PRESENT)
def test_lists_where_only_one_dtype_is_taken(name: str) -> None:
    fsa = ctc_fsa(np.array(TARGETS, np.int32))
    edges, weights, ends = (place(name, array) for array in fsa[:3])
    given = [place(name, SCORES), edges, weights, ends]
    expected = fsa_loss(SCORES, *fsa[:3], np.array([9, 5], np.int32))
    found = fsa_loss(*given, lengths=[9, 5])
    np.testing.assert_allclose(arrays_of(name, "cpu").values(found), expected, rtol=1e-6)


def test_lists_alone_are_numpy() -> None:
    found = edit_distance([[1, 2, 3]], [[1, 3]], a_len=[2])
    assert type(found) is np.ndarray
    assert found.tolist() == [1]
    assert edit_distance([[]], [[1, 3]]).tolist() == [2]


LENGTH_DTYPES = ("int64", "int16", "uint8")


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("dtype", LENGTH_DTYPES)
def test_lengths_may_have_any_integers(name: str, dtype: str) -> None:
    scores, targets = place(name, SCORES), place(name, np.array(TARGETS, np.int32))
    frames, lengths = np.array(FRAMES, dtype), np.array(LENGTHS, dtype)
    check(forced_align(scores, targets, frames, lengths), name)  # NumPy's, beside any framework
    if not (name == "jax" and dtype == "int64"):  # which JAX has only where it is asked to
        check(forced_align(scores, targets, place(name, frames), place(name, lengths)), name)


@pytest.mark.parametrize("dtype", [">i4", ">u2"])
def test_lengths_may_have_swapped_bytes(dtype: str) -> None:
    frames, lengths = np.array(FRAMES, dtype), np.array(LENGTHS, dtype)
    check(forced_align(SCORES, np.array(TARGETS), frames, lengths), "numpy")


@pytest.mark.parametrize("name", PRESENT)
def test_lengths_beyond_an_int32_stay_out_of_range(name: str) -> None:
    x, targets = place(name, SCORES), place(name, np.array(TARGETS, np.int32))
    with pytest.raises(
        RangeError, match=r"`target_lengths\[1\]` is 2147483647, but must be from 0"
    ):
        forced_align(x, targets, target_lengths=np.array([2, 2**32 + 1]))


@pytest.mark.parametrize("name", PRESENT)
def test_lengths_are_integers(name: str) -> None:
    x, targets = place(name, SCORES), place(name, np.array(TARGETS, np.int32))
    with pytest.raises(DtypeError, match="`target_lengths` must be int32, but is float32"):
        forced_align(x, targets, target_lengths=place(name, np.ones(2, np.float32)))
    with pytest.raises(DtypeError, match="`a_len` must be int32, but is bool"):
        edit_distance(targets, targets, a_len=place(name, np.ones(2, bool)))


@pytest.mark.parametrize("name", PRESENT)
def test_lengths_with_masked_elements_are_refused(name: str) -> None:
    scores, targets = place(name, SCORES), place(name, np.array(TARGETS, np.int32))
    masked = np.ma.masked_array(FRAMES, mask=[False, True])
    text = "must have no masked elements, but has 1.*filled"
    for call in (
        lambda: forced_align(scores, TARGETS, masked),  # a list, for which arrays are made
        lambda: ctc_loss(scores, targets, masked),
        lambda: ctc_loss(scores, place(name, np.array([1, 2, 2], np.int32)), FRAMES, masked),
    ):
        with pytest.raises(ArgumentError, match=f"(?s){text}"):
            call()


@pytest.mark.parametrize("name", PRESENT)
def test_lengths_that_numpy_cannot_read_are_refused(name: str) -> None:
    scores, joined = place(name, SCORES), place(name, np.array([1, 2, 2], np.int32))
    uneven = [[1], [2, 3]]
    with pytest.raises(ArgumentError, match="`input_lengths` must be an array, but is list"):
        ctc_loss(scores, TARGETS, uneven)
    with pytest.raises(ArgumentError, match="`target_lengths` must be an array, but is list"):
        ctc_loss(scores, joined, FRAMES, uneven)


def test_lengths_in_a_list_that_are_traced_are_refused() -> None:
    jax = pytest.importorskip("jax")
    text = "(?s)`input_lengths` must be an array, but is list.*`stack`"
    with pytest.raises(ArgumentError, match=text):
        jax.jit(lambda n: ctc_loss(jax.numpy.asarray(SCORES), TARGETS, [n, n]))(7)


def test_lengths_of_any_integers_where_torch_compiles() -> None:
    torch = pytest.importorskip("torch")
    program = torch.compile(forced_align, fullgraph=True, backend="aot_eager")
    lengths = [torch.tensor(value) for value in (TARGETS, FRAMES, LENGTHS)]
    found = program(torch.from_numpy(SCORES), *lengths)
    values = [arrays_of("torch", "cpu").values(one) for one in found]
    assert all(np.array_equal(own, theirs) for own, theirs in zip(values, EXPECTED, strict=True))


def test_lengths_of_any_integers_where_jax_compiles() -> None:
    jax = pytest.importorskip("jax")
    program = jax.jit(lambda scores, lengths: forced_align(scores, TARGETS, FRAMES, lengths))
    check(program(SCORES, np.array(LENGTHS, np.uint8)), "jax")


def test_lengths_of_any_integers_where_tensorflow_compiles() -> None:
    tf = pytest.importorskip("tensorflow")
    program = tf.function(lambda scores, lengths: forced_align(scores, TARGETS, FRAMES, lengths))
    check(program(tf.constant(SCORES), tf.constant(LENGTHS, tf.int64)), "tensorflow")


BAD = {
    "uneven": ([[1, 2], [3]], ArgumentError, "`targets` must be an array, but is list"),
    "no integers": ([[1.5, 2], [3, 1]], ArgumentError, "`targets` must be an array, but is list"),
    "truth": ([[True, False]] * 2, ArgumentError, "`targets` must be an array, but is list"),
    "more than 32 bits": ([[2**31, 1]] * 2, ArgumentError, "must be an array, but is list"),
    "too few axes": ([1, 2], ShapeError, "`targets` must have 2 axes"),
    "of another size": ([[1]] * 3, ShapeError, "`b`"),
    "empty": ([], ShapeError, "`targets` must have 2 axes"),
    "the blank": ([[0, 2]] * 2, RangeError, r"`targets\[0, 0\]` is 0"),
}


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("case", BAD)
def test_lists_that_do_not_fit_are_refused(name: str, case: str) -> None:
    value, kind, text = BAD[case]
    with pytest.raises(kind, match=text) as error:
        forced_align(place(name, SCORES), value)
    assert type(error.value) is kind  # and no class that callers do not know


HINTS = {
    "a list of integers would do, too, but `targets[1][0]` is 2.5": [[1, 2], [2.5, 1]],
    "but the parts of `targets` differ in their sizes": [[1, 2], [3]],
    "but the parts of `targets[1]` differ in their sizes": [[1, 2], [3, [4]]],
    "but `targets[0][1]` is 2147483648, beyond 32 bits": [[1, 2**31]],
    "but `targets[1]` is None": [[1, 2], None],
    "but `targets[0]` is a ndarray": [np.array([1, 2])],
    "it has 2 axes [b s]: a list of integers would do, too": 3,
    "make it one of your framework, for example with `numpy.asarray(targets)` or `torch": 3.5,
}


@pytest.mark.parametrize("hint", HINTS)
def test_hint_says_what_keeps_a_list_from_being_integers(hint: str) -> None:
    with pytest.raises(ArgumentError, match=f"hint: .*{re.escape(hint)}"):
        forced_align(SCORES, HINTS[hint])


def test_hint_tells_the_dtype_where_there_is_one() -> None:
    made = "`numpy.asarray(lengths, 'int32')` or `torch.as_tensor(lengths, dtype=torch.int32)`"
    with pytest.raises(ArgumentError, match=re.escape(f"for example with {made}")):
        rnn_layer(*[SCORES] * 3, lengths="9")


@pytest.mark.parametrize("name", PRESENT)
def test_lists_are_no_numbers_with_a_fraction(name: str) -> None:
    with pytest.raises(ArgumentError, match="`log_probs` must be an array, but is list"):
        forced_align(SCORES.tolist(), place(name, np.array(TARGETS, np.int32)))
    with pytest.raises((DtypeError, ArgumentError), match="edit_distance: `a` must be"):
        edit_distance([[1.0]], place(name, np.array([[1]], np.int32)))


def test_lists_where_torch_compiles() -> None:
    torch = pytest.importorskip("torch")
    program = torch.compile(
        lambda scores: forced_align(scores, [[1, 2], [2, 3]], [9, 7], target_lengths=(2, 1)),
        fullgraph=True,
        backend="aot_eager",
    )
    check(program(torch.from_numpy(SCORES)), "torch")


def test_lists_where_jax_compiles() -> None:
    jax = pytest.importorskip("jax")
    check(jax.jit(lambda scores: forced_align(scores, TARGETS, FRAMES, LENGTHS))(SCORES), "jax")


def test_lists_where_tensorflow_compiles() -> None:
    tf = pytest.importorskip("tensorflow")
    program = tf.function(lambda scores: forced_align(scores, TARGETS, FRAMES, LENGTHS))
    check(program(tf.constant(SCORES)), "tensorflow")


@pytest.mark.parametrize("name", PRESENT)
def test_an_empty_list_is_not_taken_for_none(name: str) -> None:
    """An empty array stands for an input that is left away: all frames would count."""
    scores, text = place(name, SCORES), "axis `b` is 2 in `log_probs` but 0 in `input_lengths`"
    with pytest.raises(ShapeError, match=text):
        forced_align(scores, TARGETS, [])
    nobody = forced_align(place(name, SCORES[:, :0]), place(name, np.zeros((0, 2), np.int32)), [])
    assert arrays_of(name, "cpu").values(nobody[0]).size == 0


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_lengths_on_another_device_are_moved(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x, lengths = (
        torch.empty(3, 2, 4, device="meta"),
        torch.tensor([3, 1], dtype=getattr(torch, dtype)),
    )
    weights = [torch.empty(5, n, device="meta") for n in (4, 5)]
    assert rnn_layer(x, *weights, lengths=lengths).output.shape == (3, 2, 5)
    named = dict(zip(("x", "w_ih", "w_hh"), (x, *weights), strict=True))
    assert rnn_layer(**named, lengths=lengths).output.shape == (3, 2, 5)
    with pytest.raises(DeviceError, match="`x` is on meta but `w_hh` is on cpu"):
        rnn_layer(x, weights[0], torch.empty(5, 5), lengths=lengths)


def test_lengths_that_are_refused_in_32_bits_are_in_64() -> None:
    x, weights = np.zeros((3, 2, 4)), (np.zeros((5, 4)), np.zeros((5, 5)))
    for dtype in ("int32", "int64"):
        masked = np.ma.masked_array(np.array([3, 1], dtype), [False, True])
        with pytest.raises(ArgumentError, match="`lengths` must have no masked elements"):
            rnn_layer(x, *weights, lengths=masked)


def test_lengths_that_are_no_dense_tensor_are_refused() -> None:
    torch = pytest.importorskip("torch")
    x, weights = torch.zeros(3, 2, 4), (torch.zeros(5, 4), torch.zeros(5, 5))
    for dtype in (torch.int32, torch.int64):
        sparse = torch.tensor([3, 1], dtype=dtype).to_sparse()
        with pytest.raises(ArgumentError, match="`lengths` must be a dense tensor"):
            rnn_layer(x, *weights, lengths=sparse)
