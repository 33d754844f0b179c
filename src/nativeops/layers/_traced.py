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

    def _node(self, *args: Any) -> Any:
        """What a call in a symbolic trace returns, or None outside of one."""
        for value in args:
            if isinstance(value, Proxy):
                break
        else:
            return None
        tracer: Any = value.tracer
        path = tracer.path_of_module(self)
        if self._forward_hooks or self._forward_pre_hooks:
            # They are being traced: to call the layer as a module would run them once more.
            layer = tracer.create_proxy("get_attr", path, (), {})
            return tracer.create_proxy("call_method", "forward", (layer, *args), {})
        return tracer.create_proxy("call_module", path, args, {})
