# SPDX-License-Identifier: Apache-2.0
"""Claims of declarations: a wrong one is found, and a right one is not doubted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nativeops.declare import Array, Float, op
from nativeops.testing import cases
from nativeops.testing.claims import ClaimError, check_parts


def doubted(reference: Callable[..., Any], independent: str = "") -> str:
    """The claim that does not hold; only references are computed, so that no kernel is needed."""
    declared = op(kernel="none_is_needed.h", independent=independent)(reference)
    try:
        for case in cases(declared):
            check_parts(case)
    except ClaimError as error:
        return error.claim
    return ""


def sums(x: Float[Array, "*b n d"]) -> Float[Array, "*b d"]:
    return x.sum(-2)


def means(x: Float[Array, "*b n d"]) -> Float[Array, "*b d"]:
    return x.mean(-2)


def neighbours(x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m d"]:
    return np.append(x[:1], np.diff(x, axis=0), 0)[:, None] * y


def whitened(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    return (x - x.mean()) * y if x.size else x * y


def negated(x: Float[Array, "n d"], *, back: bool = False) -> Float[Array, "n d"]:
    return x.cumsum(0) if back else -x


def largest(x: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    return x.max(-1) if x.shape[-1] else np.zeros(x.shape[:-1])


@pytest.mark.parametrize(
    ("reference", "independent", "doubt"),
    [
        (sums, "n d", ""),
        (means, "d", ""),
        (means, "n", "n"),
        (means, "d n", "n"),
        (neighbours, "m", ""),
        (neighbours, "n m", "n"),
        (negated, "d", ""),
        (negated, "n", "n"),
        (largest, "", ""),
        (largest, "n", "n"),
    ],
)
def test_parts_of_an_independent_axis_make_the_whole(reference, independent, doubt) -> None:
    claim = doubted(reference, independent)
    assert claim == (f"`{doubt}` is declared `independent`, but is not" if doubt else "")


def test_items_of_leading_axes_are_independent() -> None:
    assert doubted(whitened) == "leading axes `*b` must be independent, but are not"


def test_wrong_claim_says_what_was_seen_and_what_to_do() -> None:
    declared = op(kernel="none_is_needed.h", independent="n")(means)
    with pytest.raises(ClaimError, match=r"of 5 parts, added up: .* take `n` out of"):
        check_parts(next(cases(declared)))
