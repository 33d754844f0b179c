# SPDX-License-Identifier: Apache-2.0
"""What all of RETURNN's ops refuse, in the words of their arguments."""

import sys
from typing import Any

from nativeops.arrays import is_compiling
from nativeops.errors import ArgumentError, DtypeError, ShapeError, message


def check_axes(op: str, **given: tuple[Any, str]) -> None:
    """Refuse what is no array, has other axes, or differs in one from an array before it.

    An array of no entries must not reach our ops where they take None, for which it would stand.
    """
    sizes: dict[str, tuple[Any, str]] = {}
    for name, (array, axes) in given.items():
        words = axes.split()
        wanted = f"[{', '.join(words)}], but"
        if not hasattr(array, "shape"):
            text = f"`{name}` must be an array {wanted} is {type(array).__name__}."
            raise ArgumentError(message(op, text, hint="make it an array of your framework."))
        if getattr(array.shape, "rank", 0) is None:
            continue  # TensorFlow tells it when it runs, as a size that is None
        pairs = zip(words, array.shape, strict=False)
        other = any(word.isdigit() and size not in (None, int(word)) for word, size in pairs)
        if other or len(array.shape) != len(words):
            text = f"`{name}` must be {wanted} has the shape {list(array.shape)}."
            raise ShapeError(message(op, text))
        for axis, size in zip(words, array.shape, strict=True):
            if size is not None:
                _check_axis(op, name, axis, size, sizes)


def _check_axis(
    op: str, name: str, axis: str, size: Any, sizes: dict[str, tuple[Any, str]]
) -> None:
    """Compare a size, or the part of it that a multiple as ``4*dim`` names, with one before it."""
    factor, _, part = axis.rpartition("*")
    times = int(factor or 1)
    first, other = sizes.setdefault(part, (size // times, name))
    if first * times == size:
        return
    if other == name:
        raise ShapeError(
            message(op, f"axis `{axis}` is {size} in `{name}`, no multiple of {times}.")
        )
    known = f"axis `{part}` is {first} in `{other}` but"
    this = f"`{axis}` is {size}" if factor else f"{size}"
    raise ShapeError(message(op, f"{known} {this} in `{name}`."))


def check_tensors(op: str, **given: Any) -> None:
    """Refuse what is no tensor of PyTorch, before it is asked for what only those have."""
    for name, value in given.items():
        if not isinstance(value, sys.modules["torch"].Tensor):
            text = f"`{name}` must be a tensor, but is {type(value).__name__}."
            raise ArgumentError(message(op, text, hint="make it one with `torch.as_tensor`."))


def can_read(*tensors: Any) -> bool:
    """Whether the values of tensors can be looked at: nobody waits, no compiler stops at it."""
    is_wrapped = sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor
    return not any(is_compiling(x) or is_wrapped(x) or x.device.type != "cpu" for x in tensors)


def whole(op: str, name: str, value: Any) -> int:
    """A number as an integer, if it is one."""
    try:
        found = int(value)
        if found == value:
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise DtypeError(message(op, f"`{name}` must be an integer, but is {value}."))
