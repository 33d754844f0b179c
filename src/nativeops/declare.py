# SPDX-License-Identifier: Apache-2.0
"""The language of declarations: `op`, `Array`, `Float`, `Int`, `Bool` and what goes with them."""

import inspect
import math
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeVar, cast

from nativeops.attributes import AttributeSpec
from nativeops.call import Op
from nativeops.errors import ArgumentError, message, name_caller
from nativeops.frameworks import framework_of, load
from nativeops.identity import normal
from nativeops.names import is_cpp_word
from nativeops.registry import register
from nativeops.signature import KINDS, VARIABLES, ArraySpec, Signature, array_spec
from nativeops.sizes import Size, maximum, minimum

__all__ = [
    "Accum", "Array", "AtLeast", "AtMost", "Bool", "Float", "Float32", "Float64", "Int", "Int32",
    "Int64", "Kept", "Lengths", "Size", "Uint8", "maximum", "minimum", "op", "transpose",
]  # fmt: skip

Array = TypeVar("Array", bound=Any)
"""The array type of whatever framework calls: a tensor in gives a tensor out."""

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class AtLeast:
    """Smallest value of a number: ``p: Annotated[float, AtLeast(1)] = 2.0``."""

    value: float


@dataclass(frozen=True)
class AtMost:
    """Largest value of a number."""

    value: float


@dataclass(frozen=True)
class _Declared:
    """What ``Float[Array, "n d"]`` is while the program runs."""

    kind: str
    axes: str
    kept: bool = False
    optional: bool = False
    lengths: bool = False

    def __repr__(self) -> str:
        written = f'{"Lengths" if self.lengths else self.kind}[Array, "{self.axes}"]'
        written = f"Kept[{written}]" if self.kept else written
        return f"{written} | None" if self.optional else written

    def __or__(self, other: None) -> "_Declared":
        return replace(self, optional=True)

    __ror__ = __or__

    def spec(self, op: str, name: str) -> ArraySpec:
        flags = {"kept": self.kept, "optional": self.optional, "lengths": self.lengths}
        try:
            return array_spec(name, self.kind, self.axes, **flags)
        except ValueError as error:
            raise ValueError(f"{op}: {error}") from error.__cause__


class _Kind:
    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, item: tuple[object, str]) -> _Declared:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], str):
            raise TypeError(f'write {self.name}[Array, "n d"]: the axes in one text, by name')
        return _Declared(self.name, item[1])


class _Lengths(_Kind):
    """Integers of any dtype in a call, int32 in the kernel.

    What an int32 cannot hold becomes its nearest, which is out of the range of any lengths.
    """

    def __getitem__(self, item: tuple[object, str]) -> _Declared:
        return replace(super().__getitem__(item), kind="Int32", lengths=True)


class _Kept:
    def __getitem__(self, declared: _Declared) -> _Declared:
        return replace(declared, kept=True)


if TYPE_CHECKING:
    from typing import Annotated as Accum
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Float32
    from typing import Annotated as Float64
    from typing import Annotated as Int
    from typing import Annotated as Int32
    from typing import Annotated as Int64
    from typing import Annotated as Lengths
    from typing import Annotated as Uint8

    _T = TypeVar("_T")
    Kept = Annotated[_T, "kept"]
else:
    Accum, Bool, Float, Float32, Float64, Int, Int32, Int64, Uint8 = map(_Kind, sorted(KINDS))
    Kept = _Kept()
    Lengths = _Lengths("Lengths")


def _explained(declare: Callable[P, R]) -> Callable[P, R]:
    """The same function, which says what to write where its arguments do not fit."""
    takes = inspect.signature(declare)
    keywords = ", ".join(f"`{name}`" for name in takes.parameters)
    hint = f'write `@op(kernel="NAME.h")`; it may have the keywords {keywords}.'

    @wraps(declare)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            takes.bind(*args, **kwargs)
        except TypeError as error:
            name = getattr(args[0], "__name__", "op") if args else "op"
            text = (
                "`@op` stands without the name of its kernel" if callable([*args, 0][0]) else error
            )
            raise ArgumentError(message(name, f"{text}.", hint=hint)) from None
        return declare(*args, **kwargs)

    return checked


@_explained
def op(
    *,
    kernel: str,
    autocast: Literal["float32", "keep"] = "float32",
    independent: str = "",
    carries: str = "",
    logs: str = "",
    rounding: Mapping[tuple[str, str], float] | None = None,
    reuse: Mapping[str, str] | None = None,
    devices: Literal["cpu cuda", "cpu"] = "cpu cuda",
    caller: str = "",
) -> "Callable[[F], Op[F]]":
    """Declare an op: the function's annotations are its signature, its body the NumPy reference.

    Args:
        kernel: The C++ header with the kernel, beside the file that declares the op.
        autocast: What PyTorch's autocast does with half-precision inputs: compute in float32, or
            keep the dtype.
        independent: Named axes along which several devices may each compute a part: a result with
            such an axis is made of the parts' results, one without it is their sum. Leading axes
            always are.
        reuse: Results that may take over the memory of an input, as ``{"h": "z"}``: the kernel is
            right where both are the same array. It happens where nobody needs the input any more.
        carries: A named axis along which a result is carried from step to step in its own dtype,
            so that in half precision every step rounds.
        logs: A named axis along which logarithms are added up. Their sum grows with the axis, and
            with it the rounding of all that is computed from the sum.
        rounding: The unit roundoff of products of float32 where an attribute has a value that
            allows more than 2**-24, as ``{("precision", "high"): 2**-16}``.
        devices: Where there is a kernel: everywhere, or on the CPU alone.
        caller: The function by which users call the op, if not the op itself: errors name it.
    """

    def declare(reference: F) -> "Op[F]":
        if not isinstance(kernel, str) or not Path(kernel).name:
            text = f"`kernel` must be the name of a C++ header, but is {kernel!r}"
            raise TypeError(f"{reference.__name__}: {text}")
        texts = {"independent": independent, "carries": carries, "logs": logs, "caller": caller}
        _check_keywords(reference.__name__, texts, {"reuse": reuse, "rounding": rounding})
        signature, apart = _with_reuse(read(reference), reuse or {}), independent.split()
        signature.check_limits()
        _check_independent(signature, apart)
        if carries and not any(axis.name == carries for s in signature.outputs for axis in s.axes):
            raise TypeError(f"{signature.op}: no result has the axis `{carries}`")
        if logs and not any(axis.name == logs for s in signature.inputs for axis in s.axes):
            raise TypeError(f"{signature.op}: no input has the axis `{logs}`")
        for name, _ in rounding or {}:
            if not any(spec.name == name for spec in signature.attributes):
                raise TypeError(f"{signature.op}: `rounding` names no attribute `{name}`")
        for name in signature.names():  # TensorFlow ends the process at others, PyTorch refuses
            if not name.isascii():
                raise TypeError(f"{signature.op}: the name `{name}` must be ASCII")
        if is_cpp_word(signature.op):
            text = f"{signature.op}: that is a word of C++, which no kernel can be called: "
            raise TypeError(f"{text}choose another name")
        _check_word(signature.op, "devices", devices, ("cpu cuda", "cpu"))
        _check_word(signature.op, "autocast", autocast, ("float32", "keep"))
        where, places = normal(_folder_of(reference) / kernel), devices.split()
        declared = Op(
            reference, signature, where, autocast, apart, carries, logs, rounding or {}, places
        )
        register(declared)
        if caller:
            name_caller(declared.name, caller)
        return declared

    return declare


def _check_keywords(op: str, texts: dict[str, Any], mappings: dict[str, Any]) -> None:
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{op}: `{name}` must be one text, but is {value!r}")
    for name, value in mappings.items():
        if not isinstance(value or {}, Mapping):
            raise TypeError(f"{op}: `{name}` must be a dict, but is {value!r}")


def _check_word(op: str, name: str, value: str, words: tuple[str, str]) -> None:
    if value not in words:
        text = f"`{name}` must be {words[0]!r} or {words[1]!r}, but is {value!r}"
        raise TypeError(f"{op}: {text}")


def _folder_of(reference: Callable[..., Any]) -> Path:
    """Where a declaration lies; in a program without sources, where its module does."""
    source = Path(inspect.getfile(reference)).resolve()
    file = getattr(sys.modules.get(reference.__module__), "__file__", None)
    if file and not source.exists() and reference.__module__ != "__main__":
        source = Path(file).resolve()
    return source.parent if source.exists() else Path.cwd()  # of a notebook or a prompt


def _with_reuse(signature: Signature, reuse: Mapping[str, str]) -> Signature:
    """The signature with what `reuse` says; both arrays must have the same declaration."""
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name: spec for spec in signature.outputs}
    for result, given in reuse.items():
        if result not in outputs or given not in inputs:
            raise TypeError(
                f"{signature.op}: `reuse` names no result `{result}` or input `{given}`"
            )
        if str(outputs[result]) != str(inputs[given]):
            text = f"`{result}` is {outputs[result]}, but `{given}` is {inputs[given]}"
            raise TypeError(f"{signature.op}: {text}: it cannot take over its memory")
        if outputs[result].optional or outputs[result].kept:
            text = "only a result that every call makes can take over memory"
            raise TypeError(f"{signature.op}: {text}")
    if len(set(reuse.values())) < len(reuse):
        raise TypeError(f"{signature.op}: two results cannot take over the memory of one input")
    marked = (replace(spec, reuse=reuse.get(name, "")) for name, spec in outputs.items())
    return replace(signature, outputs=tuple(marked))


def _check_independent(signature: Signature, names: list[str]) -> None:
    """Parts of an axis can only be told apart where it stands alone."""
    for name in names:
        axes = [axis for s in (*signature.inputs, *signature.outputs) for axis in s.axes]
        if not all(axis.name == name for axis in axes if name in axis.names()):
            raise TypeError(f"{signature.op}: `{name}` is not independent where sizes depend on it")
        if not any(axis.name == name for spec in signature.inputs for axis in spec.axes):
            raise TypeError(f"{signature.op}: no input has the independent axis `{name}`")


def transpose(array: Array) -> Array:
    """The array with its last two axes swapped, in any framework."""
    if hasattr(array, "swapaxes"):
        return cast(Array, array.swapaxes(-1, -2))
    adapter: Any = load(framework_of(type(array)) or "numpy")  # TensorFlow's tensors lack it
    return cast(Array, adapter.transpose(array))


def read(reference: Callable[..., Any]) -> Signature:
    """The signature that a function's annotations state."""
    name = reference.__name__
    hints = typing.get_type_hints(reference, include_extras=True)
    inputs: list[ArraySpec] = []
    attributes: list[AttributeSpec] = []
    for parameter in inspect.signature(reference).parameters.values():
        hint = _plain(hints.get(parameter.name))
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{name}: `{parameter.name}` must be one argument, without a star")
        if isinstance(hint, _Declared):
            _check_default(name, parameter, hint)
            if inputs and inputs[-1].optional and not hint.optional:
                text = f"{name}: put `{parameter.name}` before `{inputs[-1].name}`: inputs that may"
                raise TypeError(f"{text} be None stand behind the others")
            inputs.append(hint.spec(name, parameter.name))
        elif parameter.kind is parameter.KEYWORD_ONLY:
            attributes.append(_attribute(name, parameter, hint))
        else:
            raise TypeError(f"{name}: annotate `{parameter.name}` as an array or put it behind `*`")
    _check_known(name, inputs, attributes)
    outputs = _outputs(name, hints.get("return"))
    _check_out(name, inputs, attributes, outputs)
    _check_kinds(name, inputs, outputs)
    leading = sorted({spec.batch for spec in (*inputs, *outputs) if spec.batch})
    if len(leading) > 1:
        text = f"{name}: `*{leading[0]}` and `*{leading[1]}` are the same leading axes"
        raise TypeError(f"{text}: give them one name")
    return Signature(name, tuple(inputs), outputs, tuple(attributes))


def _plain(hint: Any) -> Any:
    """``Optional[Float[..]]`` as ``Float[..] | None``, which is the same elsewhere in Python."""
    parts = typing.get_args(hint) if typing.get_origin(hint) is typing.Union else ()
    array = next((part for part in parts if isinstance(part, _Declared)), None)
    return array | None if array and set(parts) == {array, type(None)} else hint


def _check_default(name: str, parameter: inspect.Parameter, hint: _Declared) -> None:
    """`| None` and `= None` go together; what is absent must be told from what is there."""
    default = parameter.default
    if default is not (None if hint.optional else parameter.empty):
        text = f"{name}: write `{parameter.name}: ... | None = None` for an input that may be None"
        raise TypeError(text)
    if hint.optional and not hint.spec(name, parameter.name).axes:
        text = f"{name}: `{parameter.name}` needs an axis beside leading ones to be optional"
        raise TypeError(text)


def _check_known(name: str, inputs: list[ArraySpec], attributes: list[AttributeSpec]) -> None:
    if all(spec.optional for spec in inputs):
        raise TypeError(f"{name}: an input that is not optional must tell the framework")
    certain = {axis.name for spec in inputs if not spec.optional for axis in spec.axes}
    certain |= {spec.name for spec in attributes if spec.type in (int, bool)}
    for spec in inputs:
        known = certain | {axis.name for axis in spec.axes}
        for axis in spec.axes:
            for unknown in sorted(axis.names() - known):
                text = f"{name}: `{axis}` in `{spec.name}` needs the size `{unknown}`, but no "
                text += "required input has it as an axis of its own: call this axis `d`, say, "
                raise TypeError(f"{text}and write `d//2` where half of it is meant")


def _check_out(
    name: str,
    inputs: list[ArraySpec],
    attributes: list[AttributeSpec],
    outputs: tuple[ArraySpec, ...],
) -> None:
    """The kernel takes the only result under the name of `out`."""
    takes = {spec.name: "input" for spec in inputs}
    takes |= {spec.name: "attribute" for spec in attributes}
    if [spec.name for spec in outputs] == ["out"] and "out" in takes:
        text = f"`out` is an {takes['out']}, and what the only result is called."
        raise ArgumentError(message(name, text, hint=f"rename the {takes['out']}."))


def _check_kinds(name: str, inputs: list[ArraySpec], outputs: tuple[ArraySpec, ...]) -> None:
    """The dtypes of sums and results follow from those of inputs that are always there."""
    sums = [spec for spec in inputs if spec.kind == "Accum"]
    for spec in (*sums, *outputs):
        kind = "Float" if spec.kind == "Accum" else spec.kind
        told = any(one.kind == kind and not one.optional for one in inputs)
        if kind not in VARIABLES or told:
            continue
        if spec.kind == "Accum":
            text = f"{name}: `{spec.name}` is Accum, the dtype for sums of Float, but no required"
            raise TypeError(f"{text} input is Float")
        text = f"{name}: `{spec.name}` is {kind}, but no required input tells which: write"
        raise TypeError(f"{text} {' or '.join(word.capitalize() for word in VARIABLES[kind][:2])}")


def _outputs(name: str, result: Any) -> tuple[ArraySpec, ...]:
    result = typing.get_origin(result) or result  # NamedTuple[Array] as its class
    named = isinstance(result, type) and issubclass(result, tuple)
    fields = typing.get_type_hints(result, include_extras=True) if named else {"out": result}
    if not fields or not all(isinstance(field, _Declared) for field in fields.values()):
        raise TypeError(f"{name}: annotate the result as an array or a NamedTuple of arrays")
    if all(field.kept for field in fields.values()):
        raise TypeError(f"{name}: one result must not be `Kept`: callers would get nothing")
    return tuple(field.spec(name, field_name) for field_name, field in fields.items())


def _limits(op: str, name: str, marks: list[Any]) -> tuple[float, float]:
    """The range that the marks of an attribute leave."""
    for mark in marks:
        given = mark.value if isinstance(mark, (AtLeast, AtMost)) else 0
        if mark is AtLeast or mark is AtMost or not isinstance(given, Real) or math.isnan(given):
            text = f"{op}: `{name}` has the limit {mark!r}: write it with a number, `AtLeast(1)`"
            raise TypeError(text)
    low = max((mark.value for mark in marks if isinstance(mark, AtLeast)), default=-math.inf)
    high = min((mark.value for mark in marks if isinstance(mark, AtMost)), default=math.inf)
    if low > high:
        raise TypeError(f"{op}: `{name}` is at least {low} and at most {high}, which no number is")
    return low, high


def _attribute(op: str, parameter: inspect.Parameter, hint: Any) -> AttributeSpec:
    low, high = -math.inf, math.inf
    if typing.get_origin(hint) is Annotated:
        hint, *marks = typing.get_args(hint)
        low, high = _limits(op, parameter.name, marks)
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    kind = str if choices else hint
    words = all(isinstance(choice, str) for choice in choices)
    if not words or (kind not in (int, float, bool) and not choices):
        raise TypeError(f"{op}: `{parameter.name}` must be int, float, bool or a Literal of words")
    required = parameter.default is parameter.empty
    spec = AttributeSpec(parameter.name, kind, None, required, choices, low, high)
    return spec if required else replace(spec, default=spec.check(op, parameter.default))
