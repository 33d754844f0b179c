# SPDX-License-Identifier: Apache-2.0
"""The gradient rule of an op against the slopes of its reference, in float64. No kernel runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.checking import source
from nativeops.checking.faults import rule_failure
from nativeops.checking.finding import Case, Finding, Steps, Unchecked, found
from nativeops.testing import Case as OpCase
from nativeops.testing import cases
from nativeops.testing.gradients import apply_rule, wanted
from nativeops.testing.returned import FLOATS, results_of, wrong_gradients

STEP = 1e-6
ALLOWED = 1e-6  # of the largest slope, or of 1: far above the error of a difference
EPSILON = float(np.finfo(np.float64).eps)
MOST_ENTRIES = 60


def steps(op: Op[Any]) -> Steps:
    """One case for each choice of attributes and of absent inputs, and unlike leading axes."""
    shown = [spec for spec in op.signature.outputs if not spec.kept and spec.kind in FLOATS]
    if op.gradient_rule is None or not shown:
        return
    plain = [c for c in cases(op) if c.dtypes.get("Float", "float64") == "float64"]
    if not plain:
        yield Unchecked(f"{op.name}: no size that was tried fits its declaration")
        return
    chosen = [c for c in plain if c.group in ("attributes", "leads", "absent")] or plain[:1]
    for case in [plain[0], *chosen]:
        yield Case(str(case))
        if problem := check(case):
            yield problem
            return


def check(case: OpCase) -> Finding | None:
    """The first input whose gradient is not the slope, with all needed or with it alone."""
    random = np.random.default_rng(1)
    d_outputs = [random.standard_normal(np.shape(r)) for r in case.reference]
    all_names = wanted(case)
    alone = [[name] for name in all_names] if "needs" in case.op.gradient_names else []
    slopes = {name: differences(case, name, d_outputs) for name in all_names}
    for names in [all_names, *(alone if len(alone) > 1 else ())]:
        problem = compare(case, names, slopes, d_outputs)
        if problem is not None and names != all_names:
            return replace(problem, bug=f"{problem.bug} where nothing else is needed")
        if problem is not None:
            return problem
    return None


def compare(
    case: OpCase, names: Sequence[str], slopes: dict[str, Any], d_outputs: list[Any]
) -> Finding | None:
    """What is wrong with the gradients if the rule is asked for those of these inputs."""
    op, place = case.op, source.rule(case.op)
    floats = [spec.name for spec in op.signature.inputs if spec.kind in FLOATS]
    try:
        gradients = apply_rule(case, case.reference, d_outputs, names)
    except Exception as error:
        raised = source.raised_by_rule(op, error) or source.Raised(error, place)
        return rule_failure(op, raised, f" ({case})")
    if other := wrong_gradients(gradients, floats):
        return found(op.name, *other, place)
    # A slope cannot be better than the rounding of the two values that it is the difference of.
    terms = zip(d_outputs, case.reference, strict=True)
    rounding = EPSILON * sum(float(np.abs(d * o).sum()) for d, o in terms) / STEP
    for name in names:
        gradient, slope = gradients[floats.index(name)], slopes[name]
        own = total_of(gradient, slope.shape)
        if own is None:
            text = f"it has the shape {np.shape(gradient)} instead of {slope.shape} ({case})"
            return found(op.name, f"gradient of `{name}` has a wrong shape", text, place)
        scale = max(1.0, float(np.abs(slope[np.isfinite(slope)]).max(initial=0)))
        bad = np.isfinite(slope) & ~(np.abs(own - slope) <= ALLOWED * scale + 4 * rounding)
        if bad.any():
            return wrong(case, name, own, slope, bad)
    return None


def total_of(gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient summed over axes that the input was broadcast along; None if it cannot be."""
    array = np.zeros(shape) if gradient is None else np.asarray(gradient, np.float64)
    if array.ndim < len(shape):
        return None
    array = array.sum(tuple(range(array.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    array = array.sum(axes, keepdims=True)
    return array if array.shape == shape else None


def differences(case: OpCase, name: str, d_outputs: list[Any]) -> Any:
    """The slope of the loss along each number of an input (NaN beyond the first ones)."""
    value = np.array(case.values[name], np.float64, order="C")  # or `reshape` below would copy it
    slopes = np.full(value.size, np.nan)
    for i in range(min(value.size, MOST_ENTRIES)):
        moved = [np.array(value) for _ in range(2)]
        moved[0].reshape(-1)[i] += STEP
        moved[1].reshape(-1)[i] -= STEP
        up, down = (loss(case, {name: one}, d_outputs) for one in moved)
        slopes[i] = (up - down) / (2 * STEP)
    return slopes.reshape(value.shape)


def loss(case: OpCase, changed: dict[str, Any], d_outputs: list[Any]) -> float:
    """Σ d_output · output, over all outputs that a caller gets."""
    outputs = results_of(case.op, {**case.values, **changed})
    pairs = zip(case.op.signature.outputs, d_outputs, outputs, strict=True)
    return sum(
        float((d * o).sum()) for spec, d, o in pairs if spec.kind in FLOATS and not spec.kept
    )


def wrong(case: OpCase, name: str, own: Any, slopes: Any, bad: Any) -> Finding:
    """The finding for a gradient that is not the slope, with its kind of mistake."""
    known = np.isfinite(slopes)
    if not own.any():
        bug = f"gradient of `{name}` is forgotten"
    elif np.allclose(own[known], -slopes[known], rtol=1e-4, atol=1e-6):
        bug = f"gradient of `{name}` has the wrong sign"
    else:
        bug = f"gradient of `{name}` is wrong"
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    text = f"at {list(at)} the rule gives {own[at]:.6g}, the slope of the reference is "
    text += f"{slopes[at]:.6g} ({case})"
    return found(case.op.name, bug, text, source.rule(case.op))
