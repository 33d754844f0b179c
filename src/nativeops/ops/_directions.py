# SPDX-License-Identifier: Apache-2.0
"""A recurrent layer in both directions as one op, derived from the layer in one direction."""

import inspect
import sys
import typing
from collections.abc import Iterator
from dataclasses import replace
from textwrap import fill, indent
from typing import Any, NamedTuple

import numpy as np

from nativeops.call import Directions, Op
from nativeops.ops import _steps

_DOCUMENT = """{first}

{formula}

Args:
    {arguments}

Returns: {returns}
NaN: stays in its own sequence{but}.
Gradient: {gradient}.
Cost: twice that of `{one}`{cost}.
Same as: {same}``torch.nn.{kind}(.., bidirectional=True)``.
Source: Schuster & Paliwal 1997, Bidirectional recurrent neural networks.

>>> given = map(np.ones, [
{shapes}
... ])
>>> {name}(*given).{result}.shape
{shape}
"""
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
    texts = {"layer": layer.name, "kind": kind}
    both = _derived(name, directions, texts | {
        "first": f"One {kind} layer in both directions over a batch of sequences.",
        "formula": _FORMULA,
        "returns": "``output``, 0 beyond the end of a sequence, and the final states of both.",
        "but": "", "gradient": "for all float arguments", "cost": "", "same": "",
    })  # fmt: skip
    of_grad = Directions(grad, ("x", "lengths", "d_x"), ("output", "d_output"))
    both_grad = _derived(f"{name}_grad", of_grad, texts | {
        "first": f"What flows back through `{name}`.",
        "formula": _GRAD_FORMULA,
        "returns": "One gradient per argument; ``d_x`` is the sum over both directions.",
        "but": ", but for the gradients of weights and biases", "gradient": "none",
        "cost": ", and t·b·i numbers; the workspaces of both at once where each is a thread's",
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
    """The op that is another one in both directions."""
    one, module = directions.layer, directions.layer.reference.__module__
    parameters = [*_parameters(directions)]
    hints = typing.get_type_hints(one.result, include_extras=True)
    fields = [pair for field, hint in hints.items() for pair in _both(directions, field, hint)]
    result: Any = NamedTuple(_class_name(name), fields)  # type: ignore[misc]
    result.__module__ = module
    result.__doc__ = f"What `{name}` makes."
    setattr(sys.modules[module], result.__name__, result)  # where pickle looks for it

    def reference(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(reference).bind(*args, **kwargs)
        bound.apply_defaults()
        parts = [_half(directions, bound.arguments, second) for second in (False, True)]
        return result(*_joined(directions, [one.reference(**part) for part in parts]))

    made: Any = reference
    made.__name__ = made.__qualname__ = name
    made.__module__ = module
    made.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": result}
    made.__signature__ = inspect.Signature(parameters, return_annotation=result)
    op = _steps.layer_op(kernel=one.kernel.name, reuse=_reuse(directions))(reference)
    op.directions = directions
    made.__doc__ = _document(op, directions, texts)
    return op


def _class_name(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))


def _both(directions: Directions, array: str, declared: Any) -> Iterator[tuple[str, Any]]:
    """The names that an array of the layer has, with its declaration."""
    if array in directions.joined:
        *axes, last = declared.axes.split()
        declared = replace(declared, axes=" ".join([*axes, f"2*{last}"]))
    for name in dict.fromkeys(directions.names(array)):
        yield name, declared


def _parameters(directions: Directions) -> Iterator[inspect.Parameter]:
    reference = directions.layer.reference
    hints = typing.get_type_hints(reference, include_extras=True)
    for parameter in inspect.signature(reference).parameters.values():
        hint = hints[parameter.name]
        if parameter.kind is not parameter.KEYWORD_ONLY:
            for name, declared in _both(directions, parameter.name, hint):
                yield parameter.replace(name=name, annotation=declared)
        elif parameter.name != "reverse":
            yield parameter.replace(annotation=hint)


def _reuse(directions: Directions) -> dict[str, str]:
    one = directions.layer.signature
    return {
        result: given
        for spec in one.outputs
        if spec.reuse
        for result, given in zip(
            directions.names(spec.name), directions.names(spec.reuse), strict=True
        )
    }


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


def _joined(directions: Directions, parts: list[Any]) -> Iterator[Any]:
    """The results of both calls, as the op has them."""
    for field in parts[0]._fields:
        arrays = [getattr(part, field) for part in parts]
        if field in directions.joined:
            yield np.concatenate(arrays, axis=-1)
        elif field in directions.shared:
            yield arrays[0] + arrays[1]
        else:
            yield from arrays


def _document(op: Op[Any], directions: Directions, texts: dict[str, str]) -> str:
    one = directions.layer.name
    lines = []
    for parameter in inspect.signature(op.reference).parameters:
        own = parameter.removesuffix("_reverse")
        lines.append(
            f"{parameter}: As in `{one}`"
            + ", of both directions" * (parameter in directions.joined)
            + ", of the direction from the end" * (own != parameter)
            + "."
        )
    sizes = {name: 1 for spec in op.signature.inputs for axis in spec.axes for name in axis.names()}
    required = [spec for spec in op.signature.inputs if not spec.optional]
    shapes = [tuple(axis.evaluate(sizes) for axis in spec.axes) for spec in required]
    result = op.signature.outputs[0]
    return _DOCUMENT.format(
        **texts | {"formula": fill(texts["formula"].format(**texts), 100)},
        one=one,
        name=op.name,
        arguments="\n    ".join(lines),
        shapes=indent(fill(", ".join(map(str, shapes)), 88), "...     "),
        result=result.name,
        shape=tuple(axis.evaluate(sizes) for axis in result.axes),
    )
