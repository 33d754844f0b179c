# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer in both directions as one op, derived from the layer in one direction."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nativeops.call import Directions, Op
from nativeops.ops import _steps
from nativeops.ops._twice import derived, words

_FORMULA = """``output[t] = [{layer}(..)[t], {layer}(.., reverse=True)[t]]``, one behind the other;
``x`` and ``lengths`` are those of both, all other arguments and results exist twice, with
``_reverse`` for the direction from the end. On the CPU each direction is a thread's where a
step is too short to be shared by threads."""
_GRAD_FORMULA = """``d_x = d_x of {layer} + d_x of {layer}(.., reverse=True)``; all other gradients
exist twice, with ``_reverse`` for the direction from the end."""


def both_directions(layer: Op[Any], grad: Op[Any], kind: str) -> tuple[Op[Any], Op[Any]]:
    """A layer in both directions, and its gradient.

    Args:
        layer: A layer with the attribute ``reverse``.
        grad: The op of its gradient.
        kind: What PyTorch calls it.
    """
    name = f"bidirectional_{layer.name}"
    directions = Directions(layer, ("x", "lengths"), ("output",))
    texts = words(layer, kind, "bidirectional=True")
    texts["source"] = "Schuster & Paliwal 1997, Bidirectional recurrent neural networks."
    at_once = "the workspaces of both at once where each is a thread's"
    both = _derived(name, directions, texts | {
        "first": "One {what} layer in both directions over a batch of sequences.".format(**texts),
        "formula": _FORMULA,
        "returns": "``output``, 0 beyond the end of a sequence, and the final states of both.",
        "but": "", "gradient": "for all float arguments", "cost": at_once, "same": "",
    })  # fmt: skip
    of_grad = Directions(grad, ("x", "lengths", "d_x"), ("output", "d_output"))
    both_grad = _derived(f"{name}_grad", of_grad, texts | {
        "first": f"What flows back through `{name}`.",
        "formula": _GRAD_FORMULA,
        "returns": f"As `{grad.name}`, of both directions; ``d_x`` is their sum.",
        "but": ", but for the gradients of weights and biases", "gradient": "none",
        "cost": f"and t·b·i numbers; {at_once}",
        "same": "the gradient of ",
    })  # fmt: skip

    @both.example
    def _(random, given):  # type: ignore[no-untyped-def]
        assert layer.make_example is not None
        parts = [layer.make_example(random, given) for _ in range(2)]
        return {
            name: part[spec.name]
            for spec in layer.signature.inputs
            for name, part in zip(directions.names(spec.name), parts, strict=True)
        }

    _steps.connect(both, both_grad)
    return both, both_grad


def _derived(name: str, directions: Directions, texts: dict[str, str]) -> Op[Any]:
    def explain(parameter: str) -> str:
        but = ", of both directions" * (parameter in directions.joined)
        but += ", of the direction from the end" * parameter.endswith("_reverse")
        return f"As in `{directions.layer.name}`{but}."

    declare, compute = partial(_declared, directions), partial(_computed, directions)
    return derived(name, directions, declare, compute, texts, explain)


def _declared(directions: Directions, array: str, _place: int, declared: Any) -> Any:
    if array in directions.joined:
        *axes, last = declared.axes.split()
        return replace(declared, axes=" ".join([*axes, f"2*{last}"]))
    return None if array == "reverse" else declared


def _computed(directions: Directions, arguments: dict[str, Any]) -> dict[str, Any]:
    """The results of both calls, as the op has them."""
    one = directions.layer
    parts = [one.reference(**_half(directions, arguments, second)) for second in (False, True)]
    made: dict[str, Any] = {}
    for field in parts[0]._fields:
        arrays = [getattr(part, field) for part in parts]
        if field in directions.joined:
            made[field] = np.concatenate(arrays, axis=-1)
        elif field in directions.shared:
            made[field] = arrays[0] + arrays[1]
        else:
            made |= zip(directions.names(field), arrays, strict=True)
    return made


def _half(directions: Directions, arguments: dict[str, Any], second: bool) -> dict[str, Any]:
    """What one of both calls gets."""
    one = directions.layer.signature
    half = {spec.name: arguments.get(spec.name) for spec in one.attributes} | {"reverse": second}
    for spec in one.inputs:
        array = arguments[directions.names(spec.name)[second]]
        if spec.name in directions.joined:
            array = np.split(array, 2, axis=-1)[second]
        half[spec.name] = array
    return half
