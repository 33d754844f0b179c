# SPDX-License-Identifier: Apache-2.0
"""Which framework serves a call: by the arrays' types, and without an import of our own."""

import subprocess
import sys

import numpy as np
import pytest

from nativeops import ctc_loss, edit_distance, pairwise_l1, pairwise_lp, rnn
from nativeops.errors import ArgumentError, DeviceError, DtypeError
from nativeops.frameworks import DLPACK, framework_of
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing import installed
from nativeops.testing.arrays import arrays_of

RANDOM = np.random.default_rng(5)
X, Y = RANDOM.standard_normal((5, 3)), RANDOM.standard_normal((4, 3))
EXPECTED = pairwise_l1.reference(X, Y)
PRESENT = [name for name in FRAMEWORKS if installed(name)]
OTHERS = [name for name in PRESENT if name != "numpy"]


class Exporter:
    """An array of a library that we do not know, which offers it through DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device
        self.read = 0

    def __dlpack__(self, **options):
        self.read += 1
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize("y", [Y, Exporter(Y)], ids=["and NumPy", "alone"])
def test_dlpack_objects_give_numpy_arrays(y) -> None:
    found = pairwise_l1(Exporter(X), y)
    assert type(found) is np.ndarray
    assert np.allclose(found, EXPECTED)
    assert np.allclose(pairwise_l1(y=Exporter(Y), x=X), EXPECTED)
    assert framework_of(Exporter) == DLPACK


def test_dlpack_objects_may_be_lengths_of_any_integers() -> None:
    labels, lengths = np.array([[1, 2, 3], [4, 4, 0]], np.int32), np.array([2, 1])
    found = edit_distance(labels, Exporter(labels), a_len=Exporter(lengths))
    assert found.tolist() == [1, 2]


def test_dlpack_objects_may_be_given_to_functions_around_ops() -> None:
    logits, targets = RANDOM.standard_normal((6, 2, 4)), np.array([[1, 2], [3, 1]])
    frames, joined = np.array([6, 5]), np.array([1, 2, 3])
    found = ctc_loss(Exporter(logits), targets, Exporter(frames))
    assert found == ctc_loss(logits, targets, [6, 5])
    found = ctc_loss(Exporter(logits), joined, Exporter(frames), Exporter(np.array([2, 1])))
    assert found == ctc_loss(logits, joined, [6, 5], [2, 1])
    x = Exporter(logits)
    x.shape, x.ndim, x.dtype = logits.shape, 3, logits.dtype
    weights = [(np.ones((3, 4)), np.ones((3, 3)))]
    expected = rnn(logits, weights, batch_first=True).output
    assert np.array_equal(rnn(x, weights, batch_first=True).output, expected)


def test_dlpack_objects_are_read_without_a_copy() -> None:
    from nativeops.frameworks.dlpack import as_numpy

    exporter = Exporter(X)
    (x, y) = as_numpy(pairwise_l1, [exporter, Y])
    assert np.shares_memory(x, X)
    assert y is Y
    assert exporter.read == 1
    strided = Exporter(X.T)
    assert np.allclose(pairwise_l1(strided, strided), pairwise_l1.reference(X.T, X.T))


def test_dlpack_object_on_another_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"`y` is on cuda:1, but arrays that come through DLPack"):
        pairwise_l1(X, Exporter(Y, (2, 1)))


def test_dlpack_object_that_refuses_is_an_error() -> None:
    class Refusing(Exporter):
        def __dlpack__(self, **options):
            raise BufferError("this one is not for sharing")

    with pytest.raises(ArgumentError, match="`x` cannot be read through DLPack: this one is not"):
        pairwise_l1(Refusing(X), Y)


@pytest.mark.parametrize("name", OTHERS)
def test_mixing_frameworks_names_both_and_both_arguments(name: str) -> None:
    theirs = arrays_of(name, "cpu").place(np.float32(Y), "float32", "contiguous").array
    package = Exporter.__module__.partition(".")[0]
    for other, array in (("numpy", X), (package, Exporter(X))):
        for x, y, words in (
            (array, theirs, f"`x` is a {other} array but `y` is a {name} array"),
            (theirs, array, f"`x` is a {name} array but `y` is a {other} array"),
        ):
            with pytest.raises(ArgumentError, match=words) as error:
                pairwise_l1(x, y)
            assert isinstance(error.value, TypeError)
            with pytest.raises(ArgumentError, match=words):
                pairwise_l1(y=y, x=x)


@pytest.mark.parametrize("name", PRESENT)
def test_a_framework_in_gives_the_framework_out(name: str) -> None:
    arrays = arrays_of(name, "cpu")
    x, y = (arrays.place(np.float32(a), "float32", "contiguous").array for a in (X, Y))
    for result in (pairwise_l1(x, y), pairwise_l1(x, y=y), pairwise_l1(y=y, x=x)):
        assert framework_of(type(result)) == name
        assert np.allclose(arrays.values(result), EXPECTED, atol=1e-5)


@pytest.mark.parametrize("value", [[[1.0]], 1.0, np.float64(1), None, "word"], ids=repr)
def test_what_is_no_array_is_an_error(value: object) -> None:
    kind = type(value).__name__
    for arguments, name in (((value, Y), "x"), ((X, value), "y")):
        with pytest.raises(ArgumentError, match=f"`{name}` must be an array, but is {kind}"):
            pairwise_l1(*arguments)


def test_an_array_as_a_number_does_not_choose_the_framework() -> None:
    for name in OTHERS:
        p = arrays_of(name, "cpu").place(np.array(2.0), "float32", "contiguous").array
        try:
            found = pairwise_lp(p=p, x=X, y=Y)
        except TypeError as error:
            assert "`p` must be float" in str(error)  # noqa: PT017
        else:
            assert type(found) is np.ndarray


def placed(name: str, *values: np.ndarray, dtype: str = "float32"):
    """Arrays of a framework."""
    return [arrays_of(name, "cpu").place(value, dtype, "contiguous").array for value in values]


@pytest.mark.parametrize("name", PRESENT)
def test_names_of_what_is_wanted_come_in_any_collection_but_not_one_by_one(name: str) -> None:
    given = placed(name, X, Y, EXPECTED)
    for want in (("d_x",), ["d_x"], {"d_x"}, {"d_x": 1}.keys(), np.array(["d_x"])):
        made = pairwise_l1_grad(*given, want=want)
        assert made.d_x is not None
        assert made.d_y is None
    for gone in (iter(("d_x",)), (word for word in ("d_x",)), map(str, ["d_x"])):
        with pytest.raises(ArgumentError, match="`want` must be a list of names, but is <"):
            pairwise_l1_grad(*given, want=gone)


@pytest.mark.parametrize("name", PRESENT)
def test_flag_that_calls_another_op_is_checked_like_any_other(name: str) -> None:
    a, b = placed(name, np.array([[1, 2, 3]]), np.array([[1, 2, 4]]), dtype="int32")
    values = arrays_of(name, "cpu").values
    for flag, expected in ((True, 1 / 3), (np.True_, 1 / 3), (False, 1), (np.False_, 1)):
        assert np.allclose(values(edit_distance(a, b, normalize=flag)), expected)
    for wrong in ("no", [0], None, 1.0, np.array([True]), np.array([1, 0])):
        with pytest.raises(DtypeError, match=r"^edit_distance: `normalize` must be bool, but is"):
            edit_distance(a, b, normalize=wrong)


@pytest.mark.parametrize("name", PRESENT)
def test_number_in_an_array_with_an_axis_is_refused(name: str) -> None:
    x, y, one = placed(name, X, Y, np.array([3.0]))
    for p in (one, np.array([3.0])):
        with pytest.raises(DtypeError, match="`p` must be float, but is") as error:
            pairwise_lp(x, y, p=p)
        assert "give it as a Python number" in str(error.value)


def test_torch_compiles_calls_however_they_are_written() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for call in (
        pairwise_l1,
        lambda x, y: pairwise_l1(x, y=y),
        lambda x, y: pairwise_l1(y=y, x=x),
    ):
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        assert np.allclose(compiled(x, y), EXPECTED)


NO_FRAMEWORK = """
import sys
import numpy, nativeops
nativeops.pairwise_l1(numpy.zeros((2, 3)), numpy.zeros((4, 3)))
nativeops.pairwise_lp(y=numpy.zeros((2, 3)), x=numpy.zeros((4, 3)), p=3)
try:
    nativeops.pairwise_l1(numpy.zeros((2, 3)), [1])
except TypeError:
    pass
print([name for name in ("torch", "jax", "jaxlib", "tensorflow") if name in sys.modules])
"""


def test_a_numpy_call_imports_no_framework() -> None:
    command = [sys.executable, "-c", NO_FRAMEWORK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
