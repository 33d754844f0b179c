# SPDX-License-Identifier: Apache-2.0
"""RETURNN's masks, which are numbers, 0 or 1."""

from typing import Any


def mask_of(index: Any) -> Any:
    """An index of bool, or of numbers that are above 0.1 where a frame takes part, as a mask."""
    kind = str(index.dtype)
    return index if "bool" in kind else index > (0 if "int" in kind else 0.1)
