# SPDX-License-Identifier: Apache-2.0
"""The few functions of a framework that layers need beside ops: joining, turning, adding up."""

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from nativeops.frameworks import framework_of

Array = TypeVar("Array")


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


def swap_first(array: Array) -> Array:
    """Three axes with the first two swapped: a view where the framework has such."""
    module = namespace(array)
    if hasattr(module, "swapaxes"):
        return module.swapaxes(array, 0, 1)  # type: ignore[no-any-return]
    return module.transpose(array, [1, 0, 2])  # type: ignore[no-any-return]


def total(array: Array) -> Array:
    """The sum of all elements."""
    module = namespace(array)
    add = module.reduce_sum if hasattr(module, "reduce_sum") else module.sum
    return add(array)  # type: ignore[no-any-return]


def mean(array: Array) -> Array:
    """The mean of all elements."""
    module = namespace(array)
    average = module.reduce_mean if hasattr(module, "reduce_mean") else module.mean
    return average(array)  # type: ignore[no-any-return]


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
