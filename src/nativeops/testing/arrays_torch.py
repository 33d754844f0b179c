# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors for tests; see `nativeops.testing.arrays`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from nativeops.call import Op
from nativeops.testing.arrays import Placed, chosen_layout


def random(*shape: int, **options: Any) -> Any:
    """Normal numbers, the same for a shape each time; `options` are those of `Tensor.to`."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(**options)


def composed_l1(x: Any, y: Any) -> Any:
    """What `pairwise_l1` is, in PyTorch's own functions."""
    return (x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1)


class TorchArrays:
    """PyTorch, on a device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def place(self, values: Any, dtype: str, layout: str = "contiguous") -> Placed:
        """See `Arrays`."""
        found = chosen_layout(layout, values.ndim)
        shape = found.buffer(values.shape)
        kind = getattr(torch, dtype)
        buffer = torch.full(shape, 77, device=self.device).to(kind)
        array = found.view(buffer, values.shape)
        numbers = torch.from_numpy(np.array(values, order="C"))
        if found.repeats:
            buffer.copy_(numbers[tuple(slice(size) for size in shape)])
        else:
            array.copy_(numbers)
        return Placed(array, buffer)

    def values(self, array: Any) -> Any:
        """See `Arrays`."""
        plain = array.detach().cpu()
        return (plain.double() if plain.dtype is torch.bfloat16 else plain).numpy()

    def dtype(self, array: Any) -> str:
        """See `Arrays`."""
        return str(array.dtype).removeprefix("torch.")

    def gradients(
        self,
        op: Op[Any],
        arguments: Mapping[str, Any],
        d_outputs: Sequence[Any],
        names: Sequence[str],
    ) -> dict[str, Any]:
        """See `Arrays`."""
        leaves = {name: arguments[name].detach().requires_grad_() for name in names}
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

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See `Arrays`. The backend traces, differentiates and runs; it writes no C++."""
        torch.compiler.reset()  # or cases would count as one function's many variants
        return torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    def scope(self, dtypes: Collection[str]) -> AbstractContextManager[Any]:
        """See `Arrays`."""
        return nullcontext()
