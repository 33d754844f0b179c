# SPDX-License-Identifier: Apache-2.0
"""What `@op` and the limits of attributes may be, and what is said of all else."""

from typing import Annotated, Any

import pytest

from nativeops.declare import Array, AtLeast, AtMost, Float, op

TEXT: Any = "9"


@pytest.mark.parametrize(
    ("keyword", "value", "text"),
    [
        ("devices", "cuda", "must be 'cpu cuda' or 'cpu', but is 'cuda'"),
        ("autocast", "bf16", "must be 'float32' or 'keep', but is 'bf16'"),
        ("independent", ["n"], r"must be one text, but is \['n'\]"),
        ("carries", None, "must be one text, but is None"),
        ("reuse", ["x"], r"must be a dict, but is \['x'\]"),
    ],
)
def test_keyword_of_another_kind_is_named(keyword: str, value: Any, text: str) -> None:
    def f(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    with pytest.raises(TypeError, match=f"^f: `{keyword}` {text}$"):
        op(**{"kernel": "k.h", keyword: value})(f)


@pytest.mark.parametrize(
    ("annotated", "text"),
    [
        (Annotated[int, AtLeast(3), AtMost(1)], "is at least 3 and at most 1, which no number is"),
        (Annotated[float, AtLeast], "has the limit .*: write it with a number, `AtLeast"),
        (Annotated[float, AtMost(float("nan"))], r"has the limit AtMost\(value=nan\): write it"),
        (Annotated[float, AtMost(TEXT)], r"has the limit AtMost\(value='9'\): write it"),
    ],
    ids=["none fits", "no number", "nan", "text"],
)
def test_limit_that_is_none_is_told_at_the_declaration(annotated: Any, text: str) -> None:
    def f(x: Float[Array, "n"], *, k: annotated) -> Float[Array, "n"]:
        return x

    with pytest.raises(TypeError, match=f"^f: `k` {text}"):
        op(kernel="k.h")(f)
