# SPDX-License-Identifier: Apache-2.0
"""One case: an op with arguments of one framework, dtype, layout and size, and what must hold."""

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.errors import RangeError
from nativeops.signature import ArraySpec, Solution
from nativeops.testing import aspects, claims, gradients
from nativeops.testing.arrays import Arrays, Placed, arrays_of, repeated
from nativeops.testing.compiled import CompiledOp
from nativeops.testing.draw import Lead, Values, arguments, numbers, rounded
from nativeops.testing.returned import FLOATS, results_of
from nativeops.testing.tolerance import (
    MOVES,
    UNIT,
    assert_close,
    assert_same,
    carried_over,
    moved,
    terms,
    tolerance,
)


@dataclass(frozen=True, eq=False)
class Case:
    """An op and a way to call it; `run` checks it, `str` names it."""

    op: Op[Any]
    framework: str
    device: str
    dtypes: Mapping[str, str]  # of the dtype variables
    sizes: Mapping[str, int]
    leads: tuple[Lead, ...]
    attributes: Mapping[str, Any]
    layout: str = "contiguous"
    group: str = ""  # why the case is there
    mode: str = "eager"  # or "compiled": inside a function that the framework compiles
    absent: tuple[str, ...] = ()  # the optional inputs that are left away
    seed: str = ""  # cases with the same one have the same numbers; by default each has its own

    def __str__(self) -> str:
        sizes = "".join(f"{name}{size}" for name, size in self.sizes.items())
        own = zip(self.leads, self.op.signature.inputs, strict=True)
        leads = [str(list(lead)).replace(" ", "") for lead, spec in own if spec.batch]
        lead = "".join(leads if len(set(leads)) > 1 else leads[:1])
        where = [self.framework, *(["compiled"] if self.mode == "compiled" else []), self.device]
        words = [self.op.name, *where, *self.dtypes.values()]
        words += [self.layout.replace(" ", "_"), f"{lead}{sizes}"]
        words += [f"no_{name}" for name in self.absent]
        return "-".join([*words, *(f"{name}={v}" for name, v in self.attributes.items())])

    @cached_property
    def arrays(self) -> Arrays:
        """Of this case's framework."""
        return arrays_of(self.framework, self.device)

    @cached_property
    def callable(self) -> Any:
        """The op, or a compiled function in its place."""
        return self.op if self.mode == "eager" else CompiledOp(self.op, self.arrays.compiled)

    @cached_property
    def values(self) -> Values:
        """The arguments in NumPy, with the numbers that the dtypes can hold."""
        random = np.random.default_rng(zlib.crc32((self.seed or str(self)).encode()))
        drawn = arguments(self.op, random, self.sizes, self.leads, self.attributes)
        for spec in self.inputs:
            numbers = rounded(np.asarray(drawn[spec.name]), self.dtype(spec))
            drawn[spec.name] = repeated(numbers, self.layout)
        return {**drawn, **dict.fromkeys(self.absent)}

    @cached_property
    def inputs(self) -> list[ArraySpec]:
        """Those that are given."""
        return [spec for spec in self.op.signature.inputs if spec.name not in self.absent]

    def dtype(self, spec: ArraySpec) -> str:
        """The dtype of one argument or result."""
        return spec.dtype(self.dtypes)

    @cached_property
    def placed(self) -> dict[str, Placed]:
        """The arrays of this case's framework."""
        return {
            spec.name: self.arrays.place(self.values[spec.name], self.dtype(spec), self.layout)
            for spec in self.inputs
        }

    @cached_property
    def given(self) -> Values:
        """The arguments as the op takes them."""
        given = {name: value for name, value in self.values.items() if name not in self.absent}
        return {**given, **{name: placed.array for name, placed in self.placed.items()}}

    @cached_property
    def reference(self) -> tuple[Any, ...]:
        """What the op's definition gives, in float64."""
        solution, signature = self.solution, self.op.signature
        shapes = [signature.output_shape(spec, solution) for spec in signature.outputs]
        return results_of(self.op, self.values, shapes)

    @property
    def solution(self) -> Solution:
        """What the inputs determine."""
        return Solution(self.known, self.lead, dict(self.dtypes))

    @cached_property
    def known(self) -> dict[str, int]:
        """The sizes of all names; what only absent inputs could tell is 0."""
        told = {axis.name for spec in self.inputs for axis in spec.axes}
        sizes = {name: size if name in told else 0 for name, size in self.sizes.items()}
        return {**sizes, **numbers(self.attributes)}

    @cached_property
    def lead(self) -> Lead:
        """The leading axes of the results."""
        pairs = zip(self.op.signature.inputs, self.leads, strict=True)
        return np.broadcast_shapes(*(lead for spec, lead in pairs if spec in self.inputs))

    def tolerance(self, spec: ArraySpec, reference: Any) -> Any:
        """How far an array may be from its reference."""
        n_terms = terms(self.op, spec, self.known, math.prod(self.lead))
        carried, order = bool(self.op.carries), float(self.known.get(self.op.logs, 1))
        given = self.attributes.items()
        coarse = max((u for chosen, u in self.op.rounding.items() if chosen in given), default=0.0)
        return tolerance(reference, self.dtype(spec), n_terms, carried, order, coarse)

    def results(self) -> list[tuple[ArraySpec, Any]]:
        """Call the op; the results that it makes."""
        result = self.callable(**self.given)
        outputs = tuple(result) if self.op.result else (result,)
        pairs = zip(self.op.signature.outputs, outputs, strict=True)
        return [(spec, output) for spec, output in pairs if not spec.kept]

    def check_values(self, results: list[tuple[ArraySpec, Any]], what: str = "") -> None:
        """Results have the declared shape and dtype and the reference's numbers."""
        for spec, array in results:
            name = f"{what}`{spec.name}`"
            assert self.arrays.dtype(array) == self.dtype(spec), f"{name} is {array.dtype}"
            self.check_close(spec, self.arrays.values(array), name)

    def check_close(self, spec: ArraySpec, found: Any, name: str) -> None:
        """A result is as near to the reference's as rounding allows."""
        place = self.op.signature.outputs.index(spec)
        expected = self.reference[place]
        allowed = self.tolerance(spec, expected)
        try:
            assert_close(found, expected, allowed, name)
        except AssertionError:
            if self.op.built_in or self.dtype(spec) not in UNIT:
                raise
            # A user's definition itself may make much of little, as exp(10 x) does.
            others = [results_of(self.op, values)[place] for values in self.moved_values]
            assert_close(found, expected, allowed + carried_over(expected, others), name)

    @property
    def moved_values(self) -> Iterator[Values]:
        """The arguments with floats that are rounded otherwise: all up, then each up or down."""
        floats = [spec for spec in self.inputs if spec.kind in FLOATS]
        for turn in range(MOVES):
            others = {s.name: moved(self.values[s.name], self.dtype(s), turn) for s in floats}
            yield {**self.values, **others}

    def check_same(self, first: list[tuple[ArraySpec, Any]], what: str) -> None:
        """A further call gives the same bits."""
        for (spec, before), (_, after) in zip(first, self.results(), strict=True):
            values = self.arrays.values
            assert_same(values(after), values(before), f"`{spec.name}` {what}")

    def check_inputs_unchanged(self) -> None:
        """No argument was written to, nor the memory between its elements."""
        for spec in self.inputs:
            fresh = self.arrays.place(self.values[spec.name], self.dtype(spec), self.layout)
            after = self.arrays.values(self.placed[spec.name].buffer)
            assert_same(after, self.arrays.values(fresh.buffer), f"the argument `{spec.name}`")

    def run(self) -> None:
        """Values, a second call, untouched inputs; gradient, threads, instruction sets, memory.

        Arrays are made for one run and gone after it: test runners keep cases to their end.
        """
        with self.scope():
            replace(self)._run()

    def scope(self) -> AbstractContextManager[Any]:
        """What must be set while arrays of this case are made and used."""
        specs = (*self.op.signature.inputs, *self.op.signature.outputs)
        return self.arrays.scope({self.dtype(spec) for spec in specs})

    def _run(self) -> None:
        try:
            first = self.results()
        except RangeError:
            if self.group == "together":  # an attribute may forbid some values of another
                return
            raise
        self.check_values(first)
        self.check_same(first, "of a second call")
        if self.framework == "numpy":
            aspects.check_threads(self, first)
            aspects.check_levels(self)
            aspects.check_out(self, first)
            claims.check_parts(self)
            claims.check_reuse(self, first)
        else:
            gradients.check_gradient(self)
        aspects.check_optional(self, first)
        self.check_inputs_unchanged()
