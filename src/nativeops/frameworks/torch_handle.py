# SPDX-License-Identifier: Apache-2.0
"""What a call in PyTorch needs of an op's declaration; see `torch_register` for the dispatcher."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nativeops.call import Op, given
from nativeops.frameworks import Framework
from nativeops.frameworks.absent import absent
from nativeops.frameworks.torch_absent import nothing
from nativeops.frameworks.torch_autograd import autograd_kernel
from nativeops.frameworks.torch_direct import direct_or
from nativeops.frameworks.torch_gradient import Function
from nativeops.frameworks.torch_out import not_compiled
from nativeops.frameworks.torch_register import LIBRARY, SPACE, name_of, register, register_into
from nativeops.frameworks.torch_vmap import vmap_rule
from nativeops.library import define, lock_over_forks

_MISSING = object()
_registering = lock_over_forks()


class Handle:
    """The registration of an op, and what a call needs of its declaration."""

    def __init__(self, op: Op[Any], framework: Framework) -> None:
        define(op)
        self.op, self.framework = op, framework
        signature = op.signature
        self.n_inputs = len(signature.inputs)
        self.selective = signature.selective
        self.absent = absent(op, nothing)
        self.single = op.result is None
        self._into: Any = None
        self.not_compiled = not_compiled(op)  # PyTorch's compiler cannot trace how it is made
        self.takes_out = "out" not in op.__signature__.parameters
        # What `arrange` and `collect` need of the declaration, without its objects.
        self.numbers: list[tuple[Any, ...]] = [
            (a.name, a.type, a.choices, _MISSING if a.required else a.default, a.low, a.high)
            for a in signature.attributes
        ]
        self.masks: dict[Any, int] = {None: op.wanted(None)}
        self.all = (1 << len(signature.outputs)) - 1
        self.shown = sum(1 << bit for bit, spec in enumerate(signature.outputs) if not spec.kept)
        name = name_of(op)
        self.full = self._register(name)
        self.raw = self._register(f"{name}.no_grad")._op
        self.compute = direct_or(self.raw, op.id, self.absent)
        self.apply = Function(op, self.outputs).apply
        LIBRARY.impl(name, autograd_kernel(self), "Autograd", with_keyset=True)
        torch.library.register_vmap(f"{SPACE}::{name}", vmap_rule(self), lib=LIBRARY)
        if op.autocast == "float32":
            cast = torch.library.register_autocast
            for device in ("cpu", "cuda"):
                cast(f"{SPACE}::{name}", device, torch.float32, lib=LIBRARY)

    @property
    def into(self) -> Any:
        """The op that writes its results into its last arguments; made when it is first used."""
        with _registering:
            if self._into is None:
                self._into = register_into(self.op)._op
            return self._into

    def _register(self, name: str) -> Any:
        registered = register(self.op, name)
        torch.library.register_fake(f"{SPACE}::{name}", self._fake, lib=LIBRARY)
        return registered

    def arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The arguments in the order of the schema."""
        if self.absent:
            args, kwargs = self.absent.take(args, kwargs)
        values = [*args]
        found = 0
        for name, kind, choices, default, low, high in self.numbers:
            value = kwargs.get(name, _MISSING)
            if value is _MISSING:
                value = default
            else:
                found += 1
            if choices:
                known = type(value) is str and value in choices
                value = choices.index(value) if known else _MISSING
            elif type(value) is not kind or not low <= value <= high:
                value = _MISSING
            if value is _MISSING:
                return self._bind(args, kwargs)
            values.append(value)
        if self.selective:
            want = kwargs.get("want")
            found += want is not None
            mask = self.masks.get(want) if want is None or type(want) is tuple else None
            if mask is None:
                return self._bind(args, kwargs)
            values.append(mask)
        fits = len(args) == self.n_inputs and found == len(kwargs)
        return values if fits else self._bind(args, kwargs)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The same for whatever is written in another way, or wrong."""
        declared, want = self.op.split_want(kwargs)
        arrays, attributes = self.op.bind(args, declared)
        if self.absent:
            arrays = self.absent.fill(arrays)
        pairs = [(spec.choices, attributes[spec.name]) for spec in self.op.signature.attributes]
        numbers = [choices.index(value) if choices else value for choices, value in pairs]
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
        arrays = (self.absent.fill(values) if self.absent else values)[: self.n_inputs]
        numbers = zip(signature.attributes, values[self.n_inputs :], strict=False)
        attributes = {a.name: a.choices[n] if a.choices else n for a, n in numbers}
        described = given(self.op, self.framework, arrays)
        solution = self.op.check(described, [str(array.device) for array in arrays], attributes)
        shapes = [signature.output_shape(spec, solution) for spec in signature.outputs]
        dtypes = [signature.output_dtype(spec, solution) for spec in signature.outputs]
        return [(s, getattr(torch, d)) for s, d in zip(shapes, dtypes, strict=True)]

    def _fake(self, *values: Any) -> Any:
        """The outputs without their numbers, for tensors without memory and symbolic sizes."""
        mask = values[-1] if self.selective else -1
        made = tuple(
            values[0].new_empty(shape if mask >> bit & 1 else (0,), dtype=dtype)
            for bit, (shape, dtype) in enumerate(self.outputs(values))
        )
        return made if len(made) > 1 else made[0]
