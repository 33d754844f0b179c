# SPDX-License-Identifier: Apache-2.0
"""The file that declares ops: loading it, and where in it and in its kernels things stand."""

import importlib
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from nativeops.call import Op
from nativeops.errors import ArgumentError, NativeOpsError, message
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.glue import kernel_line
from nativeops.identity import check_header, kernel_files
from nativeops.registry import ops
from nativeops.testing import check_sizes


class Place(NamedTuple):
    """A line of a file."""

    file: str
    line: int


def ops_of(file: str | Path) -> dict[str, Op[Any]]:
    """The ops that a Python file declares, by name; the file is imported if it was not."""
    path = Path(file).resolve()
    module = load(path)
    found = {op.name: op for op in ops() if declared_in(op) == path}
    if not found:
        hint = "declare one with `@op(kernel=...)`; `nativeops new NAME` writes an example."
        raise ArgumentError(message("nativeops", f"{module.__file__} declares no op.", hint=hint))
    return found


def unusable(op: Op[Any]) -> str:
    """What every call of an op would say, with the line of its declaration; empty if it may run."""
    try:
        check_header(op)
        check_sizes(op)
    except NativeOpsError as error:
        place = declaration(op)
        return f"{place.file}:{place.line}: {error}"
    return ""


def line_in(file: Path, error: BaseException) -> int:
    """The innermost line of a file that an error came through; 0 if there is none."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) == file:
        return error.lineno or 0
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if Path(frame.f_code.co_filename) == file]
    return lines[-1] if lines else 0


def ops_beside(test: str | Path) -> dict[str, Op[Any]]:
    """The ops of NAME.py beside a test NAME_test.py, wherever the two files are."""
    path = Path(test)
    return ops_of(path.with_name(f"{path.stem.removesuffix('_test')}.py"))


def load(path: Path) -> ModuleType:
    """The module of a file: as part of its package if it lies in one, and never twice."""
    for module in list(sys.modules.values()):
        known = getattr(module, "__file__", None)
        if isinstance(known, str) and Path(known).resolve() == path:
            return module
    root, name = importable(path)
    if str(root) not in sys.path:
        sys.path.append(str(root))  # also for what the file imports from beside it
    module = importlib.import_module(name)
    if Path(str(module.__file__)).resolve() != path:
        text = f"{path} cannot be imported: `{name}` is {module.__file__}."
        raise ArgumentError(message("nativeops", text, hint="rename the file."))
    return module


def importable(path: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and its module's name: with its packages."""
    root, name = path.parent, path.stem
    while (root / "__init__.py").exists():
        root, name = root.parent, f"{root.name}.{name}"
    return root, name


def declared_in(op: Op[Any]) -> Path:
    """The file that declares an op."""
    return Path(inspect.getfile(op.reference)).resolve()


def declaration(op: Op[Any]) -> Place:
    """Where an op is declared."""
    return Place(str(declared_in(op)), op.reference.__code__.co_firstlineno)


class Raised(NamedTuple):
    """An error that a function of the user's raised, and the line of the function."""

    error: BaseException
    place: Place


def rule(op: Op[Any]) -> Place:
    """Where the gradient rule of an op stands."""
    return beginning(op.gradient_rule) or declaration(op)


def raised_by_rule(op: Op[Any], error: BaseException | None) -> Raised | None:
    """The error that came through an op's gradient rule, and not a compiler's around it."""
    found: Raised | None = None
    while op.gradient_rule and error:
        if own := raised_in(op.gradient_rule, error):
            found = own
            if type(error).__module__.partition(".")[0] not in FRAMEWORKS:
                return found
        error = error.__cause__ or error.__context__
    return found


def beginning(function: Any) -> Place | None:
    """Where a function begins; None for what Python did not compile from a file."""
    code = getattr(function, "__code__", None)
    return code and Place(code.co_filename, code.co_firstlineno)


def raised_in(function: Any, error: BaseException | None) -> Raised | None:
    """The error, if it came through this function."""
    code = getattr(function, "__code__", None)
    if error is None or code is None:
        return None
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code is code]
    return Raised(error, Place(code.co_filename, lines[-1])) if lines else None


def kernel(op: Op[Any]) -> Place:
    """Where the kernel of an op begins."""
    line = kernel_line(op.kernel, op.name) if op.kernel.exists() else 0
    return Place(str(op.kernel), line or 1)


def own_files(op: Op[Any]) -> list[str]:
    """The files that a report may point to: the declaration, and those of the kernel."""
    of_kernel = kernel_files(op.kernel) if op.kernel.exists() else []
    return [str(declared_in(op)), *map(str, of_kernel)]
