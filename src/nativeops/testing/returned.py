# SPDX-License-Identifier: Apache-2.0
"""What the functions beside a declaration return: its reference, its example, its gradient rule.

Whatever is wrong there is no mistake of the kernel, and is told before a kernel is judged by it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.frameworks.rule import gradients_word
from nativeops.signature import ArraySpec

FLOATS = ("Float", "Float32", "Float64", "Accum")
NUMBERS = "biufV"  # what NumPy calls the kinds of dtypes that are numbers; V are those of others
Shape = tuple[int, ...]


class OwnError(AssertionError):
    """A mistake in a function of the declaration's: its kind, what was seen, and the function."""

    def __init__(self, bug: str, text: str, function: Callable[..., Any] | None) -> None:
        super().__init__(text)
        self.bug, self.text, self.function = bug, text, function


def results_of(
    op: Op[Any], values: Mapping[str, Any], shapes: Sequence[Shape] = ()
) -> tuple[Any, ...]:
    """What the reference gives for each result; an error unless it has numbers of these shapes."""
    with np.errstate(all="ignore"):
        result = op.reference(**{name: _guarded(value) for name, value in values.items()})
    specs = op.signature.outputs
    wrong = _wrong_count(result, len(specs) if op.result else 0)
    results = () if wrong else tuple(result) if op.result else (result,)
    for place, (spec, array) in enumerate(zip(specs, results, strict=False)):
        wrong = wrong or _wrong_array(spec, array, len(specs), shapes[place] if shapes else None)
    if wrong:
        raise OwnError("the reference is wrong", f"the reference returns {wrong}", op.reference)
    return results


def _guarded(value: Any) -> Any:
    """An array that the reference cannot write to: others read it afterwards."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _wrong_count(result: Any, wanted: int) -> str:
    """What is no tuple of this many arrays, or no array where 0 are wanted."""
    several = isinstance(result, tuple | list) if wanted else isinstance(result, tuple)
    asked = f"{wanted} arrays" if wanted else "one array"
    if result is None or isinstance(result, Mapping | str):
        return f"{_word(result)} instead of {asked}"
    if wanted and not several:
        return f"one array instead of {asked}"
    if several and len(result) != wanted:
        return f"{len(result)} array{'s' * (len(result) != 1)} instead of {asked}"
    return ""


def _wrong_array(spec: ArraySpec, array: Any, n_results: int, shape: Shape | None) -> str:
    """What a result is, where its declaration says otherwise."""
    where = f" for `{spec.name}`" if n_results > 1 else ""
    if array is None:
        return f"None{where}"
    dtype = np.asarray(array).dtype
    if spec.kind in FLOATS and dtype.kind in "biu":
        return f"{dtype}{where} instead of floating point numbers"
    if dtype.kind not in NUMBERS:
        return f"{dtype}{where} instead of numbers"
    if spec.kind in FLOATS and spec.kind != "Float32" and dtype.itemsize < 8:
        return f"{dtype}{where} instead of float64, to judge kernels by"
    if shape is not None and np.shape(array) != shape:
        return f"{list(np.shape(array))}{where} instead of {list(shape)}"
    return ""


def example(
    op: Op[Any], random: np.random.Generator, given: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> dict[str, Any]:
    """What the op's example makes; an error unless it has arrays of these shapes.

    Leading axes may be left away, or 1, in some of the inputs.
    """
    assert op.make_example
    try:
        made = op.make_example(random, dict(given))
    except Exception as error:
        text = f"the example raises {type(error).__name__}: {error}"
        raise OwnError("the example fails", text, op.make_example) from error
    if wrong := _wrong_example(op, made, shapes):
        raise OwnError("the example is wrong", f"the example {wrong}", op.make_example)
    return dict(made)


def _wrong_example(op: Op[Any], made: Any, shapes: Mapping[str, Shape]) -> str:
    """What is wrong with an example."""
    if not isinstance(made, Mapping):
        return f"returns {_word(made)}: return the inputs by name, in a dict"
    specs = op.signature.inputs
    for spec in specs:
        if made.get(spec.name) is None:
            verb = "gives None for" if spec.name in made else "lacks"
            return f"{verb} `{spec.name}`"
    known = {*shapes, *(spec.name for spec in op.signature.attributes)}
    if other := sorted(map(str, made.keys() - known)):
        return f"gives `{other[0]}`, which is no argument of the op"
    for spec in specs:
        if (kind := np.asarray(made[spec.name]).dtype).kind not in NUMBERS:
            return f"gives {kind} for `{spec.name}` instead of numbers"
    found = {spec.name: np.shape(made[spec.name]) for spec in specs}
    lead: Shape = ()
    for spec in specs:
        own = len(found[spec.name]) - len(spec.axes)
        if not _fits(found[spec.name], shapes[spec.name], own, bool(spec.batch)):
            return _other_shape(spec.name, found, shapes)
        lead = np.broadcast_shapes(lead, found[spec.name][:own])
    for spec in specs:
        if spec.batch and lead != shapes[spec.name][: len(shapes[spec.name]) - len(spec.axes)]:
            return _other_shape(spec.name, found, shapes)
    return ""


def _fits(found: Shape, wanted: Shape, lead: int, broadcasts: bool) -> bool:
    """Whether a shape is the wanted one, up to leading axes that broadcast to it."""
    if lead < 0 or len(found) > len(wanted):
        return False
    most = wanted[len(wanted) - len(found) :]
    pairs = list(zip(found, most, strict=True))
    alike = broadcasts or len(found) == len(wanted)
    return (
        alike
        and all(own in (1, size) for own, size in pairs[:lead])
        and all(own == size for own, size in pairs[lead:])
    )


def _other_shape(name: str, found: Mapping[str, Shape], shapes: Mapping[str, Shape]) -> str:
    return f"gives {name}{list(found[name])}, but {list(shapes[name])} was asked for"


def wrong_gradients(gradients: Sequence[Any], inputs: Sequence[str]) -> tuple[str, str] | None:
    """The bug of a rule that does not return one gradient for each input, and what it returns."""
    word = gradients_word(gradients)
    if len(gradients) == len(inputs) and word != "a dict":
        return None
    text = f"the rule returns {word} for the {len(inputs)} inputs {', '.join(inputs)}"
    if word in ("nothing", "a dict"):
        return f"the gradient rule returns {word}", f"{text}: give one for each, in order."
    missing = inputs[len(gradients) :]
    return (
        f"gradient of `{missing[0]}` is forgotten" if missing else "too many gradients",
        f"{text}.",
    )


def _word(value: Any) -> str:
    """What a function returned that is no array."""
    return "None" if value is None else f"a {type(value).__name__}"
