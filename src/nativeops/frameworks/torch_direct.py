# SPDX-License-Identifier: Apache-2.0
"""Calls with plain tensors go straight to the kernel, past PyTorch's dispatcher.

That takes what PyTorch's stable shims do not offer: how a tensor lies in memory, which is found
here by experiment, and a few functions of its C++. Where this PyTorch has them in another way, all
calls take the dispatcher; results are the same.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from nativeops.frameworks.absent import Absent
from nativeops.library import extension

_keys_of = torch._C._dispatch_keys
_included = torch._C._dispatch_tls_local_include_set
_excluded = torch._C._dispatch_tls_local_exclude_set


def connect_direct() -> str | None:
    """Let the core take such calls. None, or what it misses in this PyTorch."""
    missing: list[str | None] = []

    def connect() -> None:
        try:
            missing.append(_connect())
        except (AttributeError, RuntimeError, TypeError) as error:  # names of another PyTorch
            missing.append(str(error))

    # In a thread of its own there are no modes or transforms, whatever the first call runs under.
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    return missing[0]


def _connect() -> str | None:
    folder = Path(torch.__file__).parent / "lib"
    c10, cpu, python = (str(folder / f"lib{n}.so") for n in ("c10", "torch_cpu", "torch_python"))
    usual, told = _state(c10), _told()
    with torch.inference_mode():
        inference, inferred = torch.empty(2), _state(c10)
        changed = tuple(a ^ b for a, b in zip(told, _told(), strict=True))
    if usual != (0, 0) or inferred != changed or not any(changed):
        return "the dispatch keys of a thread"
    plain, meta = torch.empty(2), torch.empty(2, device="meta")
    tensors = (plain, inference, meta, torch._neg_view(plain), torch.empty(2, 2).to_sparse())
    samples = tuple((one, one._cdata, _keys_of(one).raw_repr()) for one in tensors)
    keys = samples[0][2] | samples[1][2]
    for name in ("CUDA", "AutogradCUDA", "AutocastCUDA"):
        keys |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    connect = extension().connect_direct_torch
    types = torch.Tensor, torch.nn.Parameter
    found: str | None = connect(
        cpu, python, *types, vars(forward_ad), count_write, samples, keys, inferred
    )
    return found


def count_write(tensor: torch.Tensor) -> None:
    """Let autograd notice, if it has kept the tensor, that its memory was written."""
    if not tensor.is_inference():
        increment_version(tensor)


def _state(c10: str) -> Any:
    return extension().torch_state(c10)


def _told() -> tuple[int, int]:
    """What PyTorch says of the thread's dispatch keys; other bits than `_state`, but as many."""
    return _included().raw_repr(), _excluded().raw_repr()


def direct_or(
    dispatched: Callable[..., Any], op_id: int, absent: Absent | None
) -> Callable[..., Any]:
    """A function of the values in the order of the schema: direct, or else as `dispatched`.

    Absent inputs may be None, which the schema does not allow.
    """
    direct = extension().direct_torch_values

    def compute(*values: Any) -> Any:
        result = direct(op_id, *values)
        if result is not None:
            return result
        return dispatched(*(absent.fill(values) if absent else values))

    return compute
