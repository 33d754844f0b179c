# SPDX-License-Identifier: Apache-2.0
"""Tensors for what is none: optional inputs that are absent, see `absent`, lists, and twins."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from nativeops.signature import ArraySpec

_transforms_active = torch._C._are_functorch_transforms_active
_number_of_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state
_MANY = 1 << 16
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_made: dict[Any, torch.Tensor] = {}  # by rank, dtype and device


def nothing(rank: int, dtype: Any, arrays: Sequence[Any]) -> Any:
    """The empty tensor, on the device of the first input; one that is kept for eager calls."""
    first = arrays[0]
    if not isinstance(first, torch.Tensor):
        return None  # the call fails anyway
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    if type(first) not in _PLAIN:
        return first.new_empty((0,) * rank, dtype=dtype)
    traced = is_dynamo_compiling() or _tracing_state() is not None
    if traced or _number_of_modes() or _transforms_active():
        # Not from the first input, which `vmap` may have given an axis more.
        return torch.empty((0,) * rank, dtype=dtype, device=first.device)
    key = rank, dtype, first.device
    found = _made.get(key)
    if found is None:
        with torch.inference_mode(False):  # or it could not be kept for a gradient
            found = _made[key] = torch.empty((0,) * rank, dtype=dtype, device=first.device)
    return found


def zeros(shape: Sequence[Any], dtype: Any, device: Any) -> Any:
    """A gradient that does not arrive: where it is large, one zero for all of it."""
    many = all(type(size) is int for size in shape) and math.prod(shape) >= _MANY
    one = torch.zeros(() if many else shape, dtype=dtype, device=device)
    return one.expand(shape) if many else one


def are_large(results: Sequence[Any]) -> bool:
    """Whether one of them is so large that zeros in place of its gradient would take long."""
    sizes = [result.numel() for result in results]
    return any(type(size) is int and size >= _MANY for size in sizes)


def note_absent(ctx: Any, arrays: Any, optional: Sequence[tuple[int, ArraySpec]]) -> Any:
    """The inputs with None for each that is absent: None, or the empty tensor in its place."""
    absent = [i for i, s in optional if arrays[i] is None or s.is_absent(arrays[i].shape)]
    ctx.absent = tuple(absent)
    if absent:
        ctx.device = arrays[0].device
        arrays = [*arrays]
        for i in absent:
            arrays[i] = None
    return arrays


def for_absent(gradients: list[Any], ctx: Any, inputs: Sequence[ArraySpec]) -> None:
    """Put in place of what a gradient rule gave for absent inputs what PyTorch wants for them.

    Whoever gave an empty tensor himself may have asked for its gradient.
    """
    for place in ctx.absent:
        asked, rank = ctx.needs_input_grad[place + 1], len(inputs[place].axes)
        gradients[place] = torch.zeros((0,) * rank, device=ctx.device) if asked else None


def integers(values: Sequence[Any], dtype: Any, like: torch.Tensor) -> torch.Tensor:
    """See `frameworks.base.Framework`; PyTorch's compiler traces a function, but no method."""
    wanted = getattr(torch, dtype) if type(dtype) is str else dtype
    return torch.tensor(values, dtype=wanted, device=like.device)
