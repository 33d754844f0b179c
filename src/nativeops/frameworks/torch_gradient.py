# SPDX-License-Identifier: Apache-2.0
"""The autograd function of any op in PyTorch: what it keeps, how it applies the gradient rule."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from nativeops.call import Op
from nativeops.errors import GradientError
from nativeops.frameworks.rule import apart, check_gradients
from nativeops.frameworks.torch_absent import are_large, for_absent, note_absent, zeros
from nativeops.frameworks.torch_keep import (
    applier,
    forward_of_arrays,
    kept_with,
    picker,
    without_unread,
)
from nativeops.signature import VARIABLES

_FLOATS, _SEVERAL = VARIABLES["Float"], (tuple, list)


class Function:
    """The autograd function of an op: ``apply(compute, *values in the order of the schema)``.

    All that does not depend on the values is worked out here, once: what to keep is picked by
    position, and so are the arguments of the gradient rule.
    """

    def __init__(self, op: Op[Any], describe: Callable[..., Sequence[Any]]) -> None:
        signature = op.signature
        inputs, outputs, attributes = (
            [spec.name for spec in specs]
            for specs in (signature.inputs, signature.outputs, signature.attributes)
        )
        self.op, self.describe, self.inputs = op, describe, inputs
        self.optional = [*enumerate(signature.inputs)][signature.required :]
        self.n_inputs, self.n_attributes = len(inputs), len(attributes)
        self.single = len(outputs) == 1
        self.selective = signature.selective
        self.stops = [(bit, s.name) for bit, s in enumerate(signature.outputs) if op.stops_at(s)]
        # What the rule reads must be made, though nobody else may want it.
        self.read_mask = sum(
            1 << bit
            for bit, spec in enumerate(signature.outputs)
            if spec.kept or (spec.optional and spec.name in op.gradient_names)
        )
        saved = [name for name in op.gradient_names if name in inputs or name in outputs]
        self.pick_saved = picker([*inputs, *outputs], saved)
        self.kept_with = kept_with(op, saved)
        known = [*saved, *attributes, *(f"d_{name}" for name in outputs), "needs"]
        self.pick_arguments = picker(known, op.gradient_names)
        self.words = [(i, a.choices) for i, a in enumerate(signature.attributes) if a.choices]
        self.asked = [i for i, name in enumerate(outputs) if f"d_{name}" in op.gradient_names]
        # PyTorch would fill in zeros for all outputs: most of them often nobody reads, and of those
        # that were not made it knows no size.
        few = len(self.asked) < len(outputs)
        self.fills = not self.single and (few or bool(self.stops) or self.selective)
        self.floats = [i for i, s in enumerate(signature.inputs) if s.dtypes[0] in _FLOATS]
        self.rest = (None,) * (len(attributes) + self.selective)
        self.needs: dict[Any, tuple[str, ...]] = {}  # of what occurred
        forward = self.forward
        if self.single and not (self.read_mask or self.optional or self.rest):
            forward = forward_of_arrays(self.pick_saved)

        def backward(ctx: Any, *d_outputs: Any) -> Any:  # a bound method would not get the node
            return self.backward(ctx, *d_outputs)

        self.apply: Callable[..., Any] = applier(op.name, forward, backward)

    def forward(self, ctx: Any, compute: Any, *values: Any) -> Any:
        """Compute, and keep what the gradient rule asks for."""
        if self.read_mask:
            values = (*values[:-1], values[-1] | self.read_mask)
        result = compute(*values)
        arrays = values[: self.n_inputs]
        if self.optional:
            arrays = note_absent(ctx, arrays, self.optional)
        saved = self.pick_saved((*arrays, result) if self.single else (*arrays, *result))
        if self.kept_with:
            saved = without_unread(saved, values, self.kept_with)
        ctx.to_save = saved  # as `save_for_backward` does
        if self.fills or (not self.single and are_large(result)):
            self._note_outputs(ctx, values, result)
        if self.n_attributes:
            ctx.numbers = values[self.n_inputs : self.n_inputs + self.n_attributes]
        return result

    def backward(self, ctx: Any, *d_outputs: Any) -> Any:
        """Apply the gradient rule to what was kept and to what arrives."""
        op = self.op
        if op.gradient_rule is None:
            raise GradientError(op.no_gradient)
        pattern, saved = ctx.needs_input_grad, ctx.saved_tensors
        absent = ctx.absent if self.optional else ()
        needs = self.needs.get((pattern, absent))
        if needs is None:
            wanted = [i for i, p in enumerate(pattern[1 : self.n_inputs + 1]) if p]
            needed = (f"d_{self.inputs[i]}" for i in wanted if i not in absent)
            needs = self.needs[pattern, absent] = tuple(needed)
        if self.fills or (not self.single and any(each is None for each in d_outputs)):
            for bit, name in self.stops:
                if d_outputs[bit] is not None:
                    raise GradientError(op.not_through(name))
            d_outputs = tuple(self._filled(ctx, d_outputs))
        numbers = self._spelt(ctx.numbers) if self.n_attributes else ()
        known = (*saved, *numbers, *d_outputs, needs)
        gradients = op.gradient_rule(*self.pick_arguments(known))
        if not isinstance(gradients, _SEVERAL):
            gradients = (gradients,)
        check_gradients(op.name, gradients, len(self.floats))
        found: list[Any] = [None] * self.n_inputs
        # Who gets two of them may change one in place.
        for place, gradient in zip(self.floats, apart(gradients, torch.clone), strict=True):
            found[place] = gradient
        if absent:
            for_absent(found, ctx, op.signature.inputs)
        # Where an input was broadcast, PyTorch sums its gradient to its shape.
        return (None, *found, *self.rest)

    def _note_outputs(self, ctx: Any, values: Any, results: Any) -> None:
        ctx.set_materialize_grads(False)
        if self.asked:
            mask = values[-1] if self.selective else -1
            made = all(mask >> bit & 1 for bit in self.asked)
            like = None if made else self.describe(values)
            ctx.like = [
                like[bit] if like else (results[bit].shape, results[bit].dtype)
                for bit in self.asked
            ]
            ctx.device = results[0].device

    def _filled(self, ctx: Any, d_outputs: Any) -> list[Any]:
        filled = list(d_outputs)
        for place, bit in enumerate(self.asked):
            if filled[bit] is None:
                shape, dtype = ctx.like[place]
                filled[bit] = zeros(shape, dtype, ctx.device)
        return filled

    def _spelt(self, numbers: Any) -> Any:
        if self.words:
            numbers = list(numbers)
            for i, choices in self.words:
                numbers[i] = choices[numbers[i]]
        return numbers
