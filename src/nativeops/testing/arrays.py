# SPDX-License-Identifier: Apache-2.0
"""Arrays of each framework for tests: made from NumPy's numbers, read back, differentiated."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nativeops.call import Op
from nativeops.testing.draw import FLOATS
from nativeops.testing.layouts import LAYOUTS, Layout


class Placed(NamedTuple):
    """An array, and all of the memory that it is a view of."""

    array: Any
    buffer: Any


class Arrays(Protocol):
    """What tests need to know of a framework."""

    def place(self, values: Any, dtype: str, layout: str) -> Placed:
        """The numbers in an array of that dtype and layout."""

    def values(self, array: Any) -> Any:
        """The numbers of an array, in NumPy."""

    def dtype(self, array: Any) -> str:
        """The dtype in NumPy's words."""


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


class TorchArrays:
    """PyTorch, on a device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def place(self, values: Any, dtype: str, layout: str = "contiguous") -> Placed:
        """See `Arrays`."""
        import torch

        found = chosen_layout(layout, values.ndim)
        shape = found.buffer(values.shape)
        kind = getattr(torch, dtype)
        buffer = torch.full(shape, 77, device=self.device).to(kind)
        array = found.view(buffer, values.shape)
        numbers = torch.from_numpy(np.ascontiguousarray(values).reshape(values.shape))
        if found.repeats:
            buffer.copy_(numbers[tuple(slice(size) for size in shape)])
        else:
            array.copy_(numbers)
        return Placed(array, buffer)

    def values(self, array: Any) -> Any:
        """See `Arrays`."""
        import torch

        plain = array.detach().cpu()
        return (plain.double() if plain.dtype is torch.bfloat16 else plain).numpy()

    def dtype(self, array: Any) -> str:
        """See `Arrays`."""
        return str(array.dtype).removeprefix("torch.")

    def gradients(
        self, op: Op[Any], arguments: Mapping[str, Any], d_outputs: Sequence[Any]
    ) -> dict[str, Any]:
        """What flows back into each floating point input."""
        import torch

        specs = [spec for spec in op.signature.inputs if spec.kind in FLOATS]
        leaves = {spec.name: arguments[spec.name].detach().requires_grad_() for spec in specs}
        result = op(**{**arguments, **leaves})
        outputs = [o for o in (result if op.result else [result]) if o is not None]
        pairs = [(o, d) for o, d in zip(outputs, d_outputs, strict=True) if o.requires_grad]
        found = torch.autograd.grad(
            [o for o, _ in pairs],
            list(leaves.values()),
            [torch.from_numpy(np.array(d)).to(o) for o, d in pairs],
            allow_unused=True,
        )
        return {
            name: np.zeros(leaf.shape) if gradient is None else self.values(gradient)
            for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
        }


def arrays_of(framework: str, device: str) -> NumPyArrays | TorchArrays:
    """The arrays of a framework on a device."""
    return NumPyArrays() if framework == "numpy" else TorchArrays(device)
