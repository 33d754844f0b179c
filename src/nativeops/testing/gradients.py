# SPDX-License-Identifier: Apache-2.0
"""The gradient of a case: against the rule on references in float64, and finite differences."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from nativeops.call import Op
from nativeops.errors import GradientError
from nativeops.testing.compiled import said_in
from nativeops.testing.draw import rounded
from nativeops.testing.returned import FLOATS, OwnError, results_of, wrong_gradients
from nativeops.testing.tolerance import UNIT, assert_close

if TYPE_CHECKING:
    from nativeops.testing.case import Case

STEP = 1e-6
# A difference of two values has an error of about UNIT / STEP; its own curvature one of STEP².
DIFFERENCE = 1e-8
MOST_ENTRIES = 100  # each costs two evaluations; beyond, a few directions are tried


def check_gradient(case: "Case") -> None:
    """The gradient is right, or asking for it is a clear error."""
    signature = case.op.signature
    shown = [spec for spec in signature.outputs if not spec.kept]
    if not all(any(spec.kind in FLOATS for spec in group) for group in (signature.inputs, shown)):
        return
    if case.op.gradient_rule is None:
        check_refused(case)
        return
    random = np.random.default_rng(1)
    d_outputs = [
        rounded(random.standard_normal(np.shape(reference)), case.dtype(spec))
        for spec, reference in zip(signature.outputs, case.reference, strict=True)
    ]
    parts, names = by_rule(case, d_outputs), wanted(case)
    found = _found(case, d_outputs, names)
    _check_against(case, found, parts)
    if case.group == "layout" and case.layout == "contiguous" and case.mode == "eager":
        for name in names if len(names) > 1 else ():  # as where the others are constants
            _check_against(case, _found(case, d_outputs, [name]), parts, " alone")
    if "float64" in case.dtypes.values() and case.group != "large" and case.mode == "eager":
        check_differences(case, d_outputs, found)


def _check_against(
    case: "Case", found: dict[str, Any], parts: dict[str, Any], how: str = ""
) -> None:
    """Gradients are those of the rule on references."""
    for spec in case.inputs:
        if spec.name in found:
            shape = np.shape(case.values[spec.name])
            expected = _sum_to(parts[spec.name], shape)
            size = float(_sum_to(np.abs(parts[spec.name]), shape).max(initial=0.0))
            allowed = case.tolerance(spec, expected) + _kept_rounding(case.dtype(spec), size)
            assert_close(found[spec.name], expected, allowed, f"`d_{spec.name}`{how}")


def _found(case: "Case", d_outputs: list[Any], names: Sequence[str]) -> dict[str, Any]:
    shown = [
        d for spec, d in zip(case.op.signature.outputs, d_outputs, strict=True) if not spec.kept
    ]
    return case.arrays.gradients(case.callable, case.given, shown, names)


def _kept_rounding(dtype: str, size: float) -> float:
    """Half precision rounds what is kept for the gradient, at times to the neighbour of ours.

    And so each item's gradient, before those of a broadcast argument, together of this `size`, are
    added.
    """
    return 4 * UNIT[dtype] * size if dtype in ("float16", "bfloat16") else 0.0


def check_refused(case: "Case") -> None:
    """An op without a gradient says so, and never gives a silent zero."""
    said = ""
    try:
        _found(case, [np.ones_like(reference) for reference in case.reference], wanted(case))
    except Exception as error:  # a compiler may raise its own, with our text in it
        if case.mode == "eager" and not isinstance(error, GradientError):
            raise
        said = str(error)
    assert said_in(said, case.op.no_gradient, case.mode), (
        f"there is no gradient, but it said {said!r}"
    )


def references() -> AbstractContextManager[Any]:
    """All ops compute with their definitions while this is entered, and make what is wanted."""

    def run(op: Op[Any], /, *args: Any, **kwargs: Any) -> Any:
        declared, _, want = op.split(kwargs)
        result = op.reference(*args, **declared)
        if op.result is None:
            return result
        mask = op.wanted(want, keep=True)
        return op.result(*(o if mask >> bit & 1 else None for bit, o in enumerate(result)))

    return patch.object(Op, "__call__", run)


def by_rule(case: "Case", d_outputs: list[Any]) -> dict[str, Any]:
    """The op's gradient rule in float64, on what is kept in the case's own dtypes.

    Of a broadcast argument one for each item, not yet added.
    """
    signature = case.op.signature
    outputs = [
        rounded(reference, case.dtype(spec))
        for spec, reference in zip(signature.outputs, case.reference, strict=True)
    ]
    gradients = apply_rule(case, outputs, d_outputs, wanted(case))
    floats = [spec for spec in signature.inputs if spec.kind in FLOATS]
    if wrong := wrong_gradients(gradients, [spec.name for spec in floats]):
        raise OwnError(*wrong, case.op.gradient_rule)
    return {
        spec.name: np.asarray(
            np.zeros_like(case.values[spec.name]) if gradient is None else gradient
        )
        for spec, gradient in zip(floats, gradients, strict=True)
        if spec in case.inputs
    }


def wanted(case: "Case") -> list[str]:
    """The inputs that have a gradient: the floating point ones that are given."""
    return [spec.name for spec in case.inputs if spec.kind in FLOATS]


def apply_rule(
    case: "Case", outputs: Sequence[Any], d_outputs: Sequence[Any], names: Sequence[str]
) -> tuple[Any, ...]:
    """What the rule gives, asked for the gradients of these inputs, where ops are references."""
    known = {**case.values, "needs": tuple(f"d_{name}" for name in names)}
    for spec, output, d_output in zip(case.op.signature.outputs, outputs, d_outputs, strict=True):
        known |= {spec.name: output, f"d_{spec.name}": d_output}
    with references(), np.errstate(all="ignore"):
        return case.op.differentiate(known)


def _sum_to(array: Any, shape: tuple[int, ...]) -> Any:
    """Undo broadcasting: the sum over the axes that an argument lacks or has with size 1."""
    array = array.sum(tuple(range(array.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    return array.sum(axes, keepdims=True)


def check_differences(case: "Case", d_outputs: list[Any], found: dict[str, Any]) -> None:
    """The gradient is the slope of the reference, entry by entry or in a few directions."""
    random = np.random.default_rng(2)
    for name, gradient in found.items():
        value = np.array(case.values[name], np.float64)
        scale = max(1.0, float(np.abs(gradient).max(initial=0.0)))
        for direction in _directions(value.shape, random):
            slope = (
                _loss(case, name, value + STEP * direction, d_outputs)
                - _loss(case, name, value - STEP * direction, d_outputs)
            ) / (2 * STEP)
            expected = float((gradient * direction).sum())
            allowed = DIFFERENCE * scale * (10 + float(np.abs(direction).sum()))
            assert_close(expected, slope, allowed, f"the slope along `{name}`")


def _directions(shape: tuple[int, ...], random: np.random.Generator) -> Iterator[Any]:
    size = int(np.prod(shape))
    if size > MOST_ENTRIES:
        for _ in range(3):
            yield random.standard_normal(shape)
        return
    for i in range(size):
        direction = np.zeros(size)
        direction[i] = 1
        yield direction.reshape(shape)


def _loss(case: "Case", name: str, value: Any, d_outputs: list[Any]) -> float:
    """Σ d_output · output, over all outputs that a caller gets."""
    outputs = results_of(case.op, {**case.values, name: value})
    specs = case.op.signature.outputs
    return sum(
        float((d * output).sum())
        for spec, d, output in zip(specs, d_outputs, outputs, strict=True)
        if spec.kind in FLOATS and not spec.kept
    )
