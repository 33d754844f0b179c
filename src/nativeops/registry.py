# SPDX-License-Identifier: Apache-2.0
"""All declared ops by name."""

from typing import TYPE_CHECKING, Any

from nativeops.errors import ArgumentError, message

if TYPE_CHECKING:
    from nativeops.call import Op

_OPS: dict[str, "Op[Any]"] = {}


def register(op: "Op[Any]") -> None:
    """Add an op; a second one of the same name from another file is an error."""
    known = _OPS.get(op.name)
    if known is not None and known.kernel != op.kernel:
        text = f"is declared twice, in {known.kernel.parent} and in {op.kernel.parent}."
        raise ArgumentError(message(op.name, text, hint="rename one of them."))
    _OPS[op.name] = op


def find(name: str) -> "Op[Any]":
    """The op of that name."""
    if name not in _OPS:
        from difflib import get_close_matches

        close = get_close_matches(name, _OPS, n=1)
        hint = f"did you mean `{close[0]}`?" if close else "`nativeops list` shows all ops."
        raise ArgumentError(message(name, "is not a declared op.", hint=hint))
    return _OPS[name]


def ops() -> list["Op[Any]"]:
    """All declared ops, in order of their names."""
    return [_OPS[name] for name in sorted(_OPS)]
