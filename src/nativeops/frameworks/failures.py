# SPDX-License-Identifier: Apache-2.0
"""What a call whose arguments fit can still run into, in the op's own words."""

import math
from collections.abc import Sequence
from typing import Any

from nativeops.call import Op
from nativeops.errors import AllocationError, NativeOpsError, message, thrown
from nativeops.library import missing_kernel
from nativeops.signature import ArraySpec, Solution

_ADDRESSES = 1 << 47  # bytes that a process can address


def no_memory(op: Op[Any], shape: tuple[Any, ...], dtype: str) -> AllocationError:
    """The error for a result that does not fit into memory; the same text in all frameworks."""
    size = f"{dtype}{list(shape)} has {_bytes(shape, dtype)} bytes."
    text = f"there is no memory for the result: {size}"
    hint = "split the arrays and call it for the parts."
    return AllocationError(message(op.name, text, hint=hint))


def failure(
    op: Op[Any],
    solution: Solution,
    error: object,
    device: str = "cpu",
    made: Sequence[ArraySpec] = (),
) -> NativeOpsError | None:
    """What a framework reported of arguments that fit, in the op's own words; None if unknown.

    Args:
        op: The op.
        solution: What its arguments determine.
        error: What was reported; frameworks put words of their own around it.
        device: Where the call ran.
        made: The results that the call makes, if not all.
    """
    check_results(op, solution)
    text = str(error)
    if "there is no memory for a workspace" in text:
        return AllocationError(message(op.name, "there is no memory for a workspace."))
    if "there is no memory for a result" in text or "RESOURCE_EXHAUSTED" in text:
        spec = (made or op.signature.outputs)[0]
        shape = op.signature.output_shape(spec, solution)
        return no_memory(op, shape, op.signature.output_dtype(spec, solution))
    if "there is no kernel for these dtypes" in text:
        return missing_kernel(op, solution.dtypes, device)
    return thrown(op.name, text)


def check_addressable(op: Op[Any], shape: Sequence[Any], dtype: str) -> None:
    """Refuse a result that no machine can hold; sizes that are not known yet pass."""
    if all(isinstance(size, int) for size in shape) and _bytes(shape, dtype) >= _ADDRESSES:
        raise no_memory(op, tuple(shape), dtype)


def check_results(op: Op[Any], solution: Solution) -> None:
    """Refuse a call with a result that no machine can hold."""
    for spec in op.signature.outputs:
        shape = op.signature.output_shape(spec, solution)
        check_addressable(op, shape, op.signature.output_dtype(spec, solution))


def _bytes(shape: Sequence[Any], dtype: str) -> int:
    sizes = {"bool": 1, "uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4}
    return math.prod(map(int, shape)) * sizes.get(dtype, 8)
