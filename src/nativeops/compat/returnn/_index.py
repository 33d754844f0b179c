# SPDX-License-Identifier: Apache-2.0
"""RETURNN's masks, which are numbers, 0 or 1."""

from typing import Any

from nativeops.errors import DtypeError, message


def mask_of(index: Any) -> Any:
    """An index of bool, or of numbers that are above 0.1 where a frame takes part, as a mask."""
    kind = str(index.dtype)
    return index if "bool" in kind else index > (0 if "int" in kind else 0.1)


def whole(op: str, name: str, value: Any) -> int:
    """A number as an integer, if it is one."""
    try:
        found = int(value)
        if found == value:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise DtypeError(message(op, f"`{name}` must be an integer, but is {value}."))
