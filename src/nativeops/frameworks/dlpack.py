# SPDX-License-Identifier: Apache-2.0
"""Arrays of any library that speaks DLPack, and of classes of NumPy's, read as NumPy's own."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nativeops.arrays import check_unmasked
from nativeops.call import Op, check_frameworks
from nativeops.errors import ArgumentError, DeviceError, message

# DLPack's numbers of devices whose memory NumPy reads: CPU, and what CUDA or ROCm pinned for it.
_HOST = (1, 3, 11)
_NAMES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}


def as_numpy(op: Op[Any], arrays: Sequence[Any]) -> list[Any]:
    """The inputs of a call as NumPy arrays without masks; nothing is copied."""
    check_frameworks(op, arrays)
    pairs = zip(op.signature.inputs, arrays, strict=True)
    return [_plain(op.name, spec.name, array) for spec, array in pairs]


def _plain(op: str, name: str, array: Any) -> Any:
    if array is None or type(array) is np.ndarray:
        return array
    if not isinstance(array, np.ndarray):
        return _read(op, name, array)
    check_unmasked(op, name, array)
    return array


def _read(op: str, name: str, array: Any) -> Any:
    kind, number = array.__dlpack_device__()
    if int(kind) not in _HOST:
        place = f"{_NAMES.get(int(kind), f'device {int(kind)}')}:{number}"
        text = f"`{name}` is on {place}, but arrays that come through DLPack must be on the CPU."
        hint = f"copy `{name}` to the CPU, or make it a PyTorch tensor, which may be on CUDA."
        raise DeviceError(message(op, text, hint=hint))
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        text = f"`{name}` cannot be read through DLPack: {error}"
        hint = f"make it a NumPy array, for example with `numpy.asarray({name})`."
        raise ArgumentError(message(op, text, hint=hint)) from error
