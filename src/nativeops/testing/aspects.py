# SPDX-License-Identifier: Apache-2.0
"""What must hold for a case beyond its values: any threads, any instruction set, a given `out`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nativeops import library
from nativeops.glue import raw_text
from nativeops.signature import ArraySpec
from nativeops.testing.arrays import filled, numpy_dtype
from nativeops.testing.tolerance import assert_same

if TYPE_CHECKING:
    from nativeops.testing.case import Case

Results = list[tuple[ArraySpec, Any]]
THREADS = (1, 2, 3)
CANARY = 0xA5


def levels() -> list[str]:
    """The instruction sets that this machine has and that were built."""
    built = {path.name for path in library.kernel_libraries()}
    best = library.extension().levels()[0]
    return [n for n in library.LEVELS[: best + 1] if f"libnativeops_cpu_{n}.so" in built]


@contextmanager
def selected(level: str) -> Iterator[None]:
    """Use no better instruction set than this one in built-in ops."""
    before = library.selected()
    library.select(level, user_ops=False)
    try:
        yield
    finally:
        library.select(before, user_ops=False)


@contextmanager
def num_threads(n: int) -> Iterator[None]:
    """Use this many threads."""
    before = library.get_num_threads()
    library.set_num_threads(n)
    try:
        yield
    finally:
        library.set_num_threads(before)


def first_of_threads(
    call: Callable[[], Sequence[Any]],
    counts: Iterable[int] = THREADS,
    same: Callable[[Any, Any], bool] = np.array_equal,
) -> Sequence[Any]:
    """What a call gives with the first of these numbers of threads: the same as with all others."""
    results = []
    for n in counts:
        with num_threads(n):
            results.append((n, call()))
    (_, first), *others = results
    for n, other in others:
        assert all(same(a, b) for a, b in zip(first, other, strict=True)), f"with {n} threads"
    return first


def check_threads(case: "Case", first: Results) -> None:
    """Any number of threads gives the same bits."""
    for n in THREADS:
        with num_threads(n):
            case.check_same(first, f"with {n} threads")


def check_levels(case: "Case") -> None:
    """Each instruction set, down to the portable kernel, is right. A user's op is built for one."""
    if not case.op.built_in:
        return
    for level in levels():
        with selected(level):
            case.check_values(case.results(), f"with {level}, ")


def check_optional(case: "Case", first: Results) -> None:
    """An optional result has the same bits when it is the only one, and the others are None."""
    expected = {spec.name: array for spec, array in first}
    optional = [spec.name for spec, _ in first if spec.optional]
    for name in optional:
        result = case.callable(**case.given, want=(name,))._asdict()
        values = case.arrays.values
        assert_same(values(result[name]), values(expected[name]), f"`{name}` alone")
        unwanted = [other for other in optional if other != name]
        assert all(result[other] is None for other in unwanted), f"more than `{name}` was made"


def check_out(case: "Case", first: Results) -> None:
    """Results written into given arrays, with or without gaps, touch nothing else."""
    if "out" in case.given:
        return
    for step in (1, 2):
        places = [_canaries(case, spec, expected.shape, step) for spec, expected in first]
        outs = [out for _, _, out in places]
        given = case.op(**case.given, out=tuple(outs) if len(outs) > 1 else outs[0])
        given = given if case.op.result else (given,)
        for made, (raw, inside, out), (spec, expected) in zip(given, places, first, strict=False):
            assert made is out, "`out` was given, but another array was returned"
            if case.op.built_in:
                assert_same(out, expected, f"`{spec.name}` in a given `out`")
            else:  # a compiler may fuse products and sums otherwise where numbers lie apart
                case.check_values([(spec, out)], "in a given `out`, ")
            raw[inside] = CANARY
            assert (raw == CANARY).all(), f"something was written beside `{spec.name}`"


def unwritten(case: "Case") -> str:
    """The first element of a result that a call leaves as it was; empty if there is none."""
    specs = [spec for spec in case.op.signature.outputs if not spec.kept]
    if case.framework != "numpy" or "out" in case.given:
        return ""
    shapes = [case.op.signature.output_shape(spec, case.solution) for spec in specs]
    left: list[Any] = [True] * len(specs)
    for byte in (1, 0):  # which are also flags; no result has the bytes of both
        outs = [filled(s, case.dtype(spec), byte) for s, spec in zip(shapes, specs, strict=True)]
        before = [out.copy() for out in outs]
        case.op(**case.given, out=tuple(outs) if len(outs) > 1 else outs[0])
        left = [each & (o == b) for each, o, b in zip(left, outs, before, strict=True)]
    for spec, same in zip(specs, left, strict=True):
        if same.any():
            at = tuple(int(i) for i in np.argwhere(same)[0])
            count = f"{int(same.sum())} of {same.size} elements" if same.ndim else "it"
            where = f"element {at} of " if same.ndim else ""
            return f"{where}`{spec.name}` is never written ({count}){_one_thread(case)}"
    return ""


def _one_thread(case: "Case") -> str:
    """Why text for CUDA may leave something out."""
    if raw_text(case.op.kernel) != "together":
        return ""
    return "; on the CPU a block has one thread: let it stride by blockDim and gridDim"


def _canaries(case: "Case", spec: Any, sizes: tuple[int, ...], step: int) -> tuple[Any, Any, Any]:
    """The bytes of an array with gaps or without, where its middle is, and that as numbers."""
    shape, dtype = tuple(step * size + 4 for size in sizes), numpy_dtype(case.dtype(spec))
    raw = np.full((*shape, dtype.itemsize), CANARY, np.uint8)
    inside = (slice(2, -2, step),) * len(sizes) if sizes else ...
    whole = raw.view(dtype)[..., 0]
    return raw, inside, whole[inside] if sizes else whole
