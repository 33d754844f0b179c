# SPDX-License-Identifier: Apache-2.0
"""Reading and writing beyond arrays: they end, and then start, at memory nobody may touch.

All cases of an op run in a child process, so that a kernel that goes too far fails the test and not
the tests' process. The kernel is called through the core, with every result that the op can make,
also those that are kept for the gradient.
"""

import ctypes
import mmap
import os
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.library import DTYPES, define, extension
from nativeops.testing.arrays import numpy_dtype
from nativeops.testing.aspects import CANARY
from nativeops.testing.case import Case

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(shape: tuple[int, ...], dtype: str, at_end: bool) -> tuple[Any, Any]:
    """An array whose end (or start) is at a page without access, and the memory around it."""
    kind = numpy_dtype(dtype)
    n_bytes = int(np.prod(shape)) * kind.itemsize
    inner = max(1, -(-n_bytes // _PAGE)) * _PAGE
    memory = mmap.mmap(-1, inner + 2 * _PAGE)
    whole = np.frombuffer(memory, np.uint8)
    whole[:] = CANARY
    for start in (0, _PAGE + inner):
        address = ctypes.c_void_p(whole.ctypes.data + start)
        if _libc.mprotect(address, ctypes.c_size_t(_PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = _PAGE + (inner - n_bytes if at_end else 0)
    array = np.ndarray(shape, kind, buffer=memory, offset=offset)
    return array, whole[_PAGE : _PAGE + inner]


def memory_cases(op: Op[Any]) -> Iterator[Case]:
    """Those cases whose arrays fill their memory, so that one step too far leaves it."""
    from nativeops.testing.matrix import cases, installed

    for case in cases(op):
        usable = "bfloat16" not in case.dtypes.values() or installed("ml_dtypes")
        if case.layout in ("contiguous", "transposed", "backwards") and usable:
            yield case


def check_memory(op: Op[Any]) -> int:
    """Run all cases between guard pages; the number of cases."""
    define(op)
    chosen = list(memory_cases(op))
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python and JAX warn of any fork beside threads; the pool of this package allows it.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os._exit(_run_all(chosen, writer))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        code = os.waitstatus_to_exitcode(status)
        how = f"died of signal {-code}: it left its arrays" if code < 0 else "failed"
        raise AssertionError(f"{how} in the last case of:\n{said[-3000:]}")
    return len(chosen)


def _run_all(chosen: list[Case], writer: int) -> int:
    try:
        for case in chosen:
            os.write(writer, f"{case}\n".encode())
            own = replace(case)  # with its arrays gone after it
            for at_end in (True, False):
                _run_guarded(own, at_end)
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
        return 1
    return 0


def _run_guarded(case: Case, at_end: bool) -> None:
    signature = case.op.signature
    inputs = {}
    for spec in case.inputs:
        placed = case.arrays.place(case.values[spec.name], case.dtype(spec), case.layout)
        array, _ = guarded(placed.buffer.shape, case.dtype(spec), at_end)
        array[...] = placed.buffer
        inputs[spec.name] = _same_view(array, placed.array), case.dtype(spec)
    solution = case.solution
    outputs = [
        (spec, *guarded(signature.output_shape(spec, solution), case.dtype(spec), at_end))
        for spec in signature.outputs
    ]
    places = tuple((_plain(a, case.dtype(s)), DTYPES.index(case.dtype(s))) for s, a, _ in outputs)
    numbers = tuple(case.values[spec.name] for spec in signature.attributes)
    held = tuple(
        (_plain(array, dtype), DTYPES.index(dtype)) if array is not None else None
        for array, dtype in (inputs.get(spec.name, (None, "")) for spec in signature.inputs)
    )
    said = extension().run(case.op.id, held, places, numbers)
    assert not said, said
    for spec, array, memory in outputs:
        name = f"`{spec.name}`"
        case.check_close(spec, array, name)
        rest = memory[: memory.size - array.nbytes] if at_end else memory[array.nbytes :]
        assert (rest == CANARY).all(), f"something was written beside {name}"


def _same_view(array: Any, like: Any) -> Any:
    """The view of `array` that `like` is of its own memory."""
    if array.size == 0:
        return array.reshape(like.shape)
    first = array.ravel()[-1:] if any(s < 0 for s in like.strides) else array.ravel()[:1]
    return np.lib.stride_tricks.as_strided(first, like.shape, like.strides)


def _plain(array: Any, dtype: str) -> Any:
    """The extension takes bfloat16 as items of the same size."""
    return array.view(np.float16) if dtype == "bfloat16" else array
