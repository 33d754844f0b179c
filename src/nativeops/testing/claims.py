# SPDX-License-Identifier: Apache-2.0
"""What a declaration claims beyond its signature: axes whose parts are `independent`, and `reuse`.

Frameworks rely on it without a look: a wrong claim gives wrong numbers on several devices, under
`vmap`, or where memory is used again, and right ones everywhere else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nativeops.call import Op
from nativeops.signature import VARIABLES, ArraySpec
from nativeops.testing.aspects import Results, num_threads
from nativeops.testing.draw import lead_name
from nativeops.testing.layouts import LAYOUTS
from nativeops.testing.returned import results_of
from nativeops.testing.tolerance import assert_close, assert_same

if TYPE_CHECKING:
    from nativeops.testing.case import Case

MOST_PARTS = 6
ALLOWED = 1e-6  # of the largest number, or of 1: sums of parts round otherwise than the whole's
GROUPS = ("layout", "leads", "attributes", "absent")  # which cases are cut into parts
THREADS = (1, 3)


class ClaimError(AssertionError):
    """A claim of a declaration that does not hold: which one, and what was seen."""

    def __init__(self, claim: str, text: str) -> None:
        super().__init__(f"{claim}: {text}")
        self.claim, self.text = claim, text


def check_parts(case: "Case") -> None:
    """The parts along each independent axis, and along leading ones, make the whole result.

    References alone are compared: that the kernel is the reference is tested at every size.
    """
    first = all(VARIABLES[kind][0] == dtype for kind, dtype in case.dtypes.items())
    if case.group not in GROUPS or not first or case.layout != "contiguous":
        return
    for axis in case.op.independent:
        hint = f"take `{axis}` out of `independent`, or compute each item along it from that item"
        _check_axis(case, axis, f"`{axis}` is declared `independent`, but is not", hint)
    if all(spec.batch for spec in case.op.signature.outputs):
        name = lead_name(case.op)
        for place in range(1, len(case.lead) + 1):
            claim = f"leading axes `*{name}` must be independent, but are not"
            hint = "give the axis whose items depend on each other a name of its own"
            _check_axis(case, place, claim, hint)


def _check_axis(case: "Case", label: str | int, claim: str, hint: str) -> None:
    """Compare one axis: a named one, or a leading one, counted from the right."""
    wholes, specs = case.reference, case.op.signature.outputs
    pairs = zip(specs, wholes, strict=True)
    places = [_place(spec, label, np.ndim(whole)) for spec, whole in pairs]
    parts = [results_of(case.op, values) for values in _parts(case, label)]
    for spec, whole, place, *found in zip(specs, wholes, places, *parts, strict=True):
        if len(found) < 2:
            return
        made = sum(found) if place is None else np.concatenate(found, place)
        how = "added up" if place is None else "side by side"
        finite = np.abs(np.asarray(whole, np.float64)[np.isfinite(whole)])
        allowed = ALLOWED * max(1.0, float(finite.max(initial=0.0)))
        try:
            assert_close(made, whole, allowed, f"`{spec.name}` of {len(found)} parts, {how}")
        except AssertionError as error:
            why = f"Several devices would compute a part each: {hint}."
            raise ClaimError(claim, f"{error}. {why}") from None


def _place(spec: ArraySpec, label: str | int, rank: int) -> int | None:
    """Where an array has the axis; None if it has not."""
    lead = rank - len(spec.axes)
    if isinstance(label, int):
        return lead - label if spec.batch and label <= lead else None
    names = [axis.name for axis in spec.axes]
    return lead + names.index(label) if label in names else None


def _parts(case: "Case", label: str | int) -> Iterator[dict[str, Any]]:
    """The arguments for each part; one item each if there are few."""
    places = {}
    for spec in case.inputs:
        value = case.values[spec.name]
        place = _place(spec, label, value.ndim)
        if place is not None and (isinstance(label, str) or value.shape[place] != 1):
            places[spec.name] = place
    size = max((case.values[name].shape[place] for name, place in places.items()), default=0)
    step = max(1, size // MOST_PARTS)
    for start in range(0, size, step):
        part = slice(start, start + step)
        cut = {n: case.values[n][(slice(None),) * place + (part,)] for n, place in places.items()}
        yield {**case.values, **cut}


def check_reuse(case: "Case", first: Results) -> None:
    """Results that lie where an input lies have the same bits, for one thread and for several."""
    shapes = {spec.name: array.shape for spec, array in first}
    pairs = reused(case.op, case.given, shapes)
    layout = LAYOUTS[case.layout]
    if layout.repeats and any(case.given[s.reuse].ndim >= layout.min_rank for s in pairs):
        return  # nobody can write there
    for chosen in [pairs, *([one] for one in pairs if len(pairs) > 1)]:
        for n in THREADS if chosen else ():
            with num_threads(n):
                _check_over(case, first, chosen)


def reused(
    op: Op[Any], inputs: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> list[ArraySpec]:
    """The results that may take over an input here: one of the same shape, and not empty."""
    return [
        spec
        for spec in op.signature.outputs
        if spec.reuse in inputs and spec.name in shapes
        if tuple(inputs[spec.reuse].shape) == tuple(shapes[spec.name])
        if inputs[spec.reuse].size
    ]


def _check_over(case: "Case", first: Results, over: Sequence[ArraySpec]) -> None:
    """One call whose results overwrite inputs."""
    places = {
        spec.name: case.arrays.place(case.values[spec.reuse], case.dtype(spec), case.layout).array
        for spec in over
    }
    given = {**case.given, **{spec.reuse: places[spec.name] for spec in over}}
    outs = tuple(places.get(spec.name) for spec, _ in first)
    made = case.op(**given, out=outs if len(outs) > 1 else outs[0])
    found = made._asdict() if case.op.result else {first[0][0].name: made}
    for spec, expected in first:
        try:
            assert_same(found[spec.name], expected, f"`{spec.name}`")
        except AssertionError as error:
            raise wrong_reuse(over, f"{error} from that in new memory") from None


def wrong_reuse(over: Sequence[ArraySpec], text: str) -> ClaimError:
    """The error for results that are wrong where they overwrite inputs."""
    said = " and ".join(f"`{spec.name}` reuses `{spec.reuse}`" for spec in over)
    hint = "Take it out of `reuse`, or read all that is needed of the input before it is written."
    return ClaimError(f"wrong where {said}, as declared", f"{text}. {hint}")
