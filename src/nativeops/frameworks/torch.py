# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors: each op is registered with the dispatcher, its kernel a function in C.

Two overloads serve one op. `default` is what compilers, exporters and transforms see; it has an
Autograd kernel of ours that is also right under `torch.func`. `no_grad` has none and is taken when
eager code needs no gradient, or from inside the gradient's own function: it costs half as much.

Importing this file registers all built-in ops, so that saved programs that contain them load.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.compiler.config
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from nativeops.call import Op, given
from nativeops.errors import ArgumentError, DeviceError, NativeOpsError, message
from nativeops.frameworks.torch_gradient import Function, autograd_kernel
from nativeops.frameworks.torch_vmap import vmap_rule
from nativeops.library import define, extension, missing_kernel
from nativeops.registry import ops

SPACE = "nativeops"
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_SCHEMA = {int: "int", float: "float", bool: "bool", str: "int"}
_MISSING = object()

_library: Any = torch.library.Library(SPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_registering = threading.RLock()

# A call of a tiny op takes as long as fifteen look-ups of these.
_is_grad_enabled = torch.is_grad_enabled
_any_requires_grad = torch._C._any_requires_grad
_transforms_active = torch._C._are_functorch_transforms_active
_number_of_modes = torch._C._len_torch_dispatch_stack
_autocast_enabled = torch._C._is_any_autocast_enabled
_tracing_state = torch._C._get_tracing_state


class Torch:
    """The adapter; see `frameworks.base.Framework`."""

    name = "torch"

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        cuda = folder / "libtorch_cuda.so"
        extension().connect_torch(
            str(folder / "libtorch_cpu.so"), str(cuda) if cuda.exists() else ""
        )

    def describe(self, array: Any) -> tuple[str, tuple[Any, ...], str]:
        """See `frameworks.base.Framework`."""
        return str(array.dtype).removeprefix("torch."), tuple(array.shape), str(array.device)

    @staticmethod  # PyTorch's compiler cannot trace a method of an object that no variable holds
    def run(op: Op[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """See `frameworks.base.Framework`."""
        if is_dynamo_compiling():
            connect(op)
            handle = op.handle
            values = handle.arrange(args, kwargs)
            return handle.collect(handle.full(*values), values)
        handle = op.handle or connect(op)
        try:
            values = handle.arrange(args, kwargs) if kwargs or not handle.plain else args
            if (
                _transforms_active()
                or _number_of_modes()
                or _autocast_enabled()
                or forward_ad._current_level >= 0
                or _tracing_state() is not None
            ):
                # Something transforms or records what runs: it must see the whole op.
                result = handle.full(*values)
            elif _is_grad_enabled() and _any_requires_grad(*values):
                result = handle.apply(handle.raw, *values)
            else:
                result = handle.raw(*values)
        except (RuntimeError, TypeError, IndexError) as error:
            raise _explain(op, args, kwargs, error) from None
        return result if handle.single else handle.collect(result, values)


class Handle:
    """One op as the dispatcher knows it."""

    def __init__(self, op: Op[Any]) -> None:
        define(op)
        self.op = op
        signature = op.signature
        self.n_inputs = len(signature.inputs)
        self.selective = signature.selective
        self.plain = not (signature.attributes or signature.selective)
        self.single = op.result is None
        # What `arrange` and `collect` need of the declaration, without its objects.
        self.numbers: list[tuple[Any, ...]] = [
            (a.name, a.type, a.choices, _MISSING if a.required else a.default, a.low, a.high)
            for a in signature.attributes
        ]
        self.masks: dict[Any, int] = {None: op.wanted(None)}
        self.all = (1 << len(signature.outputs)) - 1
        self.shown = sum(1 << bit for bit, spec in enumerate(signature.outputs) if not spec.kept)
        version = op.version
        self.full = self._register(f"{op.name}.{version}" if version else op.name)
        self.raw = self._register(f"{op.name}.no_grad{version}")._op
        self.apply = Function(op, self.outputs).apply
        name = f"{op.name}.{version}" if version else op.name
        _library.impl(name, autograd_kernel(self), "Autograd", with_keyset=True)
        torch.library.register_vmap(f"{SPACE}::{name}", vmap_rule(self), lib=_library)
        if op.autocast == "float32":
            for device in ("cpu", "cuda"):
                torch.library.register_autocast(
                    f"{SPACE}::{name}", device, torch.float32, lib=_library
                )

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

    def arrange(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The arguments in the order of the schema."""
        values = [*args]
        found = 0
        for name, kind, choices, default, low, high in self.numbers:
            value = kwargs.get(name, _MISSING)
            if value is _MISSING:
                value = default
            else:
                found += 1
            if choices:
                value = choices.index(value) if value in choices else _MISSING
            elif type(value) is not kind or not low <= value <= high:
                value = _MISSING
            if value is _MISSING:
                return self._bind(args, kwargs)
            values.append(value)
        if self.selective:
            want = kwargs.get("want")
            found += want is not None
            if type(want) is list or want not in self.masks:
                return self._bind(args, kwargs)
            values.append(self.masks[want])
        fits = len(args) == self.n_inputs and found == len(kwargs)
        return values if fits else self._bind(args, kwargs)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The same for whatever is written in another way, or wrong."""
        declared, out, want = self.op.split(kwargs)
        if out is not None:
            text = "`out` is for NumPy arrays."
            raise ArgumentError(message(self.op.name, text, hint="leave `out` away."))
        arrays, attributes = self.op.bind(args, declared)
        numbers = [
            spec.choices.index(attributes[spec.name]) if spec.choices else attributes[spec.name]
            for spec in self.op.signature.attributes
        ]
        if not self.selective:
            return (*arrays, *numbers)
        mask = self.op.wanted(want)
        if want is not None:
            self.masks[tuple(want)] = mask
        return (*arrays, *numbers, mask)

    def collect(self, result: Any, values: Sequence[Any]) -> Any:
        """What the caller gets; outputs that were not made have arrived as empty tensors."""
        several = self.op.result
        if several is None:
            return result
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        mask = self.shown & values[-1] if self.selective else self.shown
        if mask == self.all:
            return several(*outputs)
        return several(*[one if mask >> bit & 1 else None for bit, one in enumerate(outputs)])

    def outputs(self, values: Sequence[Any]) -> list[tuple[tuple[Any, ...], torch.dtype]]:
        """Shape and dtype of each output; raises the errors of wrong arguments."""
        signature = self.op.signature
        arrays = values[: self.n_inputs]
        numbers = zip(signature.attributes, values[self.n_inputs :], strict=False)
        attributes = {a.name: a.choices[n] if a.choices else n for a, n in numbers}
        described = given(self.op, framework, arrays)
        solution = self.op.check(described, [str(array.device) for array in arrays], attributes)
        return [
            (
                signature.output_shape(spec, solution),
                getattr(torch, signature.output_dtype(spec, solution)),
            )
            for spec in signature.outputs
        ]

    def _fake(self, *values: Any) -> Any:
        """The outputs without their numbers, for tensors without memory and symbolic sizes."""
        mask = values[-1] if self.selective else -1
        made = tuple(
            values[0].new_empty(shape if mask >> bit & 1 else (0,), dtype=dtype)
            for bit, (shape, dtype) in enumerate(self.outputs(values))
        )
        return made if len(made) > 1 else made[0]


def connect(op: Op[Any]) -> Handle:
    """Register an op with PyTorch; once per op."""
    with _registering:
        handle: Handle = op.handle or Handle(op)
        op.handle = handle
        return handle


# PyTorch's compiler runs this function while it traces, instead of tracing into it.
connect._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _explain(
    op: Op[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
) -> Exception:
    """The error that says in the op's own words what PyTorch refused."""
    if isinstance(error, NativeOpsError):
        return error
    arrays, attributes = op.bind(args, op.split(kwargs)[0])
    for array, spec in zip(arrays, op.signature.inputs, strict=True):
        if isinstance(array, torch.Tensor) and (array.is_nested or array.layout != torch.strided):
            kind = "nested" if array.is_nested else str(array.layout)
            text = f"`{spec.name}` must be a dense tensor, but is {kind}."
            way = "to_padded_tensor(0.0)" if array.is_nested else "to_dense()"
            hint = f"convert it with `{spec.name}.{way}`."
            return ArgumentError(message(op.name, text, hint=hint))
    described = given(op, framework, arrays)
    devices = [str(array.device) for array in arrays]
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
for _op in ops():
    if _op.built_in:
        connect(_op)
