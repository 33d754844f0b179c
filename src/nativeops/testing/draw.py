# SPDX-License-Identifier: Apache-2.0
"""Drawing what an op takes: sizes of its named axes, values of its attributes, and arrays."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nativeops.attributes import AttributeSpec
from nativeops.call import Op
from nativeops.signature import ArraySpec
from nativeops.testing.returned import FLOATS, Shape, example

Lead = tuple[int, ...]  # the sizes of leading axes
Values = dict[str, Any]

BASE = (5, 3, 4, 2, 6)  # different sizes, so that no two axes can be confused
PALETTE = (0, 1, 2, 17, 33)  # nothing, one, and around the widths of vectors
MANY = (67, 130, 65, 35)  # enough work for several threads, no multiple of a block
LARGEST_INT32 = 2**31 - 1
MOST = 1 << 21  # numbers of an array
GROWN = tuple(1 << k for k in range(1, 13))  # times the first sizes, where those do not fit


def check_sizes(op: Op[Any]) -> None:
    """Refuse an op with a result of a size that nothing tells, as a call does."""
    if op.signature.unknown:
        op.signature.solve((), {})


def free_names(op: Op[Any]) -> list[str]:
    """The axes whose sizes a caller chooses: those that stand alone in an input."""
    attributes = {spec.name for spec in op.signature.attributes}
    names = {
        axis.name: None
        for spec in op.signature.inputs
        for axis in spec.axes
        if axis.name and axis.name not in attributes
    }
    return list(names)


def lead_name(op: Op[Any]) -> str:
    """The name of the leading axes that broadcast; empty if the op has none."""
    return next((spec.batch for spec in op.signature.inputs if spec.batch), "")


def fits(
    op: Op[Any], sizes: Mapping[str, int], attributes: Mapping[str, Any], least: int = 0
) -> bool:
    """Whether every axis would have a size, of `least` or more."""
    known = {**sizes, **numbers(attributes)}
    arrays = (*op.signature.inputs, *op.signature.outputs)
    try:
        return all(axis.evaluate(known) >= least for spec in arrays for axis in spec.axes)
    except ZeroDivisionError:
        return False


def numbers(attributes: Mapping[str, Any]) -> dict[str, int]:
    """The attributes that sizes may use."""
    return {name: int(v) for name, v in attributes.items() if isinstance(v, int)}


def base_sizes(op: Op[Any]) -> dict[str, int]:
    """A different small size for each axis; larger ones where a declaration asks for them."""
    return _grown(op, dict(zip(free_names(op), itertools.cycle(BASE), strict=False)))


def _grown(op: Op[Any], sizes: dict[str, int]) -> dict[str, int]:
    """The sizes if they fit, or else grown until they do: each axis alone, or all together.

    Preferred are those that leave no array empty. Sizes that nothing makes fit stay as they are.
    """
    attributes = defaults(op)
    if fits(op, sizes, attributes):
        return sizes
    chosen = [*([name] for name in sizes), list(sizes)]
    grown = [
        {**sizes, **{name: sizes[name] * times for name in names}}
        for times in GROWN
        for names in chosen
    ]
    small = [each for each in grown if _largest(op, each, attributes) <= MOST]
    fitting = (each for least in (1, 0) for each in small if fits(op, each, attributes, least))
    return next(fitting, sizes)


def large_sizes(op: Op[Any]) -> dict[str, int]:
    """Sizes whose work is spread over threads, and for which a reference still has the time."""
    sizes = dict(zip(free_names(op), itertools.cycle(MANY), strict=False))
    while _largest(op, sizes, defaults(op)) > MOST:
        sizes = {name: size * 3 // 4 for name, size in sizes.items()}
    return _grown(op, sizes)


def _largest(op: Op[Any], sizes: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
    """How many numbers the largest array has, leading axes apart."""
    if not fits(op, sizes, attributes):
        return 0
    known = {**sizes, **numbers(attributes)}
    arrays = (*op.signature.inputs, *op.signature.outputs)
    return max(math.prod([int(axis.evaluate(known)) for axis in s.axes]) for s in arrays)


def all_sizes(op: Op[Any], attributes: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Each axis with each size of the palette, alone and, for arrays not too large, with all."""
    base = base_sizes(op)
    drawn = [{**base, name: size} for name in base for size in _palette(op, base, name)]
    drawn += [dict.fromkeys(base, size) for size in PALETTE] if len(base) > 1 else []
    fitting = (sizes for sizes in drawn if fits(op, sizes, attributes))
    return (sizes for sizes in fitting if _largest(op, sizes, attributes) <= MOST)


def _palette(op: Op[Any], base: Mapping[str, int], name: str) -> list[int]:
    """The sizes to try of an axis: for one that had to grow also those from the first that fit."""
    if base[name] <= max(BASE):
        return list(PALETTE)
    full = _first(op, base, name, 1)
    return [*PALETTE, *dict.fromkeys([_first(op, base, name, 0), *(full + n for n in PALETTE)])]


def _first(op: Op[Any], base: Mapping[str, int], name: str, least: int) -> int:
    """The smallest size of an axis with which all axes have `least` or more."""
    sizes = ({**base, name: size} for size in range(base[name]))
    fitting = (each[name] for each in sizes if fits(op, each, defaults(op), least))
    return next(fitting, base[name])


def defaults(op: Op[Any]) -> Values:
    """The default of each attribute; a usual value where one is required."""
    return {spec.name: attribute_values(spec)[0] for spec in op.signature.attributes}


def all_attributes(op: Op[Any]) -> Iterator[Values]:
    """Each attribute with each of its values, the others with their defaults."""
    base = defaults(op)
    yield base
    for spec in op.signature.attributes:
        for value in _others(op, spec):
            yield {**base, spec.name: value}


def _others(op: Op[Any], spec: AttributeSpec) -> list[Any]:
    """The values of an attribute beside its default, without those that make arrays too large."""
    base, sizes = defaults(op), base_sizes(op)
    values = attribute_values(spec)[1:]
    return [v for v in values if _largest(op, sizes, {**base, spec.name: v}) <= MOST]


def mixed_attributes(op: Op[Any]) -> list[Values]:
    """Several attributes at once: each with the first of its other values, and with the last."""
    others = {spec.name: _others(op, spec) for spec in op.signature.attributes}
    others = {name: values for name, values in others.items() if values}
    if len(others) < 2:
        return []
    mixed = [{**defaults(op), **{n: v[turn] for n, v in others.items()}} for turn in (0, -1)]
    return [each for each in mixed if _largest(op, base_sizes(op), each) <= MOST]


def all_absent(op: Op[Any]) -> list[tuple[str, ...]]:
    """The optional inputs that are left away: each alone, and all together."""
    names = [spec.name for spec in op.signature.inputs if spec.optional]
    return [*((name,) for name in names), *([tuple(names)] if len(names) > 1 else [])]


def all_told(op: Op[Any], absent: Sequence[str]) -> bool:
    """Whether the other inputs tell the size of every result."""
    told = {spec.name for spec in op.signature.attributes if spec.type in (int, bool)}
    told |= {a.name for s in op.signature.inputs if s.name not in absent for a in s.axes if a.name}
    outputs = [s for bit, s in enumerate(op.signature.outputs) if op.signature.certain >> bit & 1]
    return all(axis.names() <= told for spec in outputs for axis in spec.axes)


def attribute_values(spec: AttributeSpec) -> list[Any]:
    """Values to try, the default first."""
    if spec.choices:
        values: list[Any] = list(spec.choices)
    elif spec.type is bool:
        values = [False, True]
    elif spec.type is int:
        least = 1 if math.isinf(spec.low) else int(spec.low)
        values = [least, least + 1, least + 2, *([0, -1] if math.isinf(spec.low) else [])]
        values += [int(spec.high)] if spec.high < LARGEST_INT32 else []  # else that is the bound
    else:
        low = 0.5 if math.isinf(spec.low) else spec.low
        values = [low, low + 0.5, low + 2.0, *([0.0, -0.75] if math.isinf(spec.low) else [])]
        values += [] if math.isinf(spec.high) else [spec.high]
    values = [spec.type(v) for v in values if spec.choices or spec.low <= v <= spec.high]
    # A required number may be a size, of which the smallest shows least.
    first = values[2:3] if spec.required and spec.type is int else [spec.default][spec.required :]
    return list(dict.fromkeys([*first, *values]))


def arguments(
    op: Op[Any],
    random: np.random.Generator,
    sizes: Mapping[str, int] | None = None,
    leads: Sequence[Lead] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Values:
    """Valid arguments by name, as NumPy arrays of float64, int64, uint8 and bool.

    Args:
        op: The op. Its own example makes the arrays if it declares one.
        random: Where the numbers come from.
        sizes: Of the named axes; small ones if not given.
        leads: The leading axes of each input; none if not given.
        attributes: By name; defaults if not given.
    """
    sizes = base_sizes(op) if sizes is None else sizes
    attributes = defaults(op) if attributes is None else attributes
    specs = op.signature.inputs
    leads = [()] * len(specs) if leads is None else leads
    if op.make_example:
        return {**attributes, **_from_example(op, random, sizes, leads, attributes)}
    shapes = _own_shapes(op, sizes, attributes)
    arrays = {
        spec.name: _draw(spec, random, (*lead, *shape))
        for spec, lead, shape in zip(specs, leads, shapes, strict=True)
    }
    return {**arrays, **attributes}


def _own_shapes(
    op: Op[Any], sizes: Mapping[str, int], attributes: Mapping[str, Any]
) -> list[Shape]:
    """The shape of each input, leading axes apart."""
    known = {**sizes, **numbers(attributes)}
    return [tuple(axis.evaluate(known) for axis in spec.axes) for spec in op.signature.inputs]


def _from_example(
    op: Op[Any],
    random: np.random.Generator,
    sizes: Mapping[str, int],
    leads: Sequence[Lead],
    attributes: Mapping[str, Any],
) -> Values:
    """What the op's example makes; where inputs have unlike leading axes, one item repeated."""
    name, specs = lead_name(op), op.signature.inputs
    own = [lead for spec, lead in zip(specs, leads, strict=True) if spec.batch]
    alike = len(set(own)) <= 1
    lead = own[0] if own and alike else ()
    given = {**sizes, **attributes, **({name: lead} if name else {})}
    shapes = {
        spec.name: (*(lead if spec.batch else ()), *shape)
        for spec, shape in zip(specs, _own_shapes(op, sizes, attributes), strict=True)
    }
    made = example(op, random, given, shapes)
    if not alike:
        for spec, lead in zip(specs, leads, strict=True):
            item = np.asarray(made[spec.name])
            made[spec.name] = np.broadcast_to(item, (*lead, *item.shape)).copy()
    return made


def _draw(spec: ArraySpec, random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    if spec.kind in FLOATS:
        return random.standard_normal(shape)
    if spec.kind == "Bool":
        return random.random(shape) < 0.5
    if spec.kind == "Uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.integers(-1, 4, shape)


def rounded(values: Any, dtype: str) -> Any:
    """The numbers as the dtype holds them, in float64 where they are floating point."""
    if dtype == "bfloat16":
        bits = np.asarray(values, np.float32).view(np.uint32).astype(np.int64)
        upper = bits + (0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return upper.astype(np.uint32).view(np.float32).astype(np.float64)
    held = np.asarray(values).astype(dtype)
    return held.astype(np.float64) if held.dtype.kind == "f" else held
