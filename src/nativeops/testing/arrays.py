# SPDX-License-Identifier: Apache-2.0
"""Arrays of each framework for tests: made from NumPy's numbers, read back, differentiated."""

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np

from nativeops.call import Op
from nativeops.testing.layouts import LAYOUTS, Layout

# The class in `arrays_<framework>.py`; and the frameworks whose arrays may have any layout.
CLASSES = {"torch": "TorchArrays", "jax": "JaxArrays", "tensorflow": "TensorFlowArrays"}
STRIDED = ("numpy", "torch")


class Placed(NamedTuple):
    """An array, and all of the memory that it is a view of."""

    array: Any
    buffer: Any


class Arrays(Protocol):
    """What tests need to know of a framework."""

    def place(self, values: Any, dtype: str, layout: str = "contiguous") -> Placed:
        """The numbers in an array of that dtype and layout."""

    def values(self, array: Any) -> Any:
        """The numbers of an array, in NumPy."""

    def dtype(self, array: Any) -> str:
        """The dtype in NumPy's words."""

    def gradients(
        self,
        op: Op[Any],
        arguments: Mapping[str, Any],
        d_outputs: Sequence[Any],
        names: Sequence[str],
    ) -> dict[str, Any]:
        """What flows back into these inputs, in NumPy, by the framework's own means.

        `d_outputs` has what arrives at each result that a caller gets, in NumPy. All other
        arguments are constants to the framework.
        """

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of arrays alone, compiled as users of the framework do; as a whole."""

    def scope(self, dtypes: Collection[str]) -> AbstractContextManager[Any]:
        """What must be set so that arrays of these dtypes can be made and used."""


def numpy_dtype(dtype: str) -> Any:
    """NumPy's dtype; the package ml_dtypes has bfloat16."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def chosen_layout(layout: str, rank: int) -> Layout:
    """The layout, or the plain one for an array of too few axes."""
    found = LAYOUTS[layout]
    return found if rank >= found.min_rank else LAYOUTS["contiguous"]


def repeated(values: Any, layout: str) -> Any:
    """What remains of the numbers in a layout where several elements share memory."""
    found = chosen_layout(layout, values.ndim)
    if not found.repeats:
        return values
    small = values[tuple(slice(size) for size in found.buffer(values.shape))]
    return np.broadcast_to(small, values.shape)


class NumPyArrays:
    """NumPy."""

    def place(self, values: Any, dtype: str, layout: str = "contiguous") -> Placed:
        """See `Arrays`."""
        found = chosen_layout(layout, values.ndim)
        buffer = np.full(found.buffer(values.shape), 77, numpy_dtype(dtype))
        array = found.view(buffer, values.shape)
        if found.repeats:
            buffer[...] = values[tuple(slice(size) for size in buffer.shape)]
        else:
            array[...] = values
        return Placed(array, buffer)

    def values(self, array: Any) -> Any:
        """See `Arrays`."""
        return array

    def dtype(self, array: Any) -> str:
        """See `Arrays`."""
        return str(array.dtype.name)

    def gradients(
        self,
        op: Op[Any],
        arguments: Mapping[str, Any],
        d_outputs: Sequence[Any],
        names: Sequence[str],
    ) -> dict[str, Any]:
        """See `Arrays`."""
        raise TypeError("NumPy does not differentiate")

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See `Arrays`."""
        raise TypeError("NumPy does not compile")

    def scope(self, dtypes: Collection[str]) -> AbstractContextManager[Any]:
        """See `Arrays`."""
        return nullcontext()


def arrays_of(framework: str, device: str) -> Arrays:
    """The arrays of a framework on a device; imports the framework."""
    if framework == "numpy":
        return NumPyArrays()
    module = importlib.import_module(f"nativeops.testing.arrays_{framework}")
    made: Arrays = getattr(module, CLASSES[framework])(device)
    return made


def filled(shape: tuple[int, ...], dtype: str, byte: int) -> Any:
    """A NumPy array of which every byte is this one."""
    kind = numpy_dtype(dtype)
    return np.full((*shape, kind.itemsize), byte, np.uint8).view(kind)[..., 0]
