# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors: each op is registered with the dispatcher, its kernel a function in C.

Two overloads serve one op. `default` is what compilers, exporters and transforms see; it has an
Autograd kernel of ours that is also right under `torch.func`. `no_grad` has none and is taken when
eager code needs no gradient, or from inside the gradient's own function: it costs half as much.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.autograd import forward_ad

from nativeops.call import Op, given
from nativeops.errors import ArgumentError, DeviceError, GradientError, NativeOpsError, message
from nativeops.frameworks.torch_gradient import autograd_kernel, make_function
from nativeops.frameworks.torch_vmap import vmap_rule
from nativeops.library import define, extension, missing_kernel

SPACE = "nativeops"
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_SCHEMA = {int: "int", float: "float", bool: "bool", str: "int"}

_library = torch.library.Library(SPACE, "FRAGMENT")
_handles: dict[str, "Handle"] = {}


class Torch:
    """The adapter; see `frameworks.base.Framework`."""

    name = "torch"

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        cuda = folder / "libtorch_cuda.so"
        extension().connect_torch(str(folder / "libtorch_cpu.so"), str(cuda) if cuda.exists() else "")

    def describe(self, array: Any) -> tuple[str, tuple[Any, ...], str]:
        """See `frameworks.base.Framework`."""
        return str(array.dtype).removeprefix("torch."), tuple(array.shape), str(array.device)

    def run(self, op: Op[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `frameworks.base.Framework`."""
        handle = _handles.get(op.name)
        if handle is None or handle.op is not op:
            handle = connect(op)
        if torch.compiler.is_compiling():
            values = handle.arrange(args, kwargs)
            return handle.collect(handle.full(*values), values)
        try:
            values = args if handle.plain and not kwargs else handle.arrange(args, kwargs)
            if _watched():
                result = handle.full(*values)
            elif torch.is_grad_enabled() and torch._C._any_requires_grad(*values):  # type: ignore[attr-defined]
                result = handle.function.apply(handle.raw, *values)
            else:
                result = handle.raw(*values)
        except (RuntimeError, TypeError, IndexError) as error:
            raise _explain(op, args, kwargs, error) from None
        return result if handle.plain else handle.collect(result, values)


def _watched() -> bool:
    """Whether something transforms or records what runs, so that it must see the whole op."""
    return bool(
        torch._C._are_functorch_transforms_active()  # type: ignore[attr-defined]
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


class Handle:
    """One op as the dispatcher knows it."""

    def __init__(self, op: Op[Any]) -> None:
        define(op)
        self.op = op
        signature = op.signature
        self.plain = not (signature.attributes or signature.selective or len(signature.outputs) > 1)
        version = op.version
        self.full = self._register(f"{op.name}.{version}" if version else op.name)
        self.raw = self._register(f"{op.name}.no_grad{version}")
        self.function = make_function(op)
        name = f"{SPACE}::{self.full._schema.name.partition('::')[2]}"
        name += f".{self.full._overloadname}" if version else ""
        _library.impl(
            name.partition("::")[2], autograd_kernel(self), "Autograd", with_keyset=True
        )
        torch.library.register_vmap(name, vmap_rule(self), lib=_library)
        if op.autocast == "float32":
            for device in ("cpu", "cuda"):
                torch.library.register_autocast(name, device, torch.float32, lib=_library)

    def _register(self, name: str) -> Any:
        _library.define(name + self._schema(), tags=_TAGS)
        for key in ("CPU", "CUDA"):
            extension().implement_torch(self.op.id, SPACE, name, key)
        torch.library.register_fake(f"{SPACE}::{name}", self._fake, lib=_library)
        base, _, overload = name.partition(".")
        return getattr(getattr(torch.ops.nativeops, base), overload or "default")

    def _schema(self) -> str:
        signature = self.op.signature
        takes = [f"Tensor {spec.name}" for spec in signature.inputs]
        takes += [f"{_SCHEMA[spec.type]} {spec.name}" for spec in signature.attributes]
        takes += ["int want"] * signature.selective
        n = len(signature.outputs)
        gives = "Tensor" if n == 1 else f"({', '.join(['Tensor'] * n)})"
        return f"({', '.join(takes)}) -> {gives}"

    def arrange(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of the schema."""
        options = dict(kwargs)
        want = options.pop("want", None)
        if "out" in options:
            text = "`out` is for NumPy arrays."
            raise ArgumentError(message(self.op.name, text, hint="leave `out` away."))
        arrays, attributes = self.op.bind(args, options)
        numbers = [
            spec.choices.index(attributes[spec.name]) if spec.choices else attributes[spec.name]
            for spec in self.op.signature.attributes
        ]
        mask = [self.op.wanted(want)] * self.op.signature.selective
        return (*arrays, *numbers, *mask)

    def collect(self, result: Any, values: tuple[Any, ...]) -> Any:
        """What the caller gets; outputs that were not made have arrived as empty tensors."""
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        mask = values[-1] if self.op.signature.selective else -1
        shown = [output if mask >> bit & 1 else None for bit, output in enumerate(outputs)]
        return self.op.collect(shown)

    def attributes(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """The attributes by name, from values in the order of the schema."""
        specs = self.op.signature.attributes
        numbers = values[len(self.op.signature.inputs) :]
        return {
            spec.name: spec.choices[number] if spec.choices else number
            for spec, number in zip(specs, numbers, strict=False)
        }

    def _fake(self, *values: Any) -> Any:
        """The outputs without their numbers, for tensors without memory and symbolic sizes."""
        op, signature = self.op, self.op.signature
        arrays = values[: len(signature.inputs)]
        described = given(op, framework, arrays)
        devices = [str(array.device) for array in arrays]
        solution = op.check(described, devices, self.attributes(values))
        mask = values[-1] if signature.selective else -1
        outputs = []
        for bit, spec in enumerate(signature.outputs):
            shape = op.signature.output_shape(spec, solution) if mask >> bit & 1 else (0,)
            dtype = getattr(torch, signature.output_dtype(spec, solution))
            outputs.append(arrays[0].new_empty(shape, dtype=dtype))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def connect(op: Op[Any]) -> Handle:
    """Register an op with PyTorch; once per op."""
    known = _handles.get(op.name)
    if known is None or known.op is not op:
        known = _handles[op.name] = Handle(op)
    return known


# PyTorch's compiler runs this function while it traces, instead of tracing into it.
connect._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _explain(
    op: Op[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
) -> Exception:
    """The error that says in the op's own words what PyTorch refused."""
    if isinstance(error, NativeOpsError):
        return error
    options = {name: value for name, value in kwargs.items() if name != "want"}
    arrays, attributes = op.bind(args, options)
    described = given(op, framework, arrays)
    devices = [str(array.device) for array in arrays]
    for array, one in zip(arrays, described, strict=True):
        if array.layout is not torch.strided:
            text = f"`{one.name}` must be a dense tensor, but is {array.layout}."
            hint = f"convert it with `{one.name}.to_dense()`."
            return ArgumentError(message(op.name, text, described, hint))
    solution = op.check(described, devices, attributes)
    if devices[0].partition(":")[0] not in ("cpu", "cuda", "meta"):
        text = f"there are no kernels for {devices[0]}."
        return DeviceError(message(op.name, text, described, "move the tensors to cpu or cuda."))
    if "no memory for a result" in str(error):
        from nativeops.frameworks.numpy import no_memory

        spec = op.signature.outputs[0]
        shape = op.signature.output_shape(spec, solution)
        return no_memory(op, shape, op.signature.output_dtype(spec, solution))
    if "there is no kernel for these dtypes" in str(error):
        return missing_kernel(op, solution.dtypes, devices[0])
    return error


def no_forward_mode(op: Op[Any]) -> GradientError:
    """The error for forward-mode differentiation."""
    return GradientError(op.no_forward_mode)


framework = Torch()
