# SPDX-License-Identifier: Apache-2.0
"""The errors of a call with PyTorch's tensors, in the op's own words."""

from collections.abc import Mapping
from typing import Any

import torch

from nativeops.call import Op, given
from nativeops.errors import ArgumentError, DeviceError, NativeOpsError, message, refused
from nativeops.frameworks.base import Framework
from nativeops.library import missing_kernel


def explain(
    op: Op[Any],
    framework: Framework,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> Exception:
    """The error that says in the op's own words what PyTorch refused."""
    if isinstance(error, NativeOpsError):
        return error
    arrays, attributes = op.bind(args, op.split(kwargs)[0])
    for array, spec in zip(arrays, op.signature.inputs, strict=True):
        if isinstance(array, torch.Tensor) and (array.is_nested or array.layout != torch.strided):
            kind = "nested" if array.is_nested else str(array.layout)
            text = f"`{spec.name}` must be a dense tensor, but is {kind}."
            way = "to_padded_tensor(0.0)" if array.is_nested else "to_dense()"
            hint = f"convert it with `{spec.name}.{way}`."
            return ArgumentError(message(op.name, text, hint=hint))
    described = given(op, framework, arrays)
    devices = [str(getattr(array, "device", "")) for array in arrays]
    solution = op.check(described, devices, attributes)
    if devices[0].partition(":")[0] not in ("cpu", "cuda", "meta"):
        text = f"there are no kernels for {devices[0]}."
        return DeviceError(message(op.name, text, described, "move the tensors to cpu or cuda."))
    from nativeops.frameworks.numpy import check_results, no_memory

    check_results(op, solution)
    if "no memory for a result" in str(error):
        spec = op.signature.outputs[0]
        shape = op.signature.output_shape(spec, solution)
        return no_memory(op, shape, op.signature.output_dtype(spec, solution))
    if "there is no kernel for these dtypes" in str(error):
        return missing_kernel(op, solution.dtypes, devices[0])
    return refused(op.name, str(error)) or error
