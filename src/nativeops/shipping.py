# SPDX-License-Identifier: Apache-2.0
"""Building ops ahead of time, so that they run where there is no compiler."""

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nativeops.build import build
from nativeops.call import Op
from nativeops.checking import ops_of
from nativeops.compilers import cuda_compiler, cuda_setting
from nativeops.errors import BuildError, message
from nativeops.identity import kernel_files
from nativeops.library import LEVELS
from nativeops.user_ops import library_name


def ship(
    file: str | Path,
    folder: str | Path | None = None,
    cuda: bool | None = None,
    taken: dict[str, Path] | None = None,
) -> Iterator[Path]:
    """Build the libraries of all ops of a file, for each instruction set and for CUDA.

    They come beside the kernels, where the ops find them. With `folder` they come there, with the
    file and the kernels' headers: the folder is all that another machine needs.

    Args:
        file: The Python file that declares the ops.
        folder: Where the libraries go.
        cuda: Whether to build for CUDA; by default where nvcc is found, or as NATIVEOPS_CUDA says.
        taken: The files that were put into folders for others before, and what they came from: to
            be handed on where several files go to one folder, so that none replaces another's.
    """
    path, taken = Path(file).resolve(), {} if taken is None else taken
    for op in _one_per_kernel(path):
        target = op.kernel.parent if folder is None else Path(folder).resolve()
        _copy_sources(op, path, target, taken)
        for level in LEVELS if platform.machine() in ("x86_64", "AMD64") else LEVELS[:1]:
            built = build(op, level=level, ahead=True)
            yield _place_library(op, path, built, target / library_name(op, level))
        if cuda and "cuda" not in op.devices:
            text = "is declared for the CPU only."
            raise BuildError(message(op.name, text, hint="leave `--cuda` away."))
        if "cuda" in op.devices and (_wants_cuda() if cuda is None else cuda):
            built = build(op, "cuda", ahead=True)
            yield _place_library(op, path, built, target / library_name(op, "cuda"))


def _wants_cuda() -> bool:
    setting = cuda_setting()
    return setting == "on" or (setting == "auto" and cuda_compiler() is not None)


def _one_per_kernel(path: Path) -> list[Op[Any]]:
    own = sorted(ops_of(path).values(), key=lambda op: "cuda" in op.devices)
    found = {op.kernel: op for op in own}  # one with a kernel for CUDA where there is any
    for op in found.values():
        if op.built_in:
            text = "is an op of nativeops, which is built with the package."
            raise BuildError(message(op.name, text, hint="give a file that declares your own ops."))
    return list(found.values())


def _copy_sources(op: Op[Any], path: Path, target: Path, taken: dict[str, Path]) -> None:
    """Put the declaration and the kernel's headers into another folder, as they lie here."""
    own = op.kernel.parent
    if target == own:
        return
    for source in {path, *kernel_files(op.kernel)}:
        if not source.is_relative_to(own):
            text = f"{source} is not below {own}, so it cannot go to {target}."
            raise BuildError(message(op.name, text, hint="leave out the folder."))
        copy = target / source.relative_to(own)
        # Of another folder, or behind a symbolic link.
        if taken.setdefault(os.path.normpath(copy), source) != source:
            text = f"{source} and {taken[os.path.normpath(copy)]} would be one file in {target}."
            raise BuildError(message(op.name, text, hint="rename one of them."))
        copy.parent.mkdir(parents=True, exist_ok=True)
        _place(source, copy)


def _place_library(op: Op[Any], path: Path, built: Path, target: Path) -> Path:
    """Put a library where it goes, unless it lacks an op of the file, or of the one there now."""
    data, on_cuda = built.read_bytes(), target.name == library_name(op, "cuda")
    for each in ops_of(path).values():
        wanted = each.kernel == op.kernel and (not on_cuda or "cuda" in each.devices)
        if wanted and each.built_for.encode() not in data:
            text = f"{op.kernel} does not show its kernel: `void {each.name}(...)`."
            hint = "write it so, or as the first argument of a macro with a name in capitals."
            raise BuildError(message(each.name, text, hint=hint))
    if target.exists() and (lost := _lost(target.read_bytes(), data, op.kernel_digest)):
        words = " and ".join(f"`{name}`" for name in lost)
        text = f"{target} also has the kernel of {words}, which would be lost."
        hint = f"remove lib{op.kernel.stem}_*.so, and give all files that declare ops of "
        hint += f"{op.kernel.name} to one `nativeops build`."
        raise BuildError(message(op.name, text, hint=hint))
    return _place(built, target)


def _lost(old: bytes, new: bytes, digest: str) -> list[str]:
    """The ops that one library has of the kernel as it is now, and another has not.

    Neither is loaded: this machine need not have its instruction set. What an op was built for ends
    with the kernel's hash; the linker may keep a text as the end of another one.
    """
    texts = [text for text in old.split(b"\0") if text.endswith(b" " + digest.encode())]
    names = {found[1] for text in texts if (found := re.search(rb"(\w+)\(", text))}
    return sorted(n.decode() for n in names if not re.search(rb"(?<!\w)" + n + rb"\(", new))


def _place(source: Path, target: Path) -> Path:
    """Copy a file in one step: a process that has the old one loaded keeps it."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        copy = shutil.copy(source, Path(folder) / target.name)
        os.replace(copy, target)
    return target
