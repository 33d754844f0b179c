# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments for an op, and what the error must say, from the declaration."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nativeops.attributes import AttributeSpec
from nativeops.call import Op
from nativeops.errors import (
    ArgumentError,
    DtypeError,
    NativeOpsError,
    RangeError,
    ShapeError,
    called,
)
from nativeops.signature import VARIABLES, ArraySpec, is_integer
from nativeops.testing.arrays import arrays_of
from nativeops.testing.compiled import CompiledOp, said_in
from nativeops.testing.draw import Values, arguments, lead_name

# Tried where an op wants other dtypes.
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "bool", "float16")


@dataclass(frozen=True, eq=False)
class Mistake:
    """Arguments with one thing wrong."""

    op: Op[Any]
    what: str
    error: type[NativeOpsError]
    words: tuple[str, ...]  # that the text must have
    values: Values = field(repr=False)
    dtypes: Mapping[str, str] = field(repr=False)  # of the arrays, by name
    of_arrays: bool = True  # shapes or dtypes are wrong, all else fits
    plain: bool = True  # the first of its kind

    def __str__(self) -> str:
        return f"{self.op.name}: {self.what}"

    def text(self, framework: str, mode: str = "eager") -> str:
        """What the error says in a framework; it is of the right class, compilers' own apart."""
        arrays = arrays_of(framework, "cpu")
        raised: Exception | None = None
        # Infinity may become an integer: only the dtype matters.
        with arrays.scope(set(self.dtypes.values())), np.errstate(invalid="ignore"):
            given = dict(self.values)
            for name, dtype in self.dtypes.items():
                given[name] = arrays.place(given[name], dtype).array
            call: Any = self.op if mode == "eager" else CompiledOp(self.op, arrays.compiled)
            try:
                call(**given)
            except Exception as error:
                raised = error
        where = f"{self}: in {framework}: {type(raised).__name__}: {raised}"
        assert raised is not None if mode == "compiled" else type(raised) is self.error, where
        return str(raised)

    def run(self, frameworks: Sequence[str], mode: str = "eager") -> None:
        """The text names op, argument, axis and values, and is the same in all frameworks."""
        first = self.text(frameworks[0])
        for framework in frameworks:
            said = self.text(framework, mode)
            assert said_in(said, first, mode), (
                f"{self}: {framework} says\n{said}\ninstead of\n{first}"
            )
        assert first.startswith(f"{called(self.op.name)}: "), first
        headline = first.partition("\n")[0]
        for word in self.words:
            assert word in headline, f"{self}: `{word}` is not in: {headline}"


def mistakes(op: Op[Any]) -> Iterator[Mistake]:
    """All kinds of wrong arguments that the declaration lets us make."""
    good = arguments(op, np.random.default_rng(0))
    dtypes = {spec.name: spec.dtypes[0] for spec in op.signature.inputs}

    of_arrays = (_ranks, _sizes, _leads, _dtypes, _mixed_dtypes, _narrow_sums, _without_optional)
    for maker in (*of_arrays, _attributes, _no_sizes, _no_arrays):
        for number, (what, error, words, changes) in enumerate(maker(op, good)):
            values = {**good, **changes}
            own = {**dtypes, **values.pop("dtype", {})}
            arrays = {n: dtype for n, dtype in own.items() if isinstance(values[n], np.ndarray)}
            kind = (maker in of_arrays, number == 0)
            yield Mistake(op, what, error, tuple(words), values, arrays, *kind)


Description = tuple[str, type[NativeOpsError], Sequence[str], dict[str, Any]]


def _count(n: int) -> str:
    return f"{n} axis" if n == 1 else f"{n} axes"


def _ranks(op: Op[Any], good: Values) -> Iterator[Description]:
    for spec in op.signature.inputs:
        array, rank = good[spec.name], len(spec.axes)
        if rank:
            words = [f"`{spec.name}`", _count(rank), _count(rank - 1)]
            yield f"`{spec.name}` lacks an axis", ShapeError, words, {spec.name: array[..., 0]}
        if not spec.batch:
            words = [f"`{spec.name}`", _count(rank), _count(rank + 1)]
            yield f"`{spec.name}` has an axis more", ShapeError, words, {spec.name: array[None]}


def _longer(array: Any, axis: int) -> Any:
    """The array with its last element along an axis doubled."""
    return np.concatenate([array, np.take(array, [-1], axis)], axis)


def _sizes(op: Op[Any], good: Values) -> Iterator[Description]:
    seen: dict[str, str] = {}
    for spec in op.signature.inputs:
        for position, axis in enumerate(spec.axes):
            array = good[spec.name]
            at = array.ndim - len(spec.axes) + position
            size, name = array.shape[at], axis.name
            if name is not None and name not in seen:
                seen[name] = spec.name
                continue
            words = [f"`{spec.name}`", f"`{axis}`", str(size), str(size + 1)]
            # A size that an attribute tells is compared with that.
            told = {attribute.name for attribute in op.signature.attributes}
            words += [f"`{seen[name]}`"] if name and name not in told else []
            changed = {spec.name: _longer(array, at)}
            yield f"axis `{axis}` of `{spec.name}` is longer", ShapeError, words, changed


def _leads(op: Op[Any], good: Values) -> Iterator[Description]:
    batched = [spec for spec in op.signature.inputs if spec.batch]
    for spec in batched[1:]:
        first = batched[0].name
        changes = {
            s.name: np.broadcast_to(good[s.name], (2 if s is spec else 3, *good[s.name].shape))
            for s in batched
        }
        words = [f"`*{lead_name(op)}`", f"`{first}`", f"`{spec.name}`", "[3]", "[2]"]
        yield f"leading axes of `{spec.name}` do not broadcast", ShapeError, words, changes


def _dtypes(op: Op[Any], good: Values) -> Iterator[Description]:
    for spec in op.signature.inputs:
        for dtype in DTYPES:
            if dtype not in spec.dtypes and not (spec.lengths and is_integer(dtype)):
                words = [f"`{spec.name}`", dtype, *spec.dtypes]
                changes = {"dtype": {spec.name: dtype}}
                yield f"`{spec.name}` is {dtype}", DtypeError, words, changes


def _mixed_dtypes(op: Op[Any], good: Values) -> Iterator[Description]:
    for kind, dtypes in VARIABLES.items():
        alike: list[ArraySpec] = [spec for spec in op.signature.inputs if spec.kind == kind]
        for spec in alike[1:]:
            words = [f"`{alike[0].name}`", dtypes[0], f"`{spec.name}`", dtypes[1]]
            what = f"`{spec.name}` is of another dtype than `{alike[0].name}`"
            yield what, DtypeError, words, {"dtype": {spec.name: dtypes[1]}}


def _narrow_sums(op: Op[Any], good: Values) -> Iterator[Description]:
    """Sums that are not of the dtype that goes with the floats': all others are float32."""
    for spec in op.signature.inputs:
        if spec.kind == "Accum":
            words = [f"`{spec.name}`", "float32", "float64"]
            what = f"`{spec.name}` is wider than sums of the others"
            changes = {s.name: "float64" for s in op.signature.inputs if s.kind == "Accum"}
            yield what, DtypeError, words, {"dtype": changes}
            break


def _without_optional(op: Op[Any], good: Values) -> Iterator[Description]:
    """The same mistakes in required inputs while all others are absent."""
    nothing = {spec.name: None for spec in op.signature.inputs if spec.optional}
    required = {spec.name for spec in op.signature.inputs} - nothing.keys()
    for maker in (_ranks, _sizes, _dtypes) if nothing else ():
        for what, error, words, changes in maker(op, good):
            if {*changes, *changes.get("dtype", {})} <= {*required, "dtype"}:
                yield f"{what}, and no optional input", error, words, {**changes, **nothing}
                break


def _attributes(op: Op[Any], good: Values) -> Iterator[Description]:
    for spec in op.signature.attributes:
        for value, error in _bad_values(spec):
            words = [f"`{spec.name}`", repr(value)]
            yield f"`{spec.name}` is {value!r}", error, words, {spec.name: value}
    words = ["unexpected", "'nobody_has_this'"]
    yield "an unknown keyword", ArgumentError, words, {"nobody_has_this": 1}


def _no_sizes(op: Op[Any], good: Values) -> Iterator[Description]:
    """A number below 0 for an attribute that is the size of a result, and of no input."""
    taken = {name for spec in op.signature.inputs for axis in spec.axes for name in axis.names()}
    sizes = {axis.name for spec in op.signature.outputs for axis in spec.axes} - taken
    for spec in op.signature.attributes:
        if spec.type is int and spec.low < 0 and spec.name in sizes:
            words = [f"axis `{spec.name}` of the result", "-1"]
            yield f"the size `{spec.name}` is -1", ShapeError, words, {spec.name: -1}


def _bad_values(spec: AttributeSpec) -> Iterator[tuple[Any, type[NativeOpsError]]]:
    if spec.choices:
        yield "nobody chooses this", RangeError
        return
    yield "word", DtypeError
    yield None, DtypeError
    if spec.type is int:
        yield 1.5, DtypeError
    if spec.type is float:
        yield math.nan, RangeError
    if spec.type is not bool:
        yield True, DtypeError
        if not math.isinf(spec.low):
            yield spec.type(spec.low - 1), RangeError
        if not math.isinf(spec.high):
            yield spec.type(spec.high + 1), RangeError


def _no_arrays(op: Op[Any], good: Values) -> Iterator[Description]:
    if len(op.signature.inputs) > 1:
        for spec in op.signature.inputs:
            words = [f"`{spec.name}`", "list"]
            yield f"`{spec.name}` is a list", ArgumentError, words, {spec.name: [[1.0]]}
