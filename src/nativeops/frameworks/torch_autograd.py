# SPDX-License-Identifier: Apache-2.0
"""The kernel of any op for PyTorch's Autograd dispatch key.

`torch.library.register_autograd` does not work inside `torch.func` transforms and gives silent
zeros in forward mode (pytorch#168393, #170834). So each op has an Autograd kernel of its own, built
on the base class that PyTorch itself uses for one level of a transform.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

from nativeops.errors import GradientError
from nativeops.library import extension

if TYPE_CHECKING:
    from nativeops.frameworks.torch_handle import Handle

_AFTER = torch._C._after_autograd_keyset
_transforms_active = torch._C._are_functorch_transforms_active
_any_requires_grad = torch._C._any_requires_grad
_number_of_modes = torch._C._len_torch_dispatch_stack


def autograd_kernel(handle: "Handle") -> Any:
    """The op's kernel for the Autograd dispatch key."""
    op, apply = handle.op, handle.apply
    direct = extension().direct_torch_values
    redispatch = handle.full._handle.redispatch_boxed
    is_grad_enabled, below_autograd = torch.is_grad_enabled, torch._C._AutoDispatchBelowAutograd

    def kernel(keyset: Any, *values: Any) -> Any:
        result = direct(op.id, *values)  # what a compiled program does
        return watched(keyset, values) if result is None else result

    def watched(keyset: Any, values: Sequence[Any]) -> Any:
        def below(*inner: Any) -> Any:
            with below_autograd():
                return redispatch(keyset & _AFTER, *inner)

        needed = is_grad_enabled() and _any_requires_grad(*values)
        dual = forward_ad._current_level >= 0
        if _transforms_active():
            return transformed(below, values, needed)
        if not (needed or dual or _number_of_modes()):
            return redispatch(keyset & _AFTER, *values)
        if dual and any(map(_is_dual, values)):
            raise GradientError(op.no_forward_mode)
        return apply(below, *values) if needed else below(*values)

    def transformed(below: Any, values: Sequence[Any], needed: bool) -> Any:
        def below_level(*inner: Any) -> Any:
            # Without gradients the inner level of a second `grad` would see constants.
            with torch.enable_grad():
                return below(*inner)

        level = _functorch.peek_interpreter_stack()
        if level.key() == _functorch.TransformType.Jvp:
            raise GradientError(op.no_forward_mode)
        if not needed:
            return below(*values)
        before = _functorch.get_single_level_autograd_function_allowed()
        _functorch.set_single_level_autograd_function_allowed(True)
        try:
            return apply(below_level, *values)
        finally:
            _functorch.set_single_level_autograd_function_allowed(before)

    return kernel


def _is_dual(value: Any) -> bool:
    unpack: Any = forward_ad.unpack_dual
    return isinstance(value, torch.Tensor) and unpack(value).tangent is not None
