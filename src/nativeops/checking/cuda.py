# SPDX-License-Identifier: Apache-2.0
"""Compiling the kernels of ops for CUDA, where there is nvcc. Nothing runs on a GPU."""

from typing import Any

from nativeops.build import build
from nativeops.call import Op
from nativeops.checking.finding import Case, Steps, Unchecked
from nativeops.compilers import cuda_compiler


def steps(op: Op[Any]) -> Steps:
    """One compilation of all ops of the op's kernel header, for all dtypes."""
    if "cuda" not in op.devices:
        yield Unchecked("its kernels are declared for the CPU only")
        return
    if cuda_compiler() is None:
        yield Unchecked("nvcc was not found: put it on the PATH or set CUDA_HOME")
        return
    build(op, "cuda", ahead=True)
    yield Case(f"{op.kernel.name} with nvcc")
