# SPDX-License-Identifier: Apache-2.0
"""What attributes take, and what they refuse in which words."""

import numpy as np
import pytest

from nativeops.attributes import AttributeSpec
from nativeops.errors import DtypeError, RangeError


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (2**70, RangeError, "must fit in 64 bits, but is 1180591620717411303424"),
        pytest.param(10**5000, RangeError, "but is an integer of 16610 bits", id="of 5001 digits"),
        (1.0, DtypeError, "must be int, but is 1.0"),
        (np.float32(1), DtypeError, "must be int"),
        (np.array(1.5), DtypeError, "must be int"),
        (True, DtypeError, "must be int, but is True"),
        (0, RangeError, "must be at least 1"),
    ],
)
def test_whole_number_is_checked(value, error, words) -> None:
    with pytest.raises(error, match=words):
        AttributeSpec("k", int, low=1).check("op", value)


def test_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(RangeError, match="must fit in 64 bits, but is an integer of 1329 bits"):
        AttributeSpec("f", float).check("op", 10**400)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_whole_number_of_any_type_is_taken(value) -> None:
    checked = AttributeSpec("k", int).check("op", value)
    assert checked == 3
    assert type(checked) is int


@pytest.mark.parametrize("kind", [bool, int, float])
def test_array_with_an_axis_is_no_number(kind: type) -> None:
    class Tensor:  # as in PyTorch, where one of a single element is a number to Python
        ndim = 1

        def __index__(self):
            return 3

        def __float__(self):
            return 3.0

    for value in (Tensor(), np.array([3], kind)):
        with pytest.raises(DtypeError, match=f"`k` must be {kind.__name__}, but is"):
            AttributeSpec("k", kind).check("op", value)


@pytest.mark.parametrize("value", [np.array(["high", "low"]), np.array("high"), ["high"], 1, None])
def test_choice_is_a_word(value) -> None:
    spec = AttributeSpec("k", str, choices=("high", "low"))
    assert spec.check("op", np.str_("high")) == "high"
    with pytest.raises(RangeError, match=r"`k` must be one of \['high', 'low'\], but is"):
        spec.check("op", value)


def test_flag_of_numpy_is_a_flag() -> None:
    assert AttributeSpec("flag", bool).check("op", np.True_) is True


def test_unbounded_number_is_not_nan() -> None:
    with pytest.raises(RangeError, match="`p` must be a number, but is nan"):
        AttributeSpec("p", float).check("op", float("nan"))
