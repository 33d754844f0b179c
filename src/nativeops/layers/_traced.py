# SPDX-License-Identifier: Apache-2.0
"""PyTorch's two older ways to read a program, and what they find where a layer of ours is."""

from collections.abc import Sequence
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
        proxy = _proxy_of((*args, *kwargs.values()))
        if proxy is None:
            return super().__call__(*args, **kwargs)
        tracer: Any = proxy.tracer
        path = tracer.path_of_module(self)

        def node(*args: Any, **kwargs: Any) -> Any:
            return tracer.create_proxy("call_module", path, args, kwargs)

        return tracer.call_module(self, node, args, kwargs)


def _proxy_of(values: Sequence[Any]) -> Proxy | None:
    """What stands for one of the values, or of a tuple's parts, in a symbolic trace."""
    for value in values:
        parts = value if isinstance(value, (tuple, list)) else (value,)
        for part in parts:
            if isinstance(part, Proxy):
                return part
    return None
