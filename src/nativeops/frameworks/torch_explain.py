# SPDX-License-Identifier: Apache-2.0
"""The errors of a call with PyTorch's tensors, in the op's own words."""

from collections.abc import Mapping
from typing import Any

import torch

from nativeops.call import Op, given
from nativeops.errors import ArgumentError, DeviceError, NativeOpsError, message
from nativeops.frameworks.base import Framework
from nativeops.frameworks.failures import failure


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
    return failure(op, solution, error, devices[0]) or error
