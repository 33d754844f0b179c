# SPDX-License-Identifier: Apache-2.0
"""Ops that are derived from the op of one recurrent layer, whose kernel they call twice."""

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from textwrap import fill, indent
from typing import Any, NamedTuple

from nativeops.call import Directions, Op, TwoLayers
from nativeops.ops import _steps

_DOCUMENT = """{first}

{formula}

Args:
    {arguments}

Returns: {returns}
NaN: stays in its own sequence{but}.
Gradient: {gradient}.
{cost}
Same as: {same}``torch.nn.{kind}(.., {word})``.
Source: {source}

>>> given = map(np.ones, [
{shapes}
... ])
>>> {name}(*given).{result}.shape
{shape}
"""

# An array of the layer in one of both calls, as it is declared: from the layer's declaration of it.
Declare = Callable[[str, int, Any], Any]


def derived(
    name: str,
    twice: Directions | TwoLayers,
    declare: Declare,
    compute: Callable[[dict[str, Any]], Mapping[str, Any]],
    texts: dict[str, str],
    explain: Callable[[str], str],
) -> Op[Any]:
    """The op that calls a layer's kernel twice.

    Args:
        name: What it is called.
        twice: What it calls.
        declare: See `Declare`; None for what is no array of the op.
        compute: The results of all arguments, by name, with NumPy.
        texts: For its document.
        explain: What its document says of an argument.
    """
    one, module = twice.layer, twice.layer.reference.__module__
    parameters = [*_parameters(twice, declare)]
    hints = typing.get_type_hints(one.result, include_extras=True)
    fields: list[tuple[str, Any]] = [
        pair for each in hints for pair in _both(twice, declare, each, hints[each])
    ]
    fields.sort(key=lambda pair: pair[1].kept)  # what is kept comes last
    title = "".join(map(str.capitalize, name.split("_")))
    result: Any = NamedTuple(title, fields)  # type: ignore[misc]
    result.__module__ = module
    result.__doc__ = f"What `{name}` makes."
    setattr(sys.modules[module], title, result)  # where pickle looks for it

    def reference(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(reference).bind(*args, **kwargs)
        bound.apply_defaults()
        made = compute(bound.arguments)
        return result(**{field: made[field] for field, _ in fields})

    function: Any = reference
    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": result}
    function.__signature__ = inspect.Signature(parameters, return_annotation=result)
    op = _steps.layer_op(kernel=one.kernel.name, reuse=_reuse(twice))(reference)
    op.twice = twice
    function.__doc__ = _document(op, one.name, texts, explain)
    return op


def _both(
    twice: Directions | TwoLayers, declare: Declare, array: str, declared: Any
) -> Iterator[tuple[str, Any]]:
    """The names that an array of the layer has, with its declarations."""
    names = twice.names(array)
    for place in range(1 if names[0] == names[1] else 2):
        hint = declare(array, place, declared)
        if hint is not None:
            yield names[place], hint


def _parameters(twice: Directions | TwoLayers, declare: Declare) -> Iterator[inspect.Parameter]:
    reference = twice.layer.reference
    hints = typing.get_type_hints(reference, include_extras=True)
    seen: set[str] = set()
    for parameter in inspect.signature(reference).parameters.values():
        hint = hints[parameter.name]
        if parameter.kind is parameter.KEYWORD_ONLY:
            if declare(parameter.name, 0, hint) is not None:
                yield parameter.replace(annotation=hint)
            continue
        for name, declared in _both(twice, declare, parameter.name, hint):
            if name not in seen:
                yield parameter.replace(name=name, annotation=declared)
            seen.add(name)


def _reuse(twice: Directions | TwoLayers) -> dict[str, str]:
    one = twice.layer.signature
    return {
        result: given
        for spec in one.outputs
        if spec.reuse
        for result, given in zip(twice.names(spec.name), twice.names(spec.reuse), strict=True)
    }


def words(layer: Op[Any], kind: str, word: str) -> dict[str, str]:
    """What documents say of a layer that PyTorch calls `kind`; `word`: what makes it two."""
    width = width_of(layer)
    projected = width != "h"
    return {
        "layer": layer.name,
        "kind": kind,
        "what": f"projected {kind}" if projected else kind,
        "word": f"proj_size=.., {word}" if projected else word,
        "width": width,
    }


def width_of(layer: Op[Any]) -> str:
    """The size of a layer's outputs."""
    specs = (*layer.signature.inputs, *layer.signature.outputs)
    return str(next(spec for spec in specs if spec.name == "output").axes[-1])


def _document(op: Op[Any], one: str, texts: dict[str, str], explain: Callable[[str], str]) -> str:
    names = inspect.signature(op.reference).parameters
    lines = [f"{name}: {explain(name)}" for name in names]
    sizes = {name: 1 for spec in op.signature.inputs for axis in spec.axes for name in axis.names()}
    required = [spec for spec in op.signature.inputs if not spec.optional]
    shapes = [str(tuple(axis.evaluate(sizes) for axis in spec.axes)) for spec in required]
    whole = ", ".join(shape.replace(" ", "\0") for shape in shapes)  # no end of a line in a shape
    cost = f"Cost: twice that of `{one}`, {texts['cost']}.".format(**texts)
    result = op.signature.outputs[0]
    return _DOCUMENT.format(
        **texts
        | {
            "formula": fill(texts["formula"].format(**texts), 100),
            "cost": fill(cost, 100, subsequent_indent="    "),
        },
        name=op.name,
        arguments="\n    ".join(lines),
        shapes=indent(fill(whole, 88).replace("\0", " "), "...     "),
        result=result.name,
        shape=tuple(axis.evaluate(sizes) for axis in result.axes),
    )
