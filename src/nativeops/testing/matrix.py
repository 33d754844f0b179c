# SPDX-License-Identifier: Apache-2.0
"""All cases of an op: framework x device x dtype x {layout, leading axes, sizes, attributes}."""

import importlib.util
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nativeops.call import Op
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.signature import VARIABLES
from nativeops.testing.arrays import STRIDED
from nativeops.testing.case import Case
from nativeops.testing.draw import (
    Lead,
    all_absent,
    all_attributes,
    all_sizes,
    all_told,
    base_sizes,
    check_sizes,
    defaults,
    fits,
    large_sizes,
    mixed_attributes,
)
from nativeops.testing.layouts import LAYOUTS
from nativeops.testing.wrong import mistakes

# They compile a call for each shape, also outside functions; or nearly so.
COMPILING = ("jax", "tensorflow")
LEADS: tuple[Lead, ...] = ((), (0,), (1,), (2, 3), (2, 1, 2))
# Of the inputs that have leading axes, in turn: each is broadcast against the next.
UNLIKE: tuple[tuple[Lead, ...], ...] = (
    ((), (4,)),
    ((2, 1), (3,)),
    ((3,), (2, 1)),
    ((1,), (0,)),
    ((2, 3), (1, 1)),
)


def installed(framework: str) -> bool:
    """Whether a framework can be imported."""
    return importlib.util.find_spec(framework) is not None


def dtype_choices(op: Op[Any]) -> list[dict[str, str]]:
    """All combinations of the op's dtype variables."""
    variables = op.signature.variables
    chosen = itertools.product(*(VARIABLES[variable] for variable in variables))
    return [dict(zip(variables, dtypes, strict=True)) for dtypes in chosen]


def _leads(op: Op[Any], turn: Sequence[Lead]) -> tuple[Lead, ...]:
    """The leading axes of each input; none where it has none."""
    cycle = itertools.cycle(turn)
    return tuple(next(cycle) if spec.batch else () for spec in op.signature.inputs)


def _batched(op: Op[Any]) -> int:
    return sum(bool(spec.batch) for spec in op.signature.inputs)


def modes(framework: str) -> tuple[str, ...]:
    """How calls may run in a framework."""
    return ("eager", "compiled") if FRAMEWORKS[framework].compiler else ("eager",)


def cases(
    op: Op[Any],
    framework: str = "numpy",
    device: str = "cpu",
    mode: str = "eager",
    brief: bool = False,
) -> Iterator[Case]:
    """All cases of an op for one framework, device and mode.

    `brief` leaves out what depends on the kernel alone: all dtypes, an empty array, leading axes,
    attributes, absent inputs, and one large enough for threads. So does a mode that compiles each
    case, which takes long; an op that is derived from another has that one's attributes there, and
    PyTorch's compiler, which takes seconds a case, has those of eager calls.
    """
    check_sizes(op)
    brief = brief or mode == "compiled" or framework in COMPILING
    few = brief and (op.twice is not None or (framework, mode) == ("torch", "compiled"))
    choices = dtype_choices(op)
    for number, (group, changes) in enumerate(_variations(op, framework in STRIDED, brief, few)):
        for dtypes in _chosen(choices, number, group, brief):
            given: dict[str, Any] = {
                "sizes": base_sizes(op),
                "leads": _leads(op, [(2,)]),
                "attributes": defaults(op),
                **changes,
            }
            layout = LAYOUTS[given.get("layout", "contiguous")]
            skip = layout.numpy_only and framework != "numpy"
            skip |= layout.repeats and op.make_example is not None
            skip |= not all_told(op, given.get("absent", ()))
            if not skip and fits(op, given["sizes"], given["attributes"]):
                yield Case(op, framework, device, dtypes, group=group, mode=mode, **given)


def plain_case(op: Op[Any], sizes: Mapping[str, int], group: str = "") -> Case:
    """The plainest case with these sizes: in NumPy, without leading axes, attributes by default."""
    leads = tuple(() for _ in op.signature.inputs)
    return Case(op, "numpy", "cpu", dtype_choices(op)[0], sizes, leads, defaults(op), group=group)


def _chosen(
    choices: Sequence[dict[str, str]], number: int, group: str, brief: bool
) -> Sequence[dict[str, str]]:
    """The dtypes of a variation.

    Of sizes and absent inputs there are many: the first dtypes and, one after another, the others.
    """
    if brief:
        return choices[: None if number == 0 else 1]
    if group not in ("sizes", "absent") or len(choices) == 1:
        return choices
    return [choices[0], choices[1 + number % (len(choices) - 1)]]


def _variations(
    op: Op[Any], strided: bool, brief: bool, few: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What differs from the plainest case, one thing at a time."""
    for layout in list(LAYOUTS)[: None if not brief else 2] if strided else ["contiguous"]:
        yield "layout", {"layout": layout}
    if _batched(op):
        for lead in LEADS[1:5:3] if brief else LEADS:
            yield "leads", {"leads": _leads(op, [lead])}
    if _batched(op) > 1:
        for turn in UNLIKE[:2] if brief else UNLIKE:
            layout = "offset" if strided else "contiguous"
            yield "leads", {"leads": _leads(op, turn), "layout": layout}
    sizes_list = list(all_sizes(op, defaults(op)))
    for sizes in sizes_list[:1] if brief else sizes_list:
        yield "sizes", {"sizes": sizes, "leads": _leads(op, [()])}
    for attributes in itertools.islice(all_attributes(op), 1, 1 if few else None):
        yield "attributes", {"attributes": attributes}
    for attributes in [] if brief else mixed_attributes(op):
        yield "together", {"attributes": attributes, "layout": "every second"}
    for absent in all_absent(op)[-1 if few else 0 :]:
        yield "absent", {"absent": absent}
    yield "large", {"sizes": large_sizes(op), "leads": _leads(op, [(3,)])}


def check(op: Op[Any], framework: str | None = None, device: str = "cpu") -> int:
    """Check an op in every installed framework, and its errors in all together.

    Args:
        op: The op.
        framework: Only this one.
        device: Where the arrays are.

    Returns: the number of cases. The first that fails raises an AssertionError that names it.
    """
    from nativeops.testing.guard import check_memory  # which needs the cases from here

    names = [framework] if framework else [name for name in FRAMEWORKS if installed(name)]
    n_cases = 0
    for case in (
        c for name in names for mode in modes(name) for c in cases(op, name, device, mode)
    ):
        try:
            case.run()
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
        n_cases += 1
    for mistake in mistakes(op):
        mistake.run(names)
        n_cases += 1
    if device == "cpu":
        n_cases += check_memory(op)
    return n_cases
