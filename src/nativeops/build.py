# SPDX-License-Identifier: Apache-2.0
"""Building kernels on this machine: a user's op is compiled on first use, and kept by content."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from nativeops.call import Op
from nativeops.errors import BuildError, message
from nativeops.glue import kernel_source
from nativeops.library import LEVELS, selected
from nativeops.registry import ops

_PACKAGE = Path(__file__).resolve().parent
_SHARED = ["-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden"]


def build(op: Op[Any], device: str = "cpu", sanitize: str = "") -> Path:
    """The library with the kernels of all ops that share the op's header; compiled if it is new.

    Args:
        op: The op.
        device: ``cpu``, or ``cpu-threads`` where each block runs as real threads (for races).
        sanitize: A sanitizer of the compiler, such as ``thread``.
    """
    if not op.kernel.exists():
        hint = "the kernel's header stands beside the declaration, or give `kernel=` its path."
        raise BuildError(message(op.name, f"there is no kernel at {op.kernel}.", hint=hint))
    group = [other for other in ops() if other.kernel == op.kernel]
    source = kernel_source(group, str(op.kernel)) + '#include "nativeops/devices/library.cpp"\n'
    command = [*compiler(), *_flags(device, sanitize)]
    target = cache_folder() / f"{op.kernel.stem}-{_key(op, source, command)}.so"
    if not target.exists():
        _compile(op, source, command, target)
    return target


def cache_folder() -> Path:
    """Where compiled ops are kept: NATIVEOPS_CACHE, or the user's cache."""
    base = os.environ.get("NATIVEOPS_CACHE")
    if not base:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        base = f"{base}/nativeops"
    return Path(base).expanduser()


def compiler() -> list[str]:
    """The C++ compiler's command: CXX if it is set, else g++ or clang++."""
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    hint = "install one, for example with `apt-get install g++`, or set CXX."
    raise BuildError(message("nativeops", "there is no C++ compiler for your op.", hint=hint))


def _flags(device: str, sanitize: str) -> list[str]:
    level = "portable" if device != "cpu" else selected()
    known = _compiler_flags()
    flags = [*_SHARED, *known["all"], *known[level], f"-DNATIVEOPS_LEVEL={LEVELS.index(level)}"]
    flags += [f'-DNATIVEOPS_DEVICE_NAME="{device}"']
    if device == "cpu-threads":
        flags += ["-DNATIVEOPS_CPU_THREADS", "-g1", "-O1"]
    return flags + ([f"-fsanitize={sanitize}", "-g1"] if sanitize else [])


@cache
def _compiler_flags() -> dict[str, list[str]]:
    """The flags of devices/flags.txt, by instruction set."""
    lines = (_PACKAGE / "devices" / "flags.txt").read_text().splitlines()
    rows = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: flags.split() for name, _, flags in rows}


@cache
def _version(command: tuple[str, ...]) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    return done.stdout


def _key(op: Op[Any], source: str, command: list[str]) -> str:
    """A hash of all that the compiled library depends on; never of times or places."""
    digest = hashlib.sha256(source.replace(str(op.kernel.parent), "").encode())
    headers = [*op.kernel.parent.glob("*.h"), *sorted((_PACKAGE / "devices").rglob("*.h"))]
    for header in sorted(headers, key=lambda path: path.name):
        digest.update(header.read_bytes())
    words = [word for word in command if word.startswith("-")]
    n_own = len(compiler())
    digest.update("\0".join([_version(tuple(command[:n_own])), *words]).encode())
    return digest.hexdigest()[:16]


def _compile(op: Op[Any], source: str, command: list[str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        path = Path(folder) / f"{op.kernel.stem}.cpp"
        path.write_text(source)
        built = Path(folder) / "built.so"
        full = [*command, f"-I{_PACKAGE.parent}", str(path), "-o", str(built)]
        done = subprocess.run(full, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line][:5]
            text = "the compiler refused its kernel:\n    " + "\n    ".join(errors)
            hint = f"mend {op.kernel}; `NATIVEOPS_DEBUG=1` shows all that the compiler says."
            if os.environ.get("NATIVEOPS_DEBUG", "0") not in ("", "0"):
                text += "\n" + done.stderr
            raise BuildError(message(op.name, text, hint=hint))
        os.replace(built, target)  # atomic: another process sees all of it or nothing
