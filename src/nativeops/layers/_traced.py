# SPDX-License-Identifier: Apache-2.0
"""PyTorch's two older ways to read a program, and what they find where a layer of ours is."""

from typing import Any, NoReturn

import torch
from torch.fx import Proxy

from nativeops.errors import ArgumentError, message


class Leaf(torch.nn.Module):
    """A layer that `torch.fx.symbolic_trace` does not look into, as it does not into PyTorch's."""

    def __prepare_scriptable__(self) -> NoReturn:
        text = "cannot be compiled by TorchScript (`torch.jit.script`)."
        hint = "use `torch.jit.trace`, `torch.export` or `torch.compile`, which take it as it is."
        raise ArgumentError(message(type(self).__name__, text, hint=hint))

    # Before the hooks and whatever a derived class does in its forward method: all that is the
    # leaf's, and would be computed twice if it were traced, too.
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result, or in a symbolic trace what stands for it."""
        for value in (*args, *kwargs.values()):
            parts = value if isinstance(value, (tuple, list)) else (value,)
            for part in parts:
                if isinstance(part, Proxy):
                    tracer: Any = part.tracer
                    path = tracer.path_of_module(self)
                    return tracer.create_proxy("call_module", path, args, kwargs)
        return super().__call__(*args, **kwargs)
