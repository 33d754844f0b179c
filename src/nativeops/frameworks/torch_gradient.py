# SPDX-License-Identifier: Apache-2.0
"""The gradient of any op in PyTorch: eager, compiled, exported and under `torch.func`.

`torch.library.register_autograd` does not work inside `torch.func` transforms and gives silent
zeros in forward mode (pytorch#168393, #170834). So each op has an Autograd kernel of its own, built
on the base class that PyTorch itself uses for one level of a transform.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from nativeops.call import Op
from nativeops.errors import GradientError
from nativeops.signature import VARIABLES

if TYPE_CHECKING:
    from nativeops.frameworks.torch import Handle

_AFTER = torch._C._after_autograd_keyset  # type: ignore[attr-defined]
_FLOATS = (*VARIABLES["Float"], "Float", "Float32", "Float64")


def make_function(op: Op[Any]) -> Any:
    """The autograd function of an op: ``apply(compute, *values in the order of the schema)``."""
    signature = op.signature
    n_inputs = len(signature.inputs)
    kept = [bit for bit, spec in enumerate(signature.outputs) if spec.kept]
    all_kept = sum(1 << bit for bit in kept)

    class Function(_SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, compute: Any, *values: Any) -> Any:
            if kept:
                values = (*values[:-1], values[-1] | all_kept)
            if torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
                # Without this the inner level of a second `grad` would see constants.
                with torch.enable_grad():
                    result = compute(*values)
            else:
                result = compute(*values)
            outputs = result if isinstance(result, tuple) else (result,)
            _save(op, ctx, values, outputs)
            if kept:
                ctx.mark_non_differentiable(*(outputs[bit] for bit in kept))
            ctx.set_materialize_grads(False)
            return result

        @staticmethod
        def backward(ctx: Any, *d_outputs: Any) -> Any:
            needs = tuple(
                f"d_{spec.name}"
                for spec, need in zip(signature.inputs, ctx.needs_input_grad[1:], strict=False)
                if need
            )
            known = dict(ctx.rest) | {"needs": needs}
            known.update(zip(ctx.names, ctx.saved_tensors, strict=True))
            for spec, d_output, like in zip(signature.outputs, d_outputs, ctx.like, strict=True):
                if f"d_{spec.name}" in op.gradient_names:
                    shape, options = like
                    zero = torch.zeros(shape, **options) if d_output is None else d_output
                    known[f"d_{spec.name}"] = zero
            gradients = iter(op.differentiate(known))
            result: list[Any] = [None] * len(ctx.needs_input_grad)
            for i, spec in enumerate(signature.inputs):
                if spec.kind in _FLOATS:
                    gradient = next(gradients)
                    if f"d_{spec.name}" in needs:
                        result[i + 1] = gradient.sum_to_size(ctx.shapes[i])
            return tuple(result)

    def _save(op: Op[Any], ctx: Any, values: Any, outputs: Any) -> None:
        tensors = dict(zip((s.name for s in signature.inputs), values[:n_inputs], strict=True))
        tensors |= dict(zip((s.name for s in signature.outputs), outputs, strict=True))
        ctx.names = [name for name in op.gradient_names if name in tensors]
        ctx.save_for_backward(*(tensors[name] for name in ctx.names))
        ctx.shapes = [value.shape for value in values[:n_inputs]]
        ctx.like = [(o.shape, {"dtype": o.dtype, "device": o.device}) for o in outputs]
        ctx.rest = [
            (spec.name, spec.choices[value] if spec.choices else value)
            for spec, value in zip(signature.attributes, values[n_inputs:], strict=False)
        ]

    Function.__name__ = Function.__qualname__ = f"{op.name}_function"
    return Function


def autograd_kernel(handle: "Handle") -> Any:
    """The op's kernel for the Autograd dispatch key."""
    op = handle.op

    def kernel(keyset: Any, *values: Any) -> Any:
        def below(*inner: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return handle.full.redispatch(keyset & _AFTER, *inner)

        needed = torch.is_grad_enabled() and torch._C._any_requires_grad(*values)  # type: ignore[attr-defined]
        if torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
            level = torch._C._functorch.peek_interpreter_stack()
            if level.key() == _functorch.TransformType.Jvp:
                raise GradientError(op.no_forward_mode)
            if not needed:
                return below(*values)
            before = _functorch.get_single_level_autograd_function_allowed()
            _functorch.set_single_level_autograd_function_allowed(True)
            try:
                return handle.function.apply(below, *values)
            finally:
                _functorch.set_single_level_autograd_function_allowed(before)
        if forward_ad._current_level >= 0 and any(map(_is_dual, values)):
            raise GradientError(op.no_forward_mode)
        return handle.function.apply(below, *values) if needed else below(*values)

    return kernel


def _is_dual(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None
