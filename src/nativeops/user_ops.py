# SPDX-License-Identifier: Apache-2.0
"""The kernels of a user's op: those that were shipped with it, or else compiled here.

Shipped libraries lie beside the kernel's header and are named after it: `softsign.h` has
`libsoftsign_cpu_avx2.so`. One that was built for another kernel or declaration is not used.
"""

from pathlib import Path
from typing import Any

from nativeops.build import build, declared_in, may_compile
from nativeops.cache import discard, is_whole
from nativeops.call import Op
from nativeops.compilers import NO_NVCC, cuda_compiler, cuda_driver, cuda_setting
from nativeops.errors import BuildError, message
from nativeops.library import LEVELS, extension, selected

# What the libraries in use were built for; the inode tells a file from an older one of its name.
_loaded: dict[tuple[Path, int], set[tuple[str, str]]] = {}
_on_cuda: set[tuple[str, str]] = set()  # the same of all libraries for CUDA
_cuda_failures: dict[str, str] = {}


def load(op: Op[Any]) -> None:
    """Give the core the op's kernels for the instruction set in use, and for CUDA if there is."""
    useless: list[str] = []
    served = {device for device, path in shipped(op) if _serves(op, path, useless)}
    if "cpu" not in served:
        if useless and not may_compile():
            text = f"{useless[0]} It cannot be compiled here."
            hint = f"ship it anew: `nativeops build {declared_in(op)}`."
            raise BuildError(message(op.name, text, hint=hint))
        _load_built(op, "cpu")
    if "cuda" in op.devices and "cuda" not in served and _wants_cuda():
        try:
            _load_built(op, "cuda")
        except BuildError as error:  # told when the op meets an array on a GPU
            if cuda_setting() == "on":
                raise
            _cuda_failures[op.name] = str(error)


def shipped(op: Op[Any]) -> list[tuple[str, Path]]:
    """The libraries beside the kernel that the machine can use, with their devices."""
    usable = LEVELS[: LEVELS.index(selected()) + 1]
    names = [("cpu", library_name(op, level)) for level in usable]
    names.append(("cuda", library_name(op, "cuda")))
    paths = [(device, op.kernel.with_name(name)) for device, name in names]
    return [(device, path) for device, path in paths if path.exists()]


def library_name(op: Op[Any], level: str) -> str:
    """What a shipped library is called: for an instruction set of the CPU, or for ``cuda``."""
    return f"lib{op.kernel.stem}_{level if level == 'cuda' else f'cpu_{level}'}.so"


def has_cuda(op: Op[Any]) -> bool:
    """Whether a defined op has kernels for CUDA."""
    return (op.name, op.built_for) in _on_cuda


def missing_cuda(op: Op[Any]) -> str:
    """Why a user's op has no kernel for CUDA, and the way out."""
    if op.name in _cuda_failures:
        return _cuda_failures[op.name]
    if cuda_setting() == "off":
        why, hint = "NATIVEOPS_CUDA is off.", "unset it."
    elif cuda_compiler() is None:
        why, hint = "nvcc was not found.", NO_NVCC
    else:  # without a driver, or where nothing may be compiled
        why, hint = "nothing here asked for them.", "set `NATIVEOPS_CUDA=on` to see why not."
    return message(op.name, f"its CUDA kernels were not built: {why}", hint=hint)


def _serves(op: Op[Any], path: Path, useless: list[str]) -> bool:
    """Load a shipped library; if it is not for this op as it is now, say so in `useless`."""
    try:
        built_for = _open(path)
    except OSError as error:
        useless.append(f"its library {path.name} cannot be used ({error}).")
        return False
    if (op.name, op.built_for) in built_for:
        return True
    useless.append(f"its library {path.name} was built for another kernel or declaration.")
    return False


def _open(path: Path) -> set[tuple[str, str]]:
    """Load a library; the ops that it has, and what they were built for."""
    key = path, path.stat().st_ino
    if key not in _loaded:
        if not is_whole(path):  # as after a copy that was broken off
            raise OSError(f"{path}: not a whole library")
        device, _, entries = extension().load(str(path))
        _loaded[key] = {(name, built_for) for name, built_for, _, _ in entries}
        if device == "cuda":
            _on_cuda.update(_loaded[key])
    return _loaded[key]


def _load_built(op: Op[Any], device: str) -> None:
    """Load what was built here; if another process removed it meanwhile, build it again."""
    for attempt in (1, 2, 3):
        path = build(op, device)
        try:
            _open(path)
            return
        except OSError as error:
            if "undefined symbol" in str(error):
                text = f"its kernel calls what is not defined anywhere ({error})."
                hint = f"define it in {op.kernel}; CXX must be a C++ compiler (g++, not gcc)."
                raise BuildError(message(op.name, text, hint=hint)) from None
            if attempt == 3:
                text = f"the library that was built for it cannot be loaded ({error})."
                hint = "set NATIVEOPS_CACHE to a folder that programs may be loaded from."
                raise BuildError(message(op.name, text, hint=hint)) from None
            discard(path)


def _wants_cuda() -> bool:
    setting = cuda_setting()
    here = may_compile() and cuda_driver() and cuda_compiler() is not None
    return setting == "on" or (setting == "auto" and here)
