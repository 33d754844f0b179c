# SPDX-License-Identifier: Apache-2.0
"""The few functions of a framework that are needed beside ops: joining, turning, adding up."""

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from nativeops.errors import ArgumentError, DtypeError, ShapeError, message
from nativeops.frameworks import DLPACK, framework_of
from nativeops.signature import is_integer

Array = TypeVar("Array")
LEAST, MOST = -(2**31), 2**31 - 1  # what an int32 holds
_names: dict[Any, str] = {}


def namespace(array: Any) -> Any:
    """The module with the functions of an array's framework, which is imported already."""
    name = framework_of(type(array))
    modules = {"torch": "torch", "jax": "jax.numpy", "tensorflow": "tensorflow"}
    return sys.modules[modules.get(name or "", "numpy")]


def join(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays one behind the other along an axis."""
    if len(arrays) == 1:
        return arrays[0]
    module = namespace(arrays[0])
    together = module.concat if hasattr(module, "RaggedTensor") else module.concatenate
    joined: Array = together(arrays, axis)
    return joined


def stacked(arrays: Sequence[Array]) -> Array:
    """Arrays as the parts of one along a new first axis: also of one a copy, and no view.

    PyTorch does not let views of a result be detached in place.
    """
    return namespace(arrays[0]).stack(arrays)  # type: ignore[no-any-return]


def _read(array: Any) -> Any:
    """NumPy's array in place of another library's that speaks DLPack; all else as it is."""
    return np.from_dlpack(array) if framework_of(type(array)) == DLPACK else array


def swap_first(array: Array) -> Array:
    """Three axes with the first two swapped: a view where the framework has such."""
    module, array = namespace(array), _read(array)
    if hasattr(module, "swapaxes"):
        return module.swapaxes(array, 0, 1)  # type: ignore[no-any-return]
    return module.transpose(array, [1, 0, 2])  # type: ignore[no-any-return]


def to_numpy(array: Any) -> Any:
    """The numbers in NumPy, of whatever framework and device, without a way back.

    An error of the framework where a program is only being built.
    """
    if hasattr(array, "new_tensor"):
        array = array.detach().cpu()
        if dtype_name(array) == "bfloat16":
            array = array.float()
    return np.asarray(array)


def is_compiling(array: Any) -> bool:
    """Whether PyTorch's compiler traces the code that asks, with a tensor of any values."""
    return hasattr(array, "new_tensor") and sys.modules["torch"].compiler.is_compiling()


def known(op: str, name: str, values: Any) -> list[int] | None:
    """A list or an array of integers as a list; None while a framework compiles for any values."""
    if are_plain(values):
        return list(values)
    if is_compiling(values):
        return None
    check_unmasked(op, name, values)
    try:
        found = to_numpy(_read(values))
    except (TypeError, NotImplementedError, RuntimeError):  # a tracer of JAX, a tensor of a graph
        return None
    except (BufferError, ValueError) as error:
        raise _unreadable(op, name, values, error) from None
    if found.ndim != 1:
        text = f"`{name}` must have 1 axis [b], but has {found.ndim} axes."
        raise ShapeError(message(op, text))
    numbers: list[int] = _checked(op, name, found).tolist()
    return numbers


def integers(op: str, name: str, values: Any, like: Any) -> Any:
    """A list or an array of integers as int32 where another array is; None stays None.

    What an int32 cannot hold becomes its nearest, and stays out of every range.
    """
    if values is None:
        return None
    module = namespace(like)
    values = _read(values) if module is np else values
    plain = are_plain(values)  # without NumPy, which PyTorch's compiler would not follow
    if plain and is_compiling(like):  # which would compile again for each other number below
        values = module.tensor(values, dtype=module.int64, device=like.device)
    elif plain:
        values = [min(max(value, LEAST), MOST) for value in values]
    direct = plain and hasattr(like, "new_tensor")
    if framework_of(type(values)) in (None, "numpy") and not direct:
        check_unmasked(op, name, values)
        try:
            held = np.asarray(values)
        except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
            raise _unreadable(op, name, values, error) from None
        _checked(op, name, held)
        values = held.astype(np.int32)
        if not np.array_equal(values, held):
            values = np.clip(held, LEAST, MOST).astype(np.int32)
    if hasattr(like, "new_tensor"):
        values = module.as_tensor(values, device=like.device)
        if values.dtype in (module.uint32, module.uint64):  # which `clamp` does not take
            values = values.view(module.int64 if values.dtype is module.uint64 else module.int32)
            values = module.where(values < 0, MOST, values)
        if values.dtype is module.int64:
            values = values.clamp(LEAST, MOST)
        return cast(_checked(op, name, values), module.int32)
    if hasattr(module, "cast"):
        values = _checked(op, name, module.convert_to_tensor(values))
        if values.dtype == module.uint64:
            values = module.minimum(values, module.constant(MOST, module.uint64))
        wide = module.clip_by_value(cast(values, module.int64), LEAST, MOST)
        return cast(wide, module.int32)
    try:
        values = module.asarray(values)
    except (TypeError, NotImplementedError):  # traced by another framework: the op names both
        return values
    held = _checked(op, name, values)
    if held.dtype.itemsize >= 4:  # what is narrower fits, and might not hold the bounds
        signed = str(held.dtype).startswith("int")
        held = module.asarray(module.clip(held, LEAST if signed else None, MOST))
    return cast(held, module.int32)


def are_plain(values: Any) -> bool:
    """A list of integers."""
    return isinstance(values, (list, tuple)) and all(type(value) is int for value in values)


def check_unmasked(op: str, name: str, array: Any, hint: str = "") -> None:
    """Refuse masked elements, whose numbers would count like any other."""
    if isinstance(array, np.ma.MaskedArray) and (masked := array.size - array.count()):
        text = f"`{name}` must have no masked elements, but has {masked}."
        hint = hint or f"say what stands for them, for example `{name}.filled(0)`."
        raise ArgumentError(message(op, text, hint=hint))


def check_rank(op: str, name: str, array: Any, axes: str) -> None:
    """Refuse another number of axes than these, unless only TensorFlow's run tells it."""
    wanted, known = len(axes.split()), getattr(array.shape, "rank", 0) is not None
    if known and len(array.shape) != wanted:
        text = f"`{name}` must have {wanted} axes [{axes}], but has {len(array.shape)}."
        raise ShapeError(message(op, text))


def _unreadable(op: str, name: str, values: Any, error: Exception) -> ArgumentError:
    """Of lists in lists of unlike sizes, and of numbers that a framework only traces."""
    text = f"`{name}` must be an array, but is {type(values).__name__}, of which NumPy makes none: "
    hint = "make an array of its numbers, for example with `stack`, if your framework traces them."
    return ArgumentError(message(op, text + str(error).partition("\n")[0], hint=hint))


def _checked(op: str, name: str, values: Any) -> Any:
    """The array, if it has integers, or nothing at all."""
    kind = dtype_name(values)
    if not is_integer(kind) and 0 not in values.shape:
        raise DtypeError(message(op, f"`{name}` must have integers, but has {kind}."))
    return values


def dtype_name(array: Any) -> str:
    """The dtype of an array of any framework in NumPy's words."""
    dtype = array.dtype
    if hasattr(array, "new_tensor"):
        return str(dtype).removeprefix("torch.")
    if dtype not in _names:  # NumPy makes the name anew each time, which takes microseconds
        _names[dtype] = getattr(dtype, "name", str(dtype))
    return _names[dtype]


def cast(array: Any, dtype: Any) -> Any:
    """The numbers of an array in another dtype of its framework."""
    module = namespace(array)
    if hasattr(module, "RaggedTensor"):
        return module.cast(array, dtype)
    return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)


def total(array: Array) -> Array:
    """The sum of all elements."""
    return _of_all(array, "sum")  # type: ignore[no-any-return]


def mean(array: Array) -> Array:
    """The mean of all elements."""
    return _of_all(array, "mean")  # type: ignore[no-any-return]


def _of_all(array: Any, word: str) -> Any:
    """One number of all elements, of half precision by way of float32: not all see to that."""
    module, dtype = namespace(array), array.dtype
    number = getattr(module, f"reduce_{word}", None) or getattr(module, word)
    if dtype_name(array) not in ("float16", "bfloat16"):
        return number(array)
    return cast(number(cast(array, module.float32)), dtype)


def like(array: Any, values: Any, dtype: str = "") -> Any:
    """A list of numbers as an array of another's framework and device, and of its dtype."""
    if not isinstance(values, (list, tuple)):
        return values
    module = namespace(array)
    kind = getattr(module, dtype) if dtype else array.dtype
    if hasattr(module, "RaggedTensor"):
        return module.constant(values, kind)
    where = {"device": array.device} if module.__name__ == "torch" else {}
    return module.asarray(values, dtype=kind, **where)
