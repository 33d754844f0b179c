# SPDX-License-Identifier: Apache-2.0
"""One call of an op: find the framework, check the arguments, run, keep what the gradient needs."""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from nativeops import identity, lists
from nativeops.attributes import AttributeSpec
from nativeops.errors import (
    ArgumentError,
    DeviceError,
    Given,
    GradientError,
    RangeError,
    ReplaceableError,
    called,
    message,
)
from nativeops.frameworks import DLPACK, ENTRIES, Framework, framework_of, has_entry, load
from nativeops.lists import are_lengths, as_arrays, is_list_of_integers
from nativeops.signature import ArraySpec, Signature, Solution
from nativeops.sizes import Size, as_size

F = TypeVar("F", bound=Callable[..., Any])


class Directions(NamedTuple):
    """What an op calls twice, once with `reverse`: it has no kernel of its own."""

    layer: "Op[Any]"
    shared: tuple[str, ...]  # arrays of the layer that both calls get; of results the sum
    joined: tuple[str, ...]  # arrays of which each call gets a half of the last axis

    def names(self, name: str) -> tuple[str, str]:
        """What both calls get as an array of the layer."""
        return name, name if name in (*self.shared, *self.joined) else f"{name}_reverse"


class TwoLayers(NamedTuple):
    """What an op calls for a layer and for the next: it has no kernel of its own."""

    layer: "Op[Any]"
    linked: Mapping[str, tuple[str, str]]  # what both calls get as arrays that are not theirs alone
    passing: str  # what one call makes and the other reads
    backwards: bool = False  # whether the second layer is computed first

    def names(self, name: str) -> tuple[str, str]:
        """What the calls for the first and for the second layer get as an array of a layer."""
        return self.linked.get(name, (name, f"{name}_next"))


class Op(Generic[F]):
    """A declared operation: call it with the arrays of any framework.

    Made by `nativeops.declare.op`. `reference` is the declaring function, whose body computes the
    same with NumPy; `signature` states names, axes and dtypes; `kernel` is the C++ header.
    """

    # TensorFlow's AutoGraph calls what has this attribute as it is, instead of rewriting its code.
    autograph_info__ = True

    def __init__(
        self,
        reference: F,
        signature: Signature,
        kernel: Path,
        autocast: str,
        independent: Sequence[str] = (),
        carries: str = "",
        logs: str = "",
        rounding: Mapping[tuple[str, str], float] = MappingProxyType({}),
        devices: Sequence[str] = ("cpu", "cuda"),
    ) -> None:
        self.reference = reference
        self.signature = signature
        self.kernel = kernel
        self.autocast = autocast
        self.independent = tuple(independent)  # axes along which parts may be computed apart
        self.carries = carries  # the axis whose every step rounds to the result's dtype
        self.logs = logs  # the axis along which logarithms are added up
        self.devices = tuple(devices)  # that have a kernel
        self.rounding = rounding  # of products of float32, by an attribute's name and value
        self.name = self.__name__ = signature.op
        self.__module__ = reference.__module__
        self.__qualname__ = reference.__qualname__
        self.__signature__ = self._parameters = inspect.signature(reference)
        self.gradient_rule: Callable[..., Any] | None = None
        self.make_example: Callable[..., Mapping[str, Any]] | None = None
        self.id = -1  # of the op in the core, once it is defined there
        self.handles: dict[str, Any] = {}  # what the adapters registered for the op
        self.flags: dict[str, tuple[AttributeSpec, Op[Any]]] = {}  # what `instead` declared
        self.twice: Directions | TwoLayers | None = None  # of an op that calls another one's kernel
        self.kept_with: dict[str, str] = {}  # what `keep_only_with` declared
        self.result: type | None = None  # the NamedTuple of several results
        returns = typing.get_type_hints(reference, include_extras=True).get("return")
        returns = typing.get_origin(returns) or returns
        if isinstance(returns, type) and issubclass(returns, tuple):
            self.result = returns
        if not self.built_in:
            identity.remember(reference)

    if TYPE_CHECKING:
        __call__: F
    else:

        def __call__(self, /, *args, **kwargs):  # noqa: D102  the op is its documentation
            if kwargs and self.flags:
                self, kwargs = self._chosen(kwargs)  # noqa: PLW0642
            try:
                # PyTorch's compiler reads ENTRIES once: what it does not trace comes first.
                if args and has_entry(type(args[0])):
                    return ENTRIES[type(args[0])](self, args, kwargs)
                return _find(self, args, kwargs)(self, args, kwargs)
            except ReplaceableError:  # every call would pay for looking at its arguments before
                pass
            args, kwargs = as_arrays(self.signature, args, kwargs)
            return self(*args, **kwargs)

    def gradient(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Declare the gradient: a function of the inputs, outputs, attributes and ``d_<output>``.

        The names of its parameters are what is kept for it. It may also ask for ``needs``, the
        tuple of ``d_<input>`` that are wanted. It returns one gradient per float input, in order;
        None where one is not wanted.
        """
        if "needs" in self.__signature__.parameters:
            text = "`needs` is what a gradient rule calls the gradients that are wanted."
            raise ArgumentError(message(self.name, text, hint="rename the argument."))
        takes = {spec.name: "input" for spec in self.signature.inputs}
        takes |= {spec.name: "attribute" for spec in self.signature.attributes}
        asked = inspect.signature(rule).parameters
        results = [spec.name for spec in self.signature.outputs]
        known = [*takes, *results, *(f"d_{name}" for name in results), "needs"]
        for name in asked:
            if name not in known:
                text = f"the gradient asks for `{name}`, which is none of its names."
                hint = f"it may ask for {', '.join(f'`{each}`' for each in known)}."
                raise ArgumentError(message(self.name, text, hint=hint))
        for spec in self.signature.outputs:
            if kind := takes.get(f"d_{spec.name}"):
                text = f"`d_{spec.name}` is an {kind}, and in the gradient what arrives at "
                text += f"`{spec.name}`."
                raise ArgumentError(message(self.name, text, hint=f"rename the {kind}."))
            if spec.name in takes and spec.name in asked:
                text = f"`{spec.name}`, which the gradient asks for, is an argument and a result"
                raise ArgumentError(message(self.name, f"{text}.", hint="rename one of them."))
        self.gradient_rule = rule
        if not self.built_in:
            identity.remember(rule)
        self._begin_anew()
        return rule

    def _begin_anew(self) -> None:
        """Forget what followed from an older declaration: a notebook may add to an op in use."""
        for name in ("gradient_names", "version"):
            self.__dict__.pop(name, None)
        self.handles.clear()
        self.id = -1

    def keep_only_with(self, /, **inputs: str) -> None:
        """Declare inputs that the gradient rule reads only where a boolean attribute is true.

        ``gru_layer.keep_only_with(b_ih="low_memory")``: elsewhere the rule may be given None.
        """
        takes = {s.name for s in self.signature.inputs}.intersection(self.gradient_names)
        flags = {s.name for s in self.signature.attributes if s.type is bool}
        for name, flag in inputs.items():
            if name not in takes or flag not in flags:
                text = f"`{name}` must be an input that the gradient rule takes, and `{flag}` a"
                raise ArgumentError(message(self.name, f"{text} boolean attribute."))
        self.kept_with.update(inputs)
        self._begin_anew()

    def axis(self, name: str) -> Callable[[Callable[..., Size]], Callable[..., Size]]:
        """Declare the size of an output's axis as arithmetic over other axes and attributes."""

        def declare(rule: Callable[..., Size]) -> Callable[..., Size]:
            if not any(
                name in axis.names() for spec in self.signature.outputs for axis in spec.axes
            ):
                raise TypeError(f"{self.name}: no result has the axis `{name}`")
            names = [Size("name", (p,)) for p in inspect.signature(rule).parameters]
            try:
                size = as_size(rule(*names))
            except TypeError as error:
                text = f"{self.name}: the rule of the axis `{name}` gives no size ({error}): write "
                text += "whole numbers, its arguments, + - * //, and `maximum` and `minimum` of "
                raise TypeError(f"{text}`nativeops.declare`") from error
            outputs = tuple(
                replace(spec, axes=tuple(axis.substitute({name: size}) for axis in spec.axes))
                for spec in self.signature.outputs
            )
            self.signature = replace(self.signature, outputs=outputs)
            self.signature.check_limits()
            self._begin_anew()
            return rule

        return declare

    def example(self, make: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        """Declare a generator of valid arguments, for inputs with constraints among each other.

        It takes a NumPy random generator, and a dict with the size of each axis, the leading axes
        as a tuple, and the attributes. It returns the arguments by name.
        """
        self.make_example = make
        return make

    def instead(self, /, **flags: "Op[Any]") -> None:
        """Declare keywords that call another op: one result has one dtype, whatever is asked for.

        ``edit_distance.instead(normalize=normalized_edit_distance)``: with ``normalize=True`` the
        other op gets all other arguments; False, the default, changes nothing.
        """
        for name, other in flags.items():
            self.flags[name] = AttributeSpec(name, bool, False), other
        shown = [p for p in self.__signature__.parameters.values() if p.name not in flags]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool)
            for name in flags
        ]
        self.__signature__ = self.__signature__.replace(parameters=[*shown, *more])

    def _chosen(self, kwargs: Mapping[str, Any]) -> "tuple[Op[Any], dict[str, Any]]":
        """The op that the flags among the keywords ask for, and the other keywords."""
        for name, (spec, other) in self.flags.items():
            if name in kwargs and spec.check(self.name, kwargs[name]):
                return other, {k: v for k, v in kwargs.items() if k != name}
        return self, {k: v for k, v in kwargs.items() if k not in self.flags}

    def only(self, names: Sequence[str]) -> F:
        """The op that makes only these of its optional outputs; the other ones are None.

        Outputs that are not declared as ``| None`` are always made. With NumPy's arrays it may also
        name those that are kept for a gradient, so that the gradient's op can be called.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        return cast(F, partial(cast(Any, self), want=wanted))

    def into(self, out: Any) -> F:
        """The op that writes its result into this array: ``out=``, for type checkers."""
        return cast(F, partial(cast(Any, self), out=out))

    @cached_property
    def gradient_names(self) -> tuple[str, ...]:
        """The parameters of the gradient rule: what it wants to be given."""
        return tuple(inspect.signature(self.gradient_rule).parameters) if self.gradient_rule else ()

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        from nativeops.document import document  # only when somebody reads it

        return document(self)

    @property
    def built_in(self) -> bool:
        """Whether the op is one of this package's own."""
        return self.kernel.parent == Path(__file__).resolve().parent / "ops"

    @cached_property
    def version(self) -> str:
        """Empty for a built-in op; else a hash of declaration and kernel, so that no cache of a
        framework serves an older one; `identity.version` says what it covers."""
        return "" if self.built_in else "v" + identity.version(self)

    @cached_property
    def kernel_digest(self) -> str:
        """Empty for a built-in op; else a hash of the kernel's files at the op's first use."""
        return "" if self.built_in else identity.kernel_digest(self)

    @property
    def kernel_name(self) -> str:
        """The name of the C++ function that computes it."""
        return self.twice.layer.name if self.twice else self.name

    @property
    def built_for(self) -> str:
        """What a compiled kernel says it was built for, if it is this op's."""
        return f"{self.signature} {self.kernel_digest}".rstrip()

    @property
    def key(self) -> str:
        """What a saved program calls the op: its name, with the version if it is a user's."""
        return f"{self.name}.{self.version}" if self.version else self.name

    def __repr__(self) -> str:
        return f"<op {self.signature}>"

    def __reduce__(self) -> tuple[Any, ...]:
        from nativeops.registry import declared

        return declared, (self.__module__, self.name)

    def __deepcopy__(self, memo: object) -> "Op[F]":
        return self

    def __copy__(self) -> "Op[F]":
        return self

    def split(
        self, kwargs: Mapping[str, Any], kept: bool = False
    ) -> tuple[dict[str, Any], Any, Any]:
        """The declared keywords, and `out` and `want`, unless an input has that name.

        `kept`: whether `want` may name results that are kept for a gradient.
        """
        declared = dict(kwargs)
        names = self.__signature__.parameters
        out, want = (
            None if name in names else declared.pop(name, None) for name in ("out", "want")
        )
        self._check_want(want, kept)
        return declared, out, want

    def split_want(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """The declared keywords, and `want`; for frameworks that allocate all results."""
        declared, out, want = self.split(kwargs)
        if out is not None:
            text = "`out` is for NumPy arrays and PyTorch tensors."
            raise ArgumentError(message(self.name, text, hint="leave `out` away."))
        return declared, want

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arrays in order and the checked attributes by name."""
        try:
            bound = self._parameters.bind(*args, **kwargs).arguments
        except TypeError as error:
            hint = f"the op is `{self.signature}`."
            raise ArgumentError(message(self.name, f"{error}.", hint=hint)) from None
        arrays = [bound.get(spec.name) for spec in self.signature.inputs]
        attributes = {
            spec.name: spec.check(self.name, bound.get(spec.name, spec.default))
            for spec in self.signature.attributes
        }
        return arrays, attributes

    def _check_want(self, want: Collection[str] | None, kept: bool) -> None:
        """`want` names outputs that callers get, and leaves away none that every call makes."""
        shown = [spec for spec in self.signature.outputs if not spec.kept]
        names = [spec.name for spec in shown]
        known = [spec.name for spec in self.signature.outputs] if kept else names
        # An iterator would give its names to this check alone.
        if want is not None and (isinstance(want, str) or not isinstance(want, Collection)):
            text = f"`want` must be a list of names, but is {want!r}."
            raise ArgumentError(message(self.name, text, hint=f"the results are {known}."))
        for name in want or ():
            if name not in known:
                text = f"`want` must be among {known}, but has {name!r}."
                raise RangeError(message(self.name, text))
        always = [name for name in names if want and name not in want]
        if always and not any(spec.optional for spec in shown):
            text = f"`want` leaves away `{always[0]}`, which every call makes."
            hint = f"declare `{always[0]}` as `| None` to make it only where it is wanted."
            raise RangeError(message(self.name, text, hint=hint))

    def wanted(self, want: Sequence[str] | None, keep: bool = False) -> int:
        """The outputs to make, as a bit mask; `want` names the optional ones."""
        mask = 0
        for bit, spec in enumerate(self.signature.outputs):
            named = want is not None and spec.name in want
            chosen = want is None or not spec.optional or named
            mask |= (keep or named if spec.kept else chosen) << bit
        return mask

    def check(
        self, given: Sequence[Given], devices: Sequence[str], attributes: Mapping[str, Any]
    ) -> Solution:
        """Everything that can be said before a kernel runs."""
        solution = self.signature.solve(given, attributes)
        for array, device in zip(given, devices, strict=True):
            if device != devices[0] and not array.absent:
                text = f"`{given[0].name}` is on {devices[0]} but `{array.name}` is on {device}."
                hint = f"move one of them, for example `{array.name}` to {devices[0]}."
                raise DeviceError(message(self.name, text, given, hint))
        return solution

    def spread(self, out: Any) -> list[Any]:
        """What the caller gave as `out`, for each output: one array, or a tuple for several."""
        shown = [place for place, spec in enumerate(self.signature.outputs) if not spec.kept]
        given = (out,) if len(shown) == 1 else out
        if not isinstance(given, tuple) or len(given) != len(shown):
            has = f"has {len(given)}" if isinstance(given, tuple) else f"is {type(out).__name__}"
            text = f"`out` must be a tuple of {len(shown)} arrays, one for each result, but {has}."
            hint = "give None in the place of a result that shall be new."
            raise ArgumentError(message(self.name, text, hint=hint))
        pairs = dict(zip(shown, given, strict=True))
        return [pairs.get(place) for place in range(len(self.signature.outputs))]

    def out_word(self, place: int) -> str:
        """What messages call the array that was given for an output."""
        shown = [n for n, spec in enumerate(self.signature.outputs) if not spec.kept]
        return "out" if len(shown) == 1 else f"out[{shown.index(place)}]"

    def collect(self, outputs: Sequence[Any], kept: bool = False) -> Any:
        """What the caller gets: one array, or the NamedTuple of several; kept ones if asked."""
        if self.result is None:
            return outputs[0]
        pairs = zip(self.signature.outputs, outputs, strict=True)
        return self.result(*(None if s.kept and not kept else o for s, o in pairs))

    def differentiate(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Apply the gradient rule: one gradient (or None) per float input."""
        if self.gradient_rule is None:
            raise GradientError(self.no_gradient)
        gradients = self.gradient_rule(**{name: values[name] for name in self.gradient_names})
        return tuple(gradients) if isinstance(gradients, tuple | list) else (gradients,)

    @property
    def no_gradient(self) -> str:
        """The sentence for a derivative that does not exist."""
        text = "has no gradient."
        if self.name.endswith("_grad"):
            own = called(self.name) == self.name  # else the error names what users call
            text = "has no gradient" if own else "its gradient has none itself"
            text += ", so it cannot be differentiated twice."
        hint = "if it is a constant, use `detach()`, `jax.lax.stop_gradient` or `tf.stop_gradient`."
        if not self.built_in:
            hint = f"declare its rule with `@{self.name}.gradient`; {hint}"
        return message(self.name, text, hint=hint)

    def not_through(self, output: str) -> str:
        """The sentence for a derivative through a result that only the gradient rule reads."""
        text = f"has no gradient through `{output}`, so it cannot be differentiated twice."
        return message(self.name, text)

    def stops_at(self, spec: ArraySpec) -> bool:
        """Whether no derivative goes through an output: it is hidden, and the rule takes none."""
        return spec.kept and f"d_{spec.name}" not in self.gradient_names

    @property
    def no_forward_mode(self) -> str:
        """The sentence for forward-mode differentiation."""
        return message(
            self.name,
            "has no forward-mode derivative (jvp).",
            hint="use reverse mode: `backward`, `grad`, `jacrev` or `tf.GradientTape`.",
        )


def _find(op: Op[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The entry of the framework that the first input outside NumPy belongs to."""
    for value in (*args, *[kwargs[s.name] for s in op.signature.inputs if s.name in kwargs]):
        if framework_of(type(value)) not in (None, "numpy") and has_entry(type(value)):
            return ENTRIES[type(value)]
    return load("numpy").run


def given(op: Op[Any], framework: Framework, arrays: Sequence[Any]) -> list[Given]:
    """Describe the arrays of a call; whatever is no array of this framework is an error."""
    check_frameworks(op, arrays)
    pairs = zip(op.signature.inputs, arrays, strict=True)
    return [
        spec.nothing if array is None else spec.given(*framework.describe(array)[:2])
        for spec, array in pairs
    ]


def check_frameworks(op: Op[Any], arrays: Sequence[Any]) -> None:
    """Every input is an array, and all are of one framework."""
    specs = op.signature.inputs
    names = [framework_of(type(array)) for array in arrays]
    for spec, array, name in zip(specs, arrays, names, strict=True):
        if array is None and spec.optional:
            continue
        if name is None:
            text = f"`{spec.name}` must be an array, but is {type(array).__name__}."
            if is_list_of_integers(spec, array):
                raise ReplaceableError(message(op.name, text))
            raise ArgumentError(message(op.name, text, hint=lists.hint(spec, array)))
        if name != names[0] and {name, names[0]} != {"numpy", DLPACK}:
            first, own = _library(arrays[0]), _library(array)
            text = f"`{specs[0].name}` is a {first} array but `{spec.name}` is a {own} array."
            hint = "convert one of them: all arrays of a call must be of one framework."
            if are_lengths(spec, array, str(names[0])):
                raise ReplaceableError(message(op.name, text))
            raise ArgumentError(message(op.name, text, hint=hint))


def _library(array: Any) -> str:
    """What an array is of, for a reader: its framework, or the package that has its type."""
    name = framework_of(type(array))
    return type(array).__module__.partition(".")[0] if name in (None, DLPACK) else str(name)
