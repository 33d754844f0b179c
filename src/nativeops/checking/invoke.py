# SPDX-License-Identifier: Apache-2.0
"""Kernels called through the core alone, built for a debug device or with a sanitizer."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from nativeops import library
from nativeops.build import build
from nativeops.call import Op
from nativeops.library import DTYPES, extension
from nativeops.signature import ArraySpec
from nativeops.testing import Case
from nativeops.testing.arrays import filled
from nativeops.testing.claims import reused

UNWRITTEN = 0xA5  # the bytes of results before a kernel writes them: of no other number


def use(op: Op[Any], device: str, sanitize: str) -> None:
    """Build the op so, and make it known to the core with that kernel alone."""
    path = str(build(op, device, sanitize, ahead=True))
    with patch.object(library, "_load_kernels", lambda _: extension().load(path)):
        library.define(op)


def call(
    op: Op[Any],
    inputs: Sequence[tuple[Any, str] | None],
    outputs: Sequence[tuple[Any, str] | None],
    numbers: Any,
) -> str:
    """Run the kernel on arrays with their dtypes; what it says if it fails, else nothing."""
    held, places = (
        tuple(each and (plain(each[0], each[1]), DTYPES.index(each[1])) for each in arrays)
        for arrays in (inputs, outputs)
    )
    said: str = extension().run(op.id, held, places, tuple(numbers))
    return said


def may_reuse(case: Case) -> list[ArraySpec]:
    """The results that may take over an input's memory."""
    signature, solution = case.op.signature, case.solution
    shapes = {spec.name: signature.output_shape(spec, solution) for spec in signature.outputs}
    return reused(case.op, {name: one.array for name, one in case.placed.items()}, shapes)


def run(case: Case, over: Sequence[ArraySpec] = ()) -> str:
    """Run a case; what is wrong, if anything is."""
    said, made = results(case, over)
    if said:
        return said
    for spec, array in zip(case.op.signature.outputs, made, strict=True):
        try:
            case.check_close(spec, array, f"`{spec.name}`")
        except AssertionError as error:
            return str(error)
    return ""


def results(
    case: Case, over: Sequence[ArraySpec] = (), absent: Sequence[ArraySpec] = ()
) -> tuple[str, list[Any]]:
    """Run a case into arrays of exactly their size: what the kernel says if it fails, and these.

    The results in `over` take over the memory of their inputs; those in `absent` have none.
    """
    signature = case.op.signature
    arrays = {name: placed.array for name, placed in case.placed.items()}
    arrays |= {spec.reuse: arrays[spec.reuse].copy() for spec in over}
    inputs = [
        (arrays[s.name], case.dtype(s)) if s in case.inputs else None for s in signature.inputs
    ]
    solution = case.solution
    outputs = [
        None
        if spec in absent
        else (
            arrays[spec.reuse]
            if spec in over
            else filled(signature.output_shape(spec, solution), case.dtype(spec), UNWRITTEN),
            case.dtype(spec),
        )
        for spec in signature.outputs
    ]
    numbers = (case.attributes[spec.name] for spec in signature.attributes)
    said = call(case.op, inputs, outputs, numbers)
    return said, [each and each[0] for each in outputs]


def plain(array: Any, dtype: str) -> Any:
    """The extension takes bfloat16 as items of the same size."""
    return array.view(np.float16) if dtype == "bfloat16" else array
