# SPDX-License-Identifier: Apache-2.0
"""Integers written as a list, and lengths of any integers: they become arrays of the call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nativeops.arrays import LEAST, MOST, dtype_name, integers
from nativeops.errors import ShapeError, message
from nativeops.frameworks import DLPACK, framework_of, load
from nativeops.frameworks.base import SYMBOLIC
from nativeops.signature import ArraySpec, Signature, is_integer


def is_list_of_integers(spec: ArraySpec, value: Any) -> bool:
    """Whether a list or tuple stands for an array of this input: nested evenly, 32-bit integers."""
    return _may_be_list(spec, value) and _shape(value) is not None


def are_lengths(spec: ArraySpec, value: Any, framework: str) -> bool:
    """Whether an array has integers, but not as a kernel takes lengths: int32, of a framework."""
    own = framework_of(type(value))
    if own == DLPACK and framework in ("numpy", DLPACK):
        return spec.lengths
    if not spec.lengths or own not in ("numpy", framework):
        return False
    dtype = dtype_name(value)
    if own != framework or dtype not in spec.dtypes:
        return is_integer(dtype)
    return own == "numpy" and not value.dtype.isnative  # which the name does not tell


def are_replaceable(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], framework: str
) -> bool:
    """Whether `as_arrays` makes arrays of some arguments, which then need not fail before."""
    first = args[0] if args else kwargs.get(signature.inputs[0].name)
    for place, spec in signature.integer_inputs:
        value = args[place] if place < len(args) else kwargs.get(spec.name)
        if value is None:
            continue
        other = are_lengths(spec, value, framework) or is_elsewhere(spec, value, first)
        if is_list_of_integers(spec, value) or (other and _is_plain(value)):
            return True
    return False


def _is_plain(array: Any) -> bool:
    """Whether nothing about an array but its dtype and device can be refused."""
    if not hasattr(array, "new_tensor"):
        return type(array) is np.ndarray
    return not array.is_nested and str(array.layout) == "torch.strided" and not array.is_meta


def is_elsewhere(spec: ArraySpec, value: Any, first: Any) -> bool:
    """Whether lengths are a tensor of PyTorch on another device than the first array."""
    tensors = hasattr(value, "new_tensor") and hasattr(first, "new_tensor")
    return spec.lengths and tensors and value.device != first.device and not value.is_meta


def _may_be_list(spec: ArraySpec, value: Any) -> bool:
    return isinstance(value, (list, tuple)) and spec.dtypes[0] in ("int32", "int64")


def _shape(value: Any) -> tuple[int, ...] | None:
    """The sizes of nested lists, without NumPy: PyTorch's compiler traces this."""
    if isinstance(value, (list, tuple)):
        parts = [_shape(one) for one in value]
        inner: tuple[int, ...] | None = parts[0] if parts else ()
        even = inner is not None and all(part == inner for part in parts)
        return (len(parts), *inner) if even and inner is not None else None
    return () if _is_integer(value) and LEAST <= value <= MOST else None


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def hint(spec: ArraySpec, value: Any) -> str:
    """The way out for what is neither an array nor a list that stands for one."""
    if type(value).__name__ == SYMBOLIC:
        return "call the op in the `call` of a layer, which gets arrays."
    if _may_be_list(spec, value):
        return f"a list of integers would do, too, but {_obstacle(spec.name, value)}."
    if _is_integer(value) and spec.dtypes[0] in ("int32", "int64") and spec.axes:
        axes = f"{len(spec.axes)} ax{'i' if len(spec.axes) == 1 else 'e'}s"
        return f"it has {axes} [{' '.join(spec.axis_words)}]: a list of integers would do, too."
    name, one = spec.name, spec.dtypes[0] if len(spec.dtypes) == 1 else ""
    numpy = f"`numpy.asarray({name}, {one!r})`" if one else f"`numpy.asarray({name})`"
    torch = f"`torch.as_tensor({name}{f', dtype=torch.{one}' if one else ''})`"
    return f"make it one of your framework, for example with {numpy} or {torch}."


def _obstacle(name: str, value: Any) -> str:
    """What keeps nested lists from being an array of 32-bit integers; empty for nothing."""
    if isinstance(value, (list, tuple)):
        parts = (_obstacle(f"{name}[{place}]", one) for place, one in enumerate(value))
        found = next(filter(None, parts), "")
        return found or ("" if _shape(value) else f"the parts of `{name}` differ in their sizes")
    if _is_integer(value):
        return "" if LEAST <= value <= MOST else f"`{name}` is {value}, beyond 32 bits"
    shown = isinstance(value, (bool, float, str, type(None)))
    return f"`{name}` is {value!r}" if shown else f"`{name}` is a {type(value).__name__}"


def as_arrays(
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    make: Callable[[Sequence[Any], Any, Any], Any] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with an array in place of each such list, of the framework of the others.

    In place of lengths of another dtype, too. The dtype of a list is that which the declaration
    asks for; where that is one of several, it is that of the arrays that must have the same, else
    int32. ``make`` is the framework's own `integers`.
    """
    specs = signature.inputs
    positional, named = [*args], dict(kwargs)
    inputs = [*zip(specs, positional, strict=False)]
    inputs += [(spec, named[spec.name]) for spec in specs if spec.name in named]
    models = [v for _, v in inputs if framework_of(type(v)) not in (None, "numpy", DLPACK)]
    model = models[0] if models else None
    name = framework_of(type(model)) or "numpy"
    dtypes = {
        spec.kind: value.dtype
        for spec, value in inputs
        if spec.kind == "Int" and framework_of(type(value)) == name
    }
    make = make or load(name).integers

    def replaced(spec: ArraySpec, value: Any) -> Any:
        if is_list_of_integers(spec, value):
            if spec.optional and not len(value):
                check_empty(signature.op, spec, [p for p in inputs if p[0] is not spec])
            return make(value, dtypes.get(spec.kind, spec.dtypes[0]), model)
        if are_lengths(spec, value, name) or is_elsewhere(spec, value, model):
            return integers(signature.op, spec.name, value, value if model is None else model)
        return value

    for place, (spec, value) in enumerate(zip(specs, args, strict=False)):
        positional[place] = replaced(spec, value)
    for spec in specs:
        if spec.name in named:
            named[spec.name] = replaced(spec, named[spec.name])
    return tuple(positional), named


def check_empty(op: str, spec: ArraySpec, others: Sequence[tuple[ArraySpec, Any]]) -> None:
    """Refuse an empty list where it should have entries: an array of it would count as absent."""
    for other, array in others:
        framework = framework_of(type(array))
        shape = load(framework).describe(array)[1] if framework not in (None, DLPACK) else ()
        for axis, size in zip(reversed(other.axes), reversed(shape), strict=False):
            if size and axis.name and axis.name == spec.axes[-1].name:
                text = f"axis `{axis}` is {size} in `{other.name}` but 0 in `{spec.name}`."
                way = f"leave `{spec.name}` away, or give it the size {size}."
                raise ShapeError(message(op, text, hint=way))
