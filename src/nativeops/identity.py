# SPDX-License-Identifier: Apache-2.0
"""What tells one version of a user's op from another: hashes of its kernel and its declaration.

Caches of ours, of PyTorch and of XLA know an op by these hashes, so none serves an older version.
They depend on texts alone, never on times or places.
"""

import hashlib
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nativeops.errors import BuildError, message

if TYPE_CHECKING:
    from nativeops.call import Op

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_PACKAGE = Path(__file__).resolve().parent
_sources: WeakKeyDictionary[Callable[..., Any], str] = WeakKeyDictionary()


def variants(header: Path) -> dict[str, Path]:
    """The header's variants: tuned for the CPU, for CUDA, or for both (``"tuned"``)."""
    named = {of: header.with_name(f"{header.stem}_{of}.h") for of in ("cpu", "cuda", "tuned")}
    return {of: path for of, path in named.items() if path.exists()}


def kernel_files(header: Path) -> list[Path]:
    """The header, its variants tuned for one device, and what they include from beside it.

    Followed is `#include "name"` of a file in the folder of the header or of the including file;
    not `<name>`, and not this package's own headers.
    """
    waiting = [header, *variants(header).values()]
    found: dict[tuple[str, str], Path] = {}
    while waiting:
        path = waiting.pop()
        # The folder decides what the file includes; it may have many names, or lie in itself.
        key = os.path.realpath(path.parent), path.name
        if key in found:
            continue
        found[key] = path
        for name in _INCLUDE.findall(path.read_text(errors="replace")):
            for folder in (path.parent, header.parent):
                included = normal(folder / name)
                if included.is_file() and not included.is_relative_to(_PACKAGE / "devices"):
                    waiting.append(included)
                    break
    return sorted(found.values())


def normal(path: Path) -> Path:
    """The path without `..`; as it is where that would be another file, behind a symbolic link."""
    short = Path(os.path.normpath(path))
    same = not path.exists() or (short.exists() and short.samefile(path))
    return short if same else path


def check_header(op: "Op[Any]") -> None:
    """Refuse an op whose kernel's header is not there."""
    if not op.kernel.is_file():
        hint = "the kernel's header stands beside the declaration, or give `kernel=` its path."
        raise BuildError(message(op.name, f"there is no kernel at {op.kernel}.", hint=hint))


def kernel_digest(op: "Op[Any]") -> str:
    """A hash of all files of an op's kernel, as they are now."""
    check_header(op)
    header, digest = op.kernel, hashlib.sha256()
    files = kernel_files(header)
    for name, path in sorted((os.path.relpath(path, header.parent), path) for path in files):
        digest.update(f"{name}\0{len(path.read_bytes())}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def version(op: "Op[Any]") -> str:
    """A hash of declaration and kernel.

    It covers the signature with bounds and axis rules, all files of the kernel, the source of the
    reference and of the gradient rule, and what the rule names: functions of the user's own files,
    plain constants (numbers, words, tuples of them) and other ops with their kernels and rules. It
    does not cover methods, other objects that a rule holds, nor installed packages other than the
    op's own.
    """
    reader = _Reader(op)
    reader.add_op(op)
    return hashlib.sha256("\0".join(reader.parts).encode()).hexdigest()[:12]


def remember(function: Callable[..., Any]) -> None:
    """Read a function's source now: its file may change before the source is hashed."""
    _sources[function] = _read(function)


def _read(function: Callable[..., Any]) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError, SyntaxError):  # made by `exec` or typed at a prompt
        return "".join(_code_text(function.__code__)) if _has_code(function) else repr(function)


def _has_code(function: Callable[..., Any]) -> bool:
    return isinstance(function, FunctionType)


def _code_text(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex() + repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_text(constant)
        else:
            yield _constant_text(constant) or ""


def _constant_text(value: object) -> str | None:
    """A text for a constant, the same in every process; None if it is not all plain."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if not isinstance(value, (tuple, frozenset)):
        return None
    items = [_constant_text(item) for item in value]
    if None in items:
        return None
    listed = items if isinstance(value, tuple) else sorted(map(str, items))
    return f"{type(value).__name__}({', '.join(map(str, listed))})"


def _names(code: CodeType) -> set[str]:
    """All names that a function and the functions inside it use."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*(_names(each) for each in inner))


class _Reader:
    """Collects the texts that an op's meaning depends on."""

    def __init__(self, op: "Op[Any]") -> None:
        self.parts: list[str] = []
        self.op_type = type(op)
        self.package = (op.reference.__module__ or "").partition(".")[0]
        self.seen: set[int] = set()

    def add_op(self, op: "Op[Any]") -> None:
        if id(op) in self.seen or op.built_in:
            return
        self.seen.add(id(op))
        self.parts += [str(op.signature), repr(op.signature.attributes), op.autocast]
        self.parts += [*op.independent, op.kernel_digest]
        self.parts += [] if "cuda" in op.devices else ["cpu"]
        self.parts += [spec.reuse for spec in op.signature.outputs if spec.reuse]
        self.add_function(op.reference)
        if op.gradient_rule is not None:
            self.add_function(op.gradient_rule)

    def add_function(self, function: Callable[..., Any]) -> None:
        if id(function) in self.seen:
            return
        self.seen.add(id(function))
        self.parts.append(_sources.get(function) or _read(function))
        if not isinstance(function, FunctionType):
            return
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.add_value("", default)
        names = sorted(_names(function.__code__))
        scope = {**function.__globals__, **_cells(function)}
        for name in names:
            self.add_value(name, scope.get(name))
            if isinstance(scope.get(name), ModuleType) and self.is_users(scope[name].__name__):
                for inner in names:
                    self.add_value(inner, getattr(scope[name], inner, None))

    def add_value(self, name: str, value: object) -> None:
        if not isinstance(value, FunctionType):  # a function behind functools.cache and its like
            value = getattr(value, "__wrapped__", value)
        if isinstance(value, self.op_type):
            self.add_op(value)
        elif isinstance(value, FunctionType) and self.is_users(value.__module__):
            self.add_function(value)
        elif isinstance(value, (tuple, frozenset)) and _constant_text(value) is None:
            if isinstance(value, tuple):
                for item in value:
                    self.add_value(name, item)
        elif value is not None and not name.startswith("__") and _constant_text(value):
            self.parts.append(f"{name} = {_constant_text(value)}")

    def is_users(self, module: str | None) -> bool:
        """Whether the module is of the op's package, or of no installed one."""
        top = (module or "").partition(".")[0]
        if top == self.package:
            return True
        file = getattr(sys.modules.get(module or ""), "__file__", None)
        return top != "nativeops" and file is not None and not file.startswith(_libraries())


@cache
def _libraries() -> tuple[str, ...]:
    """The folders of installed packages and of Python's own."""
    import sysconfig  # costs a millisecond: only for a user's op

    return tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def _cells(function: FunctionType) -> dict[str, Any]:
    """What a function holds of the functions around it."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found
