# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors: what a call does. `torch_handle` tells how an op is registered.

Importing this file registers all built-in ops, so that saved programs that contain them load.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.compiler.config
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function

from nativeops.call import Op
from nativeops.frameworks.torch_absent import integers
from nativeops.frameworks.torch_direct import connect_direct
from nativeops.frameworks.torch_explain import explain
from nativeops.frameworks.torch_handle import Handle
from nativeops.frameworks.torch_out import is_seen, run_into
from nativeops.frameworks.torch_register import once
from nativeops.library import define, extension, is_forked_with
from nativeops.lists import are_replaceable, as_arrays
from nativeops.registry import ops

# Names of this file, because looking them up in `torch._C` would cost as much as asking them.
_is_grad_enabled = torch.is_grad_enabled
_any_requires_grad = torch._C._any_requires_grad
_has_torch_function = torch._C._has_torch_function
_direct = extension().direct_torch


class Torch:
    """The adapter; see `frameworks.base.Framework`."""

    name = "torch"

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        cuda = folder / "libtorch_cuda.so"
        extension().connect_torch(
            str(folder / "libtorch_cpu.so"),
            str(cuda) if cuda.exists() else "",
            is_forked_with("torch"),
        )
        self.not_direct = connect_direct()

    def describe(self, array: Any) -> tuple[str, tuple[Any, ...], str]:
        """See `frameworks.base.Framework`."""
        return str(array.dtype).removeprefix("torch."), tuple(array.shape), str(array.device)

    integers = staticmethod(integers)

    @staticmethod  # PyTorch's compiler cannot trace a method of an object that no variable holds
    def run(op: Op[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `frameworks.base.Framework`."""
        if is_dynamo_compiling():
            # `integer_inputs` is cached behind a lock, which cannot be traced.
            if any(spec.dtypes[0] in ("int32", "int64") for spec in op.signature.inputs):
                args, kwargs = as_arrays(op.signature, args, kwargs, integers)
            connect(op) if _TRACES_OBJECTS else connect_all()
            handle = op.handles["torch"]
            if kwargs.get("out") is not None and handle.takes_out:
                return run_into(op, handle, args, kwargs)
            values = handle.arrange(args, kwargs)
            return handle.collect(handle.full(*values), values)
        result = _direct(op, args, kwargs)
        if result is None:
            if likes := tensor_likes((*args, *kwargs.values())):
                return handle_torch_function(op, likes, *args, **kwargs)
            if are_replaceable(op.signature, args, kwargs, "torch"):
                return Torch.run(op, *as_arrays(op.signature, args, kwargs, integers))
        elif type(result) is not list:
            return result
        handle = op.handles.get("torch") or connect(op)
        try:
            if kwargs and kwargs.get("out") is not None and handle.takes_out:
                return run_into(op, handle, args, kwargs)
            values = result or handle.arrange(args, kwargs)
            if result:  # nothing but a gradient has to be recorded
                result = handle.apply(handle.compute, *values)
            elif is_seen():
                result = handle.full(*values)
            elif _is_grad_enabled() and _any_requires_grad(*values):
                result = handle.apply(handle.compute, *values)
            else:
                result = handle.raw(*values)
        except (RuntimeError, TypeError, IndexError) as error:
            raise explain(op, framework, args, kwargs, error) from None
        return result if handle.single else handle.collect(result, values)


def tensor_likes(values: tuple[Any, ...]) -> list[Any]:
    """Those that are no tensors, but say themselves what a function does with them.

    They get the op, whose checks and gradient then are those of any call. Subclasses of tensors are
    left to the dispatcher, which keeps a result of several tensors in its own class.
    """
    if not _has_torch_function(values):
        return []
    likes = (value for value in values if hasattr(type(value), "__torch_function__"))
    return [value for value in likes if not isinstance(value, torch.Tensor)]


def connect(op: Op[Any]) -> Handle:
    """Register an op with PyTorch; once per op."""
    if "torch" not in op.handles:
        _connect([op])
    handle: Handle = op.handles["torch"]
    return handle


def connect_all() -> None:
    """Register all declared ops."""
    _connect([op for op in ops() if "torch" not in op.handles])


def _connect(new: Sequence[Op[Any]]) -> None:
    for op in new:
        define(op)  # here, as a compiler that it runs may well be interrupted
    handles = once({op.key: partial(Handle, op, framework) for op in new})
    for op in new:
        op.handles["torch"] = handles[op.key]


# PyTorch's compiler runs these functions while it traces, instead of tracing into them.
connect._dynamo_marked_constant = True  # type: ignore[attr-defined]
connect_all._dynamo_marked_constant = True  # type: ignore[attr-defined]
# Before 2.13 it did so only with constants as arguments, which ops are not.
_TRACES_OBJECTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def _digest() -> str:
    """What the gradients and shapes of built-in ops are made from: it tells one version apart."""
    package = Path(__file__).parent.parent
    sources = [*package.glob("ops/*.py"), *package.glob("frameworks/torch*.py")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources)))
    return digest.hexdigest()[:12]


framework = Torch()
# The caches of compiled programs know ops by their names alone: those of another version of this
# package must not serve (pytorch#144344).
torch.compiler.config.cache_key_tag += f" nativeops-{_digest()}"
_connect([op for op in ops() if op.built_in])
