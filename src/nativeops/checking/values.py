# SPDX-License-Identifier: Apache-2.0
"""The generated matrix of an op in one framework, as findings instead of failing tests."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.checking import source
from nativeops.checking.faults import fault
from nativeops.checking.finding import Case, Finding, Steps, Unchecked, found
from nativeops.errors import NativeOpsError, RangeError
from nativeops.testing import Case as OpCase
from nativeops.testing import cases, installed, mistakes, plain_case
from nativeops.testing.aspects import num_threads, unwritten
from nativeops.testing.claims import ClaimError, check_reuse
from nativeops.testing.draw import (
    all_attributes,
    base_sizes,
    defaults,
    fits,
    free_names,
    numbers,
)
from nativeops.testing.matrix import modes
from nativeops.testing.tolerance import is_same

# What an assertion of the matrix says, and the bug that it means.
BUGS = (
    (r"with \d+ threads", "results depend on the number of threads"),
    (r"of a second call", "two equal calls give different results"),
    (r"was written beside", "writes beside its result"),
    (r"^the argument `", "writes to an argument"),
    (r"^the slope along|^`d_", "wrong gradient"),
    (r"there is no gradient", "no clear error where there is no gradient"),
    (r"\d+ of \d+ elements are wrong", "wrong values"),
)
THREADS = (1, 2, 3, 5)
LONG = (1 << 12, 1 << 15, 1 << 18, 1 << 21)  # sizes of one axis
BLOCK = 2 * 256 + 45  # more than two of most blocks, and no multiple
DRAWS = 8  # of other numbers for a plain case
AT_ONCE = 0.2  # seconds of calls from two threads
LONG_ENOUGH = 0.5  # seconds for all runs of a case: a longer axis would take much longer


def steps(op: Op[Any], framework: str) -> Steps:
    """All cases of a framework up to the first that fails, then all wrong arguments."""
    for case in matrix(op, framework):
        yield Case(str(case))  # before it runs: the process may not live on
        if problem := run(case):
            yield problem
            return
    if not installed("ml_dtypes") and framework == "numpy":
        yield Unchecked("bfloat16 in NumPy: run `pip install ml_dtypes`")
    for mistake in mistakes(op):
        yield Case(str(mistake))
        try:
            mistake.run(["numpy"] if framework == "numpy" else ["numpy", framework])
        except AssertionError as error:
            where = source.declaration(op)
            yield found(op.name, "a wrong argument is not explained", str(error), where)
            return


def matrix(op: Op[Any], framework: str) -> Sequence[OpCase]:
    """The cases; beside NumPy without what depends on the kernel alone, but also compiled."""
    brief = framework != "numpy"
    chosen = [
        case for mode in modes(framework) for case in cases(op, framework, mode=mode, brief=brief)
    ]
    return [case for case in chosen if usable(case)] + ([] if brief else beyond_a_block(op))


def beyond_a_block(op: Op[Any]) -> list[OpCase]:
    """Each axis longer than what kernels usually take at a time."""
    sizes = [{**base_sizes(op), name: BLOCK} for name in free_names(op)]
    return [plain_case(op, each, "sizes") for each in sizes if fits(op, each, defaults(op))]


def usable(case: OpCase) -> bool:
    """Whether NumPy can hold the case's numbers."""
    needed = case.framework == "numpy" and "bfloat16" in case.dtypes.values()
    return not needed or installed("ml_dtypes")


def run(case: OpCase) -> Finding | None:
    """Run a case; what is wrong with it."""
    try:
        case.run()
    except Exception as error:
        if wrong := fault(case.op, error, case):
            return wrong
        if isinstance(error, AssertionError):
            return explain(case, str(error))
        text = f"{type(error).__name__}: {error} ({case})"
        if case.op.make_example is None and isinstance(error, RangeError):
            text += f"; say what values are valid with `@{case.op.name}.example`"
        return found(case.op.name, "a valid call fails", text, source.kernel(case.op))
    return None


def explain(case: OpCase, said: str) -> Finding:
    """The finding for an assertion that failed."""
    bug = next((bug for pattern, bug in BUGS if re.search(pattern, said)), "wrong results")
    gradient = bug == "wrong gradient"
    if not gradient and (left := not_written(case)):
        return left
    if bug == "wrong values":
        bug = kind_of_wrong(case)
    place = source.rule(case.op) if gradient else source.kernel(case.op)
    return found(case.op.name, bug, f"{said} ({case})", place)


def not_written(case: OpCase) -> Finding | None:
    """The finding for a kernel that leaves a part of a result as it was."""
    left = unwritten(case)
    place = source.kernel(case.op)
    return (
        found(case.op.name, "a result is not written", f"{left} ({case})", place) if left else None
    )


def kind_of_wrong(case: OpCase) -> str:
    """Whether all values have the wrong sign, or only some cases are wrong."""
    values = [case.arrays.values(array) for _, array in case.results()]
    specs = case.op.signature.outputs
    references = [r for s, r in zip(specs, case.reference, strict=True) if not s.kept]
    pairs = [(np.asarray(v, float), np.asarray(r)) for v, r in zip(values, references, strict=True)]
    alike = [v.shape == r.shape and np.allclose(v, -r, rtol=1e-2, atol=1e-2) for v, r in pairs]
    if all(alike) and any(r.any() for _, r in pairs):
        return "wrong sign"
    if any(map(fails, plain_ones(case))):
        return "wrong values"
    words = {
        "layout": f"for arrays that lie `{case.layout}`",
        "leads": "for leading axes",
        "together": "for several attributes at once",
    }
    return f"wrong values {words.get(case.group, f'for some {case.group}')}"


def plain_ones(case: OpCase) -> Iterator[OpCase]:
    """Cases in which a kernel is wrong that is so by its numbers alone: this case's, or others."""
    plain = next(cases(case.op))
    yield plain
    if case.group == "layout":
        yield replace(case, layout="contiguous", seed=str(case))
    yield from (replace(plain, dtypes=case.dtypes, seed=f"draw {n}") for n in range(DRAWS))


def fails(case: OpCase) -> bool:
    """Whether anything is wrong with a case, whatever it is."""
    try:
        case.run()
    except Exception:
        return True
    return False


def thread_steps(op: Op[Any]) -> Steps:
    """Enough work for several threads gives the same bits with any number of them, every time."""
    for case in cases(op):
        if case.group != "large" or not usable(case):
            continue
        yield Case(str(case))
        if wrong := other_bits(case):
            yield wrong
            return
    for name in free_names(op):
        ran: list[OpCase] = []
        for case in long_cases(op, name):
            started = time.perf_counter()
            ran.append(case)
            yield Case(str(case))
            if wrong := other_bits(case) or disturbed(ran[-2:]):
                yield wrong
                return
            if time.perf_counter() - started > LONG_ENOUGH:
                break
        for case in ran[-1:]:  # what calls share may come from their attributes alone
            for other in with_other_attributes(case):
                yield Case(f"{case} and {other}")
                if wrong := disturbed([case, other]):
                    yield wrong
                    return


def disturbed(calls: Sequence[OpCase]) -> Finding | None:
    """What calls from several Python threads at once make otherwise than one after the other."""
    with num_threads(1):
        alone = [bits(case) for case in calls]
        until = time.perf_counter() + AT_ONCE
        with ThreadPoolExecutor(len(calls)) as pool:
            wrong = any(list(pool.map(partial(differs, until), calls, alone)))
    if not wrong:
        return None
    text = f"other bits while another thread calls it, too ({calls[-1]})"
    return found(calls[-1].op.name, "calls disturb each other", text, source.kernel(calls[-1].op))


def differs(until: float, case: OpCase, alone: list[bytes]) -> bool:
    """Whether one of many calls gives other results."""
    while time.perf_counter() < until:
        if bits(case) != alone:
            return True
    return False


def bits(case: OpCase) -> list[bytes]:
    """What a call makes."""
    return [np.asarray(case.arrays.values(array)).tobytes() for _, array in case.results()]


def with_other_attributes(case: OpCase) -> Iterator[OpCase]:
    """The same with another value of each attribute in turn, if that is no size and not refused."""
    arrays = (*case.op.signature.inputs, *case.op.signature.outputs)
    seen = {name for spec in arrays for axis in spec.axes for name in axis.names()}
    for attributes in all_attributes(case.op):
        differing = [n for n, v in attributes.items() if v != case.attributes[n]]
        if not differing or differing[0] in seen:
            continue
        other = replace(case, attributes=attributes)
        try:
            bits(other)
        except NativeOpsError:
            continue
        seen.add(differing[0])
        yield other


def long_cases(op: Op[Any], name: str) -> Iterator[OpCase]:
    """One axis longer and longer: two threads that change one number seldom meet on a short one."""
    for size in LONG:
        sizes, attributes = {**base_sizes(op), name: size}, defaults(op)
        if not fits(op, sizes, attributes):
            return
        known = {**sizes, **numbers(attributes)}
        arrays = (*op.signature.inputs, *op.signature.outputs)
        most = max(math.prod(axis.evaluate(known) for axis in spec.axes) for spec in arrays)
        if most > 2 * LONG[-1]:
            return
        case = plain_case(op, sizes)
        if usable(case):
            yield case


def other_bits(case: OpCase) -> Finding | None:
    """What several threads make of a case that one makes otherwise."""
    with num_threads(1):
        results = case.results()
    first = [np.array(case.arrays.values(a)) for _, a in results]
    for n in THREADS * 3:
        with num_threads(n):
            again = [case.arrays.values(a) for _, a in case.results()]
        if not all(map(is_same, again, first)):
            if left := not_written(case):
                return left
            text = f"other bits with {n} threads than in a call with one before ({case})"
            bug = "results depend on the number of threads"
            return found(case.op.name, bug, text, source.kernel(case.op))
    try:
        check_reuse(case, results)
    except ClaimError as error:
        return fault(case.op, error, case)
    return None
