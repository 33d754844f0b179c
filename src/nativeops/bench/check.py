# SPDX-License-Identifier: Apache-2.0
"""Compare a rival's result with what is known, before its time counts."""

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from nativeops.bench.case import Known


class ResultError(Exception):
    """A rival's result is not what it should be."""


def check_result(result: Any, expected: Sequence[Known], tolerance: float) -> None:
    """Raise unless each result has the known values at the known places.

    Several results are a tuple or a list; a list of Python's numbers is one result.
    """
    several = isinstance(result, (tuple, list)) and not isinstance(next(iter(result), None), Number)
    results = result if several else (result,)
    if expected and len(results) != len(expected):
        raise ResultError(f"{len(results)} results where {len(expected)} are known")
    for got, (index, values) in zip(results, expected, strict=False):
        plain = got.detach().cpu() if hasattr(got, "detach") else got
        found = np.asarray(plain)[index].astype(np.float64)
        if found.shape != values.shape:
            raise ResultError(f"shape {list(found.shape)} instead of {list(values.shape)}")
        worst = float(np.max(np.abs(found - values), initial=0.0))
        scale = float(np.max(np.abs(values), initial=0.0))
        if not worst <= tolerance * scale:  # also where something is not a number
            raise ResultError(f"wrong by {worst:.3g} where values are up to {scale:.3g}")
