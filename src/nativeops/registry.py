# SPDX-License-Identifier: Apache-2.0
"""All declared ops by name, and those that other packages declare when they are asked for.

A package announces its ops by entry points of the group ``nativeops.ops``: the name is the op's,
the value the module that declares it. Such a module is imported when its op is looked up.
"""

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from nativeops.errors import ArgumentError, NativeOpsError, message

if TYPE_CHECKING:
    from importlib import metadata

    from nativeops.call import Op

GROUP = "nativeops.ops"
_OPS: dict[str, "Op[Any]"] = {}


def register(op: "Op[Any]") -> None:
    """Add an op; the newest of several declarations with the same kernel wins.

    One of the same name with another kernel is an error.
    """
    known = _OPS.get(op.name)
    if known is not None and known.kernel != op.kernel:
        if known.built_in:
            text = f"is the name of an op of nativeops, so {op.kernel.name} cannot have it."
            raise ArgumentError(message(op.name, text, hint="rename yours."))
        text = f"is declared twice, with the kernels {known.kernel} and {op.kernel}."
        raise ArgumentError(message(op.name, text, hint="rename one of them."))
    _OPS[op.name] = op


def declared(module: str, name: str) -> "Op[Any]":
    """The op of that name, declared by a module that is imported if it is not yet: a pickled op."""
    if name not in _OPS:
        importlib.import_module(module)
    return find(name)


def find(name: str) -> "Op[Any]":
    """The op of that name; the package that announces it is imported if need be."""
    if name not in _OPS and name in announced():
        _import(announced()[name])
    if name not in _OPS:
        from difflib import get_close_matches

        close = get_close_matches(name, {*_OPS, *announced()}, n=1)
        hint = f"did you mean `{close[0]}`?" if close else "`nativeops list` shows all ops."
        raise ArgumentError(message(name, "is not a declared op.", hint=hint))
    return _OPS[name]


def ops() -> list["Op[Any]"]:
    """All declared ops, in order of their names."""
    return [_OPS[name] for name in sorted(_OPS)]


@cache
def announced() -> "dict[str, metadata.EntryPoint]":
    """What installed packages announce, by the op's name; nothing is imported for it."""
    from importlib import metadata  # costs a third of the package's import

    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def import_announced() -> list[str]:
    """Import all packages that announce ops; what went wrong, one text each."""
    failures = []
    for name in sorted(announced()):
        try:
            find(name)
        except NativeOpsError as error:
            failures.append(str(error))
    return failures


def _import(point: "metadata.EntryPoint") -> None:
    where = f"the package {point.dist.name}" if point.dist else "a package"
    try:
        point.load()
    except NativeOpsError:
        raise
    except Exception as error:
        text = f"is announced by {where}, but `{point.value}` cannot be imported: {error}."
        raise ArgumentError(message(point.name, text, hint="reinstall the package.")) from error
    if point.name not in _OPS:
        text = f"is announced by {where}, but `{point.value}` does not declare it."
        raise ArgumentError(message(point.name, text, hint="tell the package's author."))
