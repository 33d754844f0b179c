# SPDX-License-Identifier: Apache-2.0
"""`out=` in PyTorch: the result in a tensor that the caller has, perhaps the memory of an input."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from nativeops.call import Op
from nativeops.errors import ArgumentError, DeviceError, message
from nativeops.frameworks.out import check_apart, check_disjoint, check_out
from nativeops.frameworks.torch_direct import count_write

if TYPE_CHECKING:
    from nativeops.frameworks.torch_handle import Handle


def not_compiled(op: Op[Any]) -> str:
    """What a compiled program with `out` is told."""
    text = "`out` is not possible in a compiled program."
    hint = "leave `out` away: the compiler itself uses memory again."
    return message(op.name, text, hint=hint)


def run_into(op: Op[Any], handle: "Handle", args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One call with a given tensor for the result."""
    if is_dynamo_compiling():
        raise ArgumentError(handle.not_compiled)
    if is_seen():
        text = "`out` is not possible while calls are transformed or traced."
        raise ArgumentError(message(op.name, text, hint="leave `out` away."))
    left = dict(kwargs)
    outs = op.spread(left.pop("out"))
    values = handle.arrange(args, left)
    wanted = handle.shown & values[-1] if handle.selective else handle.shown
    results, arrays = handle.outputs(values), values[: handle.n_inputs]
    for place, out in enumerate(outs):
        if not wanted >> place & 1:
            outs[place] = None
        elif out is not None:
            _check(op, place, out, results[place], arrays)
    check_disjoint(op, [None if out is None else _places(out) for out in outs])
    made = outs
    aside = any(_needs_aside(op, place, out, arrays) for place, out in enumerate(outs))
    given = (out for out in outs if out is not None)
    # The core takes only outputs whose memory is apart from end to end, not columns of one buffer.
    if aside or any(_may_share(one, other) for one, other in combinations(given, 2)):
        found = handle.raw(*values)
        made = [found] if isinstance(found, torch.Tensor) else [*found]
        for place, out in enumerate(outs):
            if out is not None:
                made[place] = out.copy_(made[place])
    else:
        made = [
            _empty(arrays, *result, wanted=bool(wanted >> place & 1)) if out is None else out
            for place, (out, result) in enumerate(zip(outs, results, strict=True))
        ]
        handle.into(*values, *made)
        for out in outs:
            if out is not None:
                count_write(out)
    return op.collect([o if wanted >> place & 1 else None for place, o in enumerate(made)])


def _empty(arrays: Sequence[Any], shape: Any, dtype: Any, wanted: bool) -> Any:
    """A new tensor for an output; without elements where nobody wants it."""
    return torch.empty(shape if wanted else 0, dtype=dtype, device=arrays[0].device)


def _needs_aside(op: Op[Any], place: int, out: Any, arrays: Sequence[Any]) -> bool:
    """Whether an output cannot be written to `out` while the inputs are read."""
    if out is None:
        return False
    if out.is_neg() or any(a.is_neg() for a in arrays):  # what is in memory is not the numbers
        return True
    reuse, inputs = op.signature.outputs[place].reuse, op.signature.inputs
    pairs = zip(inputs, arrays, strict=True)
    return any(
        _may_share(out, a) for spec, a in pairs if not (spec.name == reuse and _is_same(a, out))
    )


def _check(op: Op[Any], place: int, out: Any, result: Any, arrays: Sequence[Any]) -> None:
    word, (shape, dtype) = op.out_word(place), result
    if not isinstance(out, torch.Tensor) or out.layout != torch.strided:
        text = f"`{word}` must be a dense tensor, but is {type(out).__name__}."
        raise ArgumentError(message(op.name, text))
    words = [str(kind).removeprefix("torch.") for kind in (out.dtype, dtype)]
    check_out(op, word, (words[0], out.shape), (words[1], shape))
    check_apart(op, word, out.shape, out.stride())
    if out.device != arrays[0].device:
        text = f"`{word}` is on {out.device}, but the inputs are on {arrays[0].device}."
        raise DeviceError(message(op.name, text))
    if torch.is_grad_enabled() and any(a.requires_grad for a in (*arrays, out)):
        text = f"`{word}` is for results that need no gradient."
        hint = "call it under `torch.no_grad()`, or leave `out` away."
        raise ArgumentError(message(op.name, text, hint=hint))


def is_seen() -> bool:
    """Whether something must see the whole op as a function without side effects."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same elements in the same memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _may_share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory that two tensors span meets."""
    (first, end), (other, other_end) = _span(a), _span(b)
    return first < other_end and other < end


def _places(tensor: torch.Tensor) -> Any:
    """Where the elements of a tensor lie, on any device, as NumPy is told it."""
    size = tensor.element_size()
    interface = {
        "version": 3,
        "typestr": f"|V{size}",
        "data": (tensor.data_ptr(), False),
        "shape": tuple(tensor.shape),
        "strides": tuple(step * size for step in tensor.stride()),
    }
    return SimpleNamespace(__array_interface__=interface)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.numel() == 0:
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * step for size, step in steps)
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()
