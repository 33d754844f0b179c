# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as classes, and the one format of its message."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple


class Given(NamedTuple):
    """One array as the caller gave it and as the op declares it."""

    name: str
    dtype: str
    shape: tuple[object, ...]
    declared: str
    absent: bool = False

    def __str__(self) -> str:
        shape = ", ".join(str(size) for size in self.shape)
        got = "None" if self.absent else f"{self.dtype}[{shape}]"
        return f"    {self.name}: {got}   declared {self.declared}"


class NativeOpsError(Exception):
    """Base of all errors of this package."""

    if not TYPE_CHECKING:
        # TensorFlow's AutoGraph adds the place in the user's code to an error, and keeps the
        # error's class if it is made as any `Exception`.
        __init__ = Exception.__init__


class ShapeError(NativeOpsError, ValueError):
    """The axes of an array do not fit the declaration or another array."""


class DtypeError(NativeOpsError, TypeError):
    """An array has a dtype that the op does not take, or that differs from another array's."""


class ArgumentError(NativeOpsError, TypeError):
    """An argument is missing, unknown, not an array, or of another framework than the others."""


class ReplaceableError(ArgumentError):
    """An argument is none that a kernel takes, but stands for one that `lists.as_arrays` makes.

    No caller ever sees it.
    """


class RangeError(NativeOpsError, ValueError):
    """A number or a choice lies outside what the op takes."""


class DeviceError(NativeOpsError, RuntimeError):
    """The arrays are on different devices, or on one that has no kernel."""


class GradientError(NativeOpsError, NotImplementedError):
    """A derivative was asked for that the op does not have."""


class BuildError(NativeOpsError, RuntimeError):
    """Compiled kernels are missing, stale, or could not be built."""


class KernelError(NativeOpsError, RuntimeError):
    """A kernel failed while it ran: it threw what the text says."""


class AllocationError(NativeOpsError, MemoryError):
    """There is not enough memory for a result or a workspace."""


_callers: dict[str, str] = {}


def name_caller(op: str, caller: str) -> None:
    """Let errors name the function by which users call an op, instead of the op."""
    _callers[op] = caller


def called(op: str) -> str:
    """What errors name an op."""
    return _callers.get(op, op)


def thrown(op: str, text: str) -> RangeError | KernelError | None:
    """The error for what a kernel threw, if `text` tells of it.

    A sentence that begins with an argument's name, as in "`lengths[1]` is 7, but ..", refuses a
    value; all else is a failure. Frameworks put words of their own around it.
    """
    name = re.escape(called(op))
    if refused := re.search(rf"{name}: (`.*?\.)(?=\s|$)", text):
        return RangeError(message(op, refused[1]))
    before = r"^(?:INTERNAL: |INVALID_ARGUMENT: |\{\{.*\}\} )?"
    failed = re.search(rf"{before}{name}: (.*?)(?: \[Op:\w+\])?$", text, re.DOTALL)
    return KernelError(message(op, failed[1])) if failed else None


def message(op: str, what: str, given: Iterable[Given] = (), hint: str | None = None) -> str:
    """The text of every error: the op and what is wrong, the arrays, and a way out."""
    arrays = list(given)
    widths = [len(str(g).partition("   declared")[0]) for g in arrays]
    width = max([0, *widths])  # as PyTorch's compiler can follow
    lines = [f"{called(op)}: {what}"]
    for g in arrays:
        got, _, declared = str(g).partition("   declared")
        lines.append(f"{got:<{width}}   declared{declared}")
    if hint:
        lines.append(f"  hint: {hint}")
    return "\n".join(lines)
