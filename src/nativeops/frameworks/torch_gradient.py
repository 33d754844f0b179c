# SPDX-License-Identifier: Apache-2.0
"""The gradient of any op in PyTorch: eager, compiled, exported and under `torch.func`.

`torch.library.register_autograd` does not work inside `torch.func` transforms and gives silent
zeros in forward mode (pytorch#168393, #170834). So each op has an Autograd kernel of its own, built
on the base class that PyTorch itself uses for one level of a transform.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
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

_FLOATS = VARIABLES["Float"]
_AFTER = torch._C._after_autograd_keyset  # type: ignore[attr-defined]
_transforms_active = torch._C._are_functorch_transforms_active  # type: ignore[attr-defined]
_any_requires_grad = torch._C._any_requires_grad  # type: ignore[attr-defined]


def make_function(op: Op[Any], describe: Callable[..., Sequence[Any]]) -> Any:
    """The autograd function of an op: ``apply(compute, *values in the order of the schema)``.

    All that does not depend on the values is worked out here, once: what to keep is picked by
    position, and so are the arguments of the gradient rule.
    """
    inputs, outputs, attributes = (
        [spec.name for spec in specs]
        for specs in (op.signature.inputs, op.signature.outputs, op.signature.attributes)
    )
    n_inputs, single = len(inputs), len(outputs) == 1
    kept = [bit for bit, spec in enumerate(op.signature.outputs) if spec.kept]
    kept_mask = sum(1 << bit for bit in kept)
    names = [name for name in op.gradient_names if name in inputs or name in outputs]
    pick_saved = _picker([*inputs, *outputs], names)
    known = [*names, *attributes, *(f"d_{name}" for name in outputs), "needs"]
    pick_arguments = _picker(known, op.gradient_names)
    words = [(i, spec.choices) for i, spec in enumerate(op.signature.attributes) if spec.choices]
    asked = [bit for bit, name in enumerate(outputs) if f"d_{name}" in op.gradient_names]
    integers = [i for i, spec in enumerate(op.signature.inputs) if spec.dtypes[0] not in _FLOATS]
    rest = (None,) * (len(attributes) + op.signature.selective)
    needs_of: dict[tuple[bool, ...], tuple[str, ...]] = {}  # grows to the patterns that occur

    class Function(_SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, compute: Any, *values: Any) -> Any:
            if kept:
                values = (*values[:-1], values[-1] | kept_mask)
            if _transforms_active():
                # Without this the inner level of a second `grad` would see constants.
                with torch.enable_grad():
                    result = compute(*values)
            else:
                result = compute(*values)
            arrays = values[:n_inputs]
            if single:
                ctx.save_for_backward(*pick_saved((*arrays, result)))
            else:
                ctx.save_for_backward(*pick_saved((*arrays, *result)))
                _several(ctx, values, result)
            if attributes:
                ctx.numbers = values[n_inputs : n_inputs + len(attributes)]
            return result

        @staticmethod
        def backward(ctx: Any, *d_outputs: Any) -> Any:
            if op.gradient_rule is None:
                raise GradientError(op.no_gradient)
            pattern = ctx.needs_input_grad
            needs = needs_of.get(pattern)
            if needs is None:
                needed = [f"d_{name}" for name, need in zip(inputs, pattern[1:], strict=False) if need]
                needs = needs_of[pattern] = tuple(needed)
            if not single:
                d_outputs = _filled(ctx, d_outputs)
            numbers = ctx.numbers if attributes else ()
            if words:
                numbers = _spelt(numbers)
            gradients = op.gradient_rule(
                *pick_arguments((*ctx.saved_tensors, *numbers, *d_outputs, needs))
            )
            if not isinstance(gradients, tuple):
                gradients = (gradients,)
            if len(gradients) != n_inputs - len(integers):
                text = f"{op.name}: the gradient rule gave {len(gradients)} gradients"
                raise TypeError(f"{text} for {n_inputs - len(integers)} inputs")
            for place in integers:
                gradients = (*gradients[:place], None, *gradients[place:])
            # Where an input was broadcast, PyTorch sums its gradient to its shape.
            return (None, *gradients, *rest)

    def _several(ctx: Any, values: Any, results: Any) -> None:
        ctx.mark_non_differentiable(*(results[bit] for bit in kept))
        # PyTorch would fill in zeros for all outputs; most of them nobody reads.
        ctx.set_materialize_grads(False)
        if asked:
            mask = values[-1] if op.signature.selective else -1
            made = all(mask >> bit & 1 for bit in asked)
            like = [(one.shape, one.dtype) for one in results] if made else describe(values)
            ctx.like = [like[bit] for bit in asked]
            ctx.device = results[0].device

    def _filled(ctx: Any, d_outputs: Any) -> list[Any]:
        filled = list(d_outputs)
        for bit, (shape, dtype) in zip(asked, ctx.like if asked else (), strict=True):
            if filled[bit] is None:
                filled[bit] = torch.zeros(shape, dtype=dtype, device=ctx.device)
        return filled

    def _spelt(numbers: Any) -> list[Any]:
        spelt = list(numbers)
        for i, choices in words:
            spelt[i] = choices[spelt[i]]
        return spelt

    Function.__name__ = Function.__qualname__ = f"{op.name}_function"
    return Function


def _picker(known: Sequence[str], wanted: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that picks from a tuple, ordered as `known`, what stands in `wanted`."""
    places = [known.index(name) for name in wanted]
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def autograd_kernel(handle: "Handle") -> Any:
    """The op's kernel for the Autograd dispatch key."""
    op, apply, redispatch = handle.op, handle.apply, handle.full.redispatch
    is_grad_enabled, below_autograd = torch.is_grad_enabled, torch._C._AutoDispatchBelowAutograd

    def kernel(keyset: Any, *values: Any) -> Any:
        def below(*inner: Any) -> Any:
            with below_autograd():
                return redispatch(keyset & _AFTER, *inner)

        needed = is_grad_enabled() and _any_requires_grad(*values)
        if _transforms_active():
            level = _functorch.peek_interpreter_stack()
            if level.key() == _functorch.TransformType.Jvp:
                raise GradientError(op.no_forward_mode)
            if not needed:
                return below(*values)
            before = _functorch.get_single_level_autograd_function_allowed()
            _functorch.set_single_level_autograd_function_allowed(True)
            try:
                return apply(below, *values)
            finally:
                _functorch.set_single_level_autograd_function_allowed(before)
        if forward_ad._current_level >= 0 and any(map(_is_dual, values)):
            raise GradientError(op.no_forward_mode)
        return apply(below, *values) if needed else below(*values)

    return kernel


def _is_dual(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None
