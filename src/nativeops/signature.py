# SPDX-License-Identifier: Apache-2.0
"""What an op takes and returns: named axes and dtypes; solving them, and explaining a mismatch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from nativeops.attributes import AttributeSpec
from nativeops.errors import DtypeError, Given, ReplaceableError, ShapeError, message
from nativeops.sizes import Size, parse

# Per kind of array the dtypes it may have. `Float` and `Int` are variables: all arrays of that
# kind in one call have the same dtype, and a kernel is compiled for each.
VARIABLES = {
    "Float": ("float32", "float64", "bfloat16", "float16"),
    "Int": ("int32", "int64"),
}
# `Accum` is what sums of the floats are taken in, as in a kernel: float64 for float64.
ACCUM = {dtype: "float64" if dtype == "float64" else "float32" for dtype in VARIABLES["Float"]}
# What may stand for an absent input in JAX, which has no 64-bit numbers by default.
_OF_ABSENT = {("Float64", "float32"), ("Int64", "int32"), ("Accum", "float32")}
MAX_RANK = 16  # of any array (devices/abi.h: NATIVEOPS_MAX_RANK)
# What the core has room for (devices/abi.h, bindings/core.h): arrays, results, attributes, named
# sizes, and numbers on the stack of an axis' arithmetic.
MAX_ARRAYS, MAX_RESULTS, MAX_ATTRIBUTES, MAX_SIZES, MAX_STACK = 48, 32, 16, 48, 16
FIXED = ("float32", "float64", "int32", "int64", "uint8", "bool")
KINDS = {**VARIABLES, "Accum": ("float32", "float64")} | {
    "Bool" if d == "bool" else d.capitalize(): (d,) for d in FIXED
}


@dataclass(frozen=True)
class ArraySpec:
    """One declared array: ``Float[*b n d]``."""

    name: str
    kind: str
    axes: tuple[Size, ...]
    batch: str = ""  # the name of the leading axes that broadcast, without the star
    kept: bool = False  # an output only for the gradient: hidden, made only when needed
    optional: bool = False  # an output that a caller may leave out, an input that may be None
    reuse: str = ""  # the input whose memory an output may take over
    lengths: bool = False  # an input of int32 that may be given as any integers

    def __str__(self) -> str:
        return f"{self.kind}[{' '.join(self.axis_words)}]"

    @property
    def axis_words(self) -> list[str]:
        """The axes as written."""
        return [f"*{self.batch}"] * bool(self.batch) + [str(axis) for axis in self.axes]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that the array may have."""
        return KINDS[self.kind]

    def dtype(self, chosen: Mapping[str, str]) -> str:
        """The dtype that the array has where the dtype variables have these."""
        if self.kind == "Accum":
            return ACCUM[chosen["Float"]]
        return chosen.get(self.kind) or self.dtypes[0]

    @property
    def declared(self) -> str:
        """An input as its declaration has it."""
        return f"{self} | None" if self.optional else str(self)

    def is_absent(self, shape: Sequence[Any]) -> bool:
        """Whether an array of this shape stands for an optional input that was not given.

        Its named axes are all empty, and it has no leading ones. Symbolic sizes are not looked at.
        """
        if not self.optional or len(shape) != len(self.axes):
            return False
        for size in shape:  # noqa: SIM110  every call asks, and a generator takes longer
            if not isinstance(size, int) or size:
                return False
        return True

    @property
    def nothing(self) -> Given:
        """An optional input that was not given."""
        return self.given("", (0,) * len(self.axes))

    def given(self, dtype: str, shape: Sequence[Any]) -> Given:
        """An array that was given for this input."""
        return Given(self.name, dtype, tuple(shape), self.declared, self.is_absent(shape))


def is_integer(dtype: str) -> bool:
    """Whether a dtype of this name, of any framework, has integers."""
    return dtype.startswith(("int", "uint"))


def array_spec(name: str, kind: str, axes: str, **flags: Any) -> ArraySpec:
    """Read ``"*b n d"`` into a specification."""
    words = axes.split()
    batch = words.pop(0)[1:] if words and words[0].startswith("*") else ""
    if axes.split() != words and not batch:
        raise ValueError(f"`{name}`: the leading axes of `{axes}` need a name, such as `*b`")
    if any(word.startswith("*") for word in words):
        raise ValueError(f"`{name}`: only the first axis of `{axes}` may have a star")
    try:
        return ArraySpec(name, kind, tuple(parse(word) for word in words), batch, **flags)
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from error


class Solution(NamedTuple):
    """What the inputs of one call determine."""

    sizes: dict[str, Any]
    batch: tuple[Any, ...]
    dtypes: dict[str, str]  # of the kinds that are variables


@dataclass(frozen=True)
class Signature:
    """The whole declaration of an op's arguments and results."""

    op: str
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    attributes: tuple[AttributeSpec, ...] = ()

    def __str__(self) -> str:
        takes = [f"{s.name}: {s.declared}" + " = None" * s.optional for s in self.inputs]
        takes += ["*"] * bool(self.attributes) + [str(spec) for spec in self.attributes]
        gives = [f"{spec.name}: {spec}" + " kept" * spec.kept for spec in self.outputs]
        result = str(self.outputs[0]) if len(gives) == 1 else f"({', '.join(gives)})"
        return f"{self.op}({', '.join(takes)}) -> {result}"

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The kinds that are dtype variables of this op, in the order of its kernel's template."""
        kinds = {spec.kind for spec in self.inputs}
        return tuple(kind for kind in VARIABLES if kind in kinds)

    @cached_property
    def integer_inputs(self) -> tuple[tuple[int, ArraySpec], ...]:
        """Inputs of integers with their places: those for which a list will do, too."""
        numbered = enumerate(self.inputs)
        return tuple((i, spec) for i, spec in numbered if spec.dtypes[0] in ("int32", "int64"))

    @cached_property
    def required(self) -> int:
        """The number of inputs that must be given; the others follow them."""
        return sum(not spec.optional for spec in self.inputs)

    @cached_property
    def certain(self) -> int:
        """The outputs that every call makes, as a bit mask."""
        made = (not (spec.kept or spec.optional) for spec in self.outputs)
        return sum(each << bit for bit, each in enumerate(made))

    @cached_property
    def selective(self) -> bool:
        """Whether some outputs are made only on demand."""
        return any(spec.kept or spec.optional for spec in self.outputs)

    @cached_property
    def unknown(self) -> str:
        """An axis of an output whose size nothing determines; empty if all is well."""
        known = {name for spec in self.inputs for axis in spec.axes for name in axis.names()}
        known |= {spec.name for spec in self.attributes if spec.type in (int, bool)}
        needed = {name for spec in self.outputs for axis in spec.axes for name in axis.names()}
        return min(needed - known, default="")

    def solve(self, given: Sequence[Given], attributes: Mapping[str, Any]) -> Solution:
        """Match the arrays with the declaration, or raise an error that explains the mismatch."""
        if self.unknown:
            hint = f'declare it with `@{self.op}.axis("{self.unknown}")`.'
            raise ShapeError(
                message(self.op, f"nothing tells the size `{self.unknown}`.", hint=hint)
            )
        dtypes = self._solve_dtypes(given)
        batch = self._solve_batch(given)
        sizes: dict[str, Any] = {
            a.name: attributes[a.name] for a in self.attributes if a.type in (int, bool)
        }
        origin: dict[str, str] = {}
        for spec, array in self._present(given):
            for axis, size in zip(spec.axes, self._own_axes(spec, array), strict=True):
                if axis.name is None:
                    continue
                if axis.name not in sizes:
                    sizes[axis.name], origin[axis.name] = size, spec.name
                elif sizes[axis.name] != size:
                    self._fail_size(given, array, axis.name, size, sizes, origin)
        if any(array.absent for array in given):
            self._fill_absent(given, sizes)
        self._check_arithmetic(given, sizes, batch)
        return Solution(sizes, batch, dtypes)

    def names(self) -> list[str]:
        """The name of the op, and those of all its arguments and results."""
        arrays = (*self.inputs, *self.outputs)
        return [self.op, *(s.name for s in arrays), *(s.name for s in self.attributes)]

    def check_limits(self) -> None:
        """Refuse, in a declaration, what the core has no room for."""
        axes = [axis for spec in (*self.inputs, *self.outputs) for axis in spec.axes]
        numbers = {spec.name for spec in self.attributes if spec.type in (int, bool)}
        named = numbers.union(*(axis.names() for axis in axes))
        deepest = max(axes, key=lambda axis: axis.room, default=None)
        for what, count, most in (
            ("arrays", len(self.inputs) + len(self.outputs), MAX_ARRAYS),
            ("results", len(self.outputs), MAX_RESULTS),
            ("attributes", len(self.attributes), MAX_ATTRIBUTES),
            ("names of sizes", len(named), MAX_SIZES),
            (f"numbers at a time in `{deepest}`", deepest.room if deepest else 0, MAX_STACK),
        ):
            if count > most:
                raise TypeError(f"{self.op}: {count} {what}, but at most {most} are possible")

    def output_shape(self, spec: ArraySpec, solution: Solution) -> tuple[Any, ...]:
        """The shape of one output."""
        lead = solution.batch if spec.batch else ()
        return (*lead, *(axis.evaluate(solution.sizes) for axis in spec.axes))

    def output_dtype(self, spec: ArraySpec, solution: Solution) -> str:
        """The dtype of one output."""
        return spec.dtype(solution.dtypes)

    def _present(self, given: Sequence[Given]) -> list[tuple[ArraySpec, Given]]:
        """The inputs that were given, with their declarations."""
        pairs = zip(self.inputs, given, strict=True)
        return [(spec, array) for spec, array in pairs if not array.absent]

    def _fill_absent(self, given: Sequence[Given], sizes: dict[str, Any]) -> None:
        """A size that only absent inputs could tell is 0, unless a certain result has it."""
        for bit, output in enumerate(self.outputs):
            for name in sorted({n for axis in output.axes for n in axis.names()} - sizes.keys()):
                if self.certain >> bit & 1:
                    tell = [s.name for s in self.inputs if name in {a.name for a in s.axes}]
                    text = f"nothing tells the size `{name}` of the result."
                    raise ShapeError(message(self.op, text, given, f"give {_either_code(tell)}."))
        for spec in (*self.inputs, *self.outputs):
            for axis in spec.axes:
                sizes.update(dict.fromkeys(axis.names() - sizes.keys(), 0))

    def _own_axes(self, spec: ArraySpec, array: Given) -> tuple[Any, ...]:
        return array.shape[len(array.shape) - len(spec.axes) :] if spec.axes else ()

    def _solve_dtypes(self, given: Sequence[Given]) -> dict[str, str]:
        chosen: dict[str, tuple[str, str]] = {}
        for spec, array in zip(self.inputs, given, strict=True):
            if not array.dtype or (array.absent and (spec.kind, array.dtype) in _OF_ABSENT):
                continue
            text = hint = ""
            dtype, name = chosen.setdefault(spec.kind, (array.dtype, spec.name))
            if spec.lengths and array.dtype != "int32" and is_integer(array.dtype):
                raise ReplaceableError(message(self.op, f"`{spec.name}` is {array.dtype}."))
            if array.dtype not in spec.dtypes:
                text = f"`{spec.name}` must be {_either(spec.dtypes)}, but is {array.dtype}."
                hint = f"convert `{spec.name}` to {spec.dtypes[0]} first."
                if array.dtype.startswith(("str", "bytes")) and is_integer(spec.dtypes[0]):
                    hint = f"number the texts in `{spec.name}`, equal ones by the same number."
            elif dtype != array.dtype:
                text = f"`{name}` is {dtype} but `{spec.name}` is {array.dtype}."
                hint = f"convert one of them, for example `{spec.name}` to {dtype}."
            if text:
                # An empty array may stand for an absent one, but it is not None.
                shown = [one._replace(absent=False) if one is array else one for one in given]
                raise DtypeError(message(self.op, text, shown, hint))
        dtypes = {kind: dtype for kind, (dtype, _) in chosen.items() if kind in VARIABLES}
        for spec, array in self._present(given):
            if spec.kind == "Accum" and array.dtype != spec.dtype(dtypes):
                wanted, (dtype, name) = spec.dtype(dtypes), chosen["Float"]
                text = f"`{spec.name}` must be {wanted} where `{name}` is {dtype}, "
                hint = f"convert `{spec.name}` to {wanted} first."
                raise DtypeError(message(self.op, f"{text}but is {array.dtype}.", given, hint))
        return dtypes

    def _solve_batch(self, given: Sequence[Given]) -> tuple[Any, ...]:
        batch: tuple[Any, ...] = ()
        first = ""
        for spec, array in self._present(given):
            extra = len(array.shape) - len(spec.axes)
            if len(array.shape) > MAX_RANK:
                text = (
                    f"`{spec.name}` must have at most {MAX_RANK} axes, but has {len(array.shape)}."
                )
                raise ShapeError(message(self.op, text, given))
            if extra < 0 or (extra > 0 and not spec.batch):
                self._fail_rank(given, spec, array)
            if not spec.batch:
                continue
            merged = _broadcast(batch, array.shape[:extra])
            if merged is None:
                text = (
                    f"leading axes `*{spec.batch}` are {list(batch)} in `{first}` "
                    f"but {list(array.shape[:extra])} in `{spec.name}`."
                )
                hint = "leading axes must be equal, or 1, or missing."
                raise ShapeError(message(self.op, text, given, hint))
            if len(merged) > len(batch) or not first:
                first = spec.name
            batch = merged
        return batch

    def _check_arithmetic(
        self, given: Sequence[Given], sizes: Mapping[str, Any], batch: tuple[Any, ...]
    ) -> None:
        for spec, array in self._present(given):
            for axis, size in zip(spec.axes, self._own_axes(spec, array), strict=True):
                wanted = self._evaluate(axis, sizes, given)
                if axis.name is None and wanted != size:
                    text = f"axis `{axis}` must be {wanted} but is {size} in `{spec.name}`."
                    known = ", ".join(f"{n} = {sizes[n]}" for n in sorted(axis.names()))
                    hint = f"the other arguments say {known}." if known else None
                    raise ShapeError(message(self.op, text, given, hint))
        for output in self.outputs:
            rank = len(output.axes) + (len(batch) if output.batch else 0)
            if rank > MAX_RANK:
                text = f"`{output.name}` would have {rank} axes; at most {MAX_RANK} are possible."
                raise ShapeError(message(self.op, text, given))
            for axis in output.axes:
                size = self._evaluate(axis, sizes, given)
                if _is_no_size(size):
                    text = f"axis `{axis}` of the result would be {size}."
                    known = ", ".join(f"{n} = {sizes[n]}" for n in sorted(axis.names()))
                    raise ShapeError(message(self.op, text, given, f"it follows from {known}."))

    def _evaluate(self, axis: Size, sizes: Mapping[str, Any], given: Sequence[Given]) -> Any:
        try:
            return axis.evaluate(sizes)
        except ZeroDivisionError:
            known = ", ".join(f"{n} = {sizes[n]}" for n in sorted(axis.names()))
            text = f"axis `{axis}` would be divided by 0."
            raise ShapeError(message(self.op, text, given, f"it follows from {known}.")) from None

    def _fail_rank(self, given: Sequence[Given], spec: ArraySpec, array: Given) -> None:
        least = "at least " if spec.batch else ""
        wanted = " ".join(spec.axis_words) or "none"
        text = (
            f"`{spec.name}` must have {least}{_axes(len(spec.axes))} [{wanted}], "
            f"but has {_axes(len(array.shape))}."
        )
        missing = len(spec.axes) - len(array.shape)
        words = spec.axis_words  # what is left away most is the batch
        place = ":, " * words.index("b") if "b" in words else ""
        hint = f"add 1 axis of size 1 with `{spec.name}[{place}None]`." if missing == 1 else None
        raise ShapeError(message(self.op, text, given, hint))

    def _fail_size(
        self,
        given: Sequence[Given],
        array: Given,
        axis: str,
        size: Any,
        sizes: Mapping[str, Any],
        origin: Mapping[str, str],
    ) -> None:
        name, wanted = array.name, sizes[axis]
        if axis in origin:
            text = f"axis `{axis}` is {wanted} in `{origin[axis]}` but {size} in `{name}`."
        else:
            text = f"axis `{axis}` must be {wanted}, as given, but is {size} in `{name}`."
        hint = f"give `{name}` the size {wanted} along `{axis}`."
        spec = next(spec for spec in self.inputs if spec.name == name)
        own = self._own_axes(spec, array)
        if origin.get(axis) == name:
            hint = f"give `{name}` the same size along both."
        elif self._turns(
            spec, own, axis, {n: s for n, s in sizes.items() if origin.get(n) != name}
        ):
            hint = f"`{name}` fits when transposed: did you mean `{name}.swapaxes(-1, -2)`?"
        elif axis in origin and (swap := self._swap(given, origin[axis], axis, size)):
            hint = f"`{origin[axis]}` has {size} elsewhere: did you mean `{origin[axis]}.{swap}`?"
        raise ShapeError(message(self.op, text, given, hint))

    @staticmethod
    def _turns(spec: ArraySpec, own: Sequence[Any], axis: str, others: Mapping[str, Any]) -> bool:
        """Whether a matrix whose second axis has a wrong size fits transposed, as others say."""
        if len(own) != 2 or spec.axes[1].name != axis or own[0] != others[axis]:
            return False
        first = spec.axes[0]
        try:
            return not first.names() <= others.keys() or bool(first.evaluate(others) == own[1])
        except ZeroDivisionError:
            return False

    def _swap(self, given: Sequence[Given], name: str, axis: str, size: Any) -> str:
        """How an array would have a size along an axis that it has along another one."""
        spec = next(spec for spec in self.inputs if spec.name == name)
        own = self._own_axes(spec, next(array for array in given if array.name == name))
        place = spec.axis_words.index(axis)
        for i, other in enumerate(own):
            if i != place and other == size:
                low, high = sorted((i - len(own), place - len(own)))
                return f"swapaxes({low}, {high})"
        return ""


def _is_no_size(size: Any) -> bool:
    """Whether there can be no such size; a symbolic one of which JAX cannot tell may be right."""
    try:
        return bool(size < 0) or (isinstance(size, int) and size >= 2**63)
    except Exception:
        return False


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _either_code(names: Sequence[str]) -> str:
    return _either([f"`{name}`" for name in names])


def _axes(n: int) -> str:
    return f"{n} axis" if n == 1 else f"{n} axes"


def _broadcast(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The common shape of two groups of leading axes, or None."""
    if len(a) < len(b):
        a, b = b, a
    skip = len(a) - len(b)
    merged = list(a[:skip])
    for left, right in zip(a[skip:], b, strict=True):
        if left != right and left != 1 and right != 1:
            return None
        # Equal ones first: PyTorch's compiler may know that they are without knowing a number.
        merged.append(left if left == right or left != 1 else right)
    return tuple(merged)
