# SPDX-License-Identifier: Apache-2.0
"""The compilers of a user's ops on this machine: which there are, their flags, and a run of one."""

import ctypes
import glob
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from nativeops.errors import BuildError, RangeError, message

_PACKAGE = Path(__file__).resolve().parent
_ARCHITECTURES = "75-real;80-real;90"  # as in pyproject.toml
NO_NVCC = "put nvcc on the PATH, set CUDA_HOME, or run `pip install nvidia-cuda-nvcc`."


def cpp_compiler() -> list[str]:
    """The C++ compiler's command: CXX if it is set, else g++, clang++, or zig's from PyPI."""
    if chosen := os.environ.get("CXX", "").strip():
        try:
            return shlex.split(chosen)
        except ValueError as error:
            text = f"CXX is `{chosen}`, which is no command: {error}."
            hint = "set it to a C++ compiler such as `g++`, or unset it."
            raise BuildError(message("nativeops", text, hint=hint)) from None
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        # With a target zig does not compile for this very CPU; its sanitizer is on by default.
        target = f"{platform.machine()}-linux-gnu.2.28"
        command = [sys.executable, "-m", "ziglang", "c++", "-target", target]
        return [*command, "-fno-sanitize=undefined", "-s"]
    hint = "install g++ (`apt-get install g++`), or run `pip install 'nativeops[compiler]'`."
    raise BuildError(message("nativeops", "there is no C++ compiler for your op.", hint=hint))


def cuda_compiler() -> list[str] | None:
    """nvcc's command: from the PATH, CUDA_HOME, or PyPI's `nvidia-cuda-nvcc`; None without."""
    if found := shutil.which("nvcc"):
        return [found]
    home = os.environ.get("CUDA_HOME")
    places = [f"{home}/bin/nvcc"] if home else []
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        places += glob.glob(f"{glob.escape(folder)}/*/bin/nvcc")
    return next(([place] for place in places if os.access(place, os.X_OK)), None)


@cache
def cuda_driver() -> bool:
    """Whether the machine has a GPU's driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def cuda_setting() -> str:
    """NATIVEOPS_CUDA: `on`, `off`, or `auto`, where it takes a driver and nvcc."""
    setting = os.environ.get("NATIVEOPS_CUDA") or "auto"
    if setting not in ("auto", "on", "off"):
        text = f"`NATIVEOPS_CUDA` must be one of ['auto', 'on', 'off'], but is {setting!r}."
        raise RangeError(message("nativeops", text))
    return setting


def cuda_flags() -> list[str]:
    """What nvcc is told."""
    flags = ["-std=c++17", "-O3", "-shared", "--extended-lambda", "--cudart=static", "-x", "cu"]
    flags += ["-Xcompiler=-fPIC,-fvisibility=hidden", "-diag-error=940"]  # a forgotten return
    listed = (os.environ.get("NATIVEOPS_CUDA_ARCHS") or _ARCHITECTURES).strip()
    if listed in ("all", "all-major"):  # not `native`: other machines may share the cache
        return [*flags, f"-arch={listed}"]
    for word in map(str.strip, listed.replace(",", ";").split(";")):
        if not re.fullmatch(r"\d+[a-z]?(-real|-virtual)?", word):
            text = "`NATIVEOPS_CUDA_ARCHS` must have architectures such as `80-real;90`, but has"
            raise RangeError(message("nativeops", f"{text} {word!r}."))
        number, _, only = word.partition("-")
        real, virtual = f"sm_{number}", f"compute_{number}"
        codes = {"real": real, "virtual": virtual}.get(only, f"[{virtual},{real}]")
        flags.append(f"-gencode=arch={virtual},code={codes}")
    return flags


@cache
def flags_of_levels() -> dict[str, list[str]]:
    """The flags of devices/flags.txt, by instruction set."""
    lines = (_PACKAGE / "devices" / "flags.txt").read_text().splitlines()
    rows = (line.partition(":") for line in lines if not line.startswith("#"))
    return {name: flags.split() for name, _, flags in rows}


def quick_flags(command: Sequence[str]) -> list[str]:
    """What makes the first call of an op take less time, and no later one more.

    Copies of functions for constant arguments take a third of g++'s time.
    """
    return ["-fno-ipa-cp-clone"] if "Free Software Foundation" in version(command) else []


def version(command: Sequence[str]) -> str:
    """What the compiler says that it is."""
    return _version(tuple(command))


@cache
def _version(command: tuple[str, ...]) -> str:
    done = run([*command, "--version"])
    if done.returncode:
        text = f"`{shlex.join(command)} --version` fails:\n    {done.stderr.strip()}"
        raise BuildError(message("nativeops", text, hint="is CXX a C++ compiler?"))
    return done.stdout


def run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a compiler, whose texts are to be in English."""
    # What is preloaded into this process, as a sanitizer is, does not work in every compiler.
    kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment = {**kept, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, check=False
        )
    except OSError as error:
        text = f"the compiler `{command[0]}` cannot be run: {error.strerror}."
        hint = "set CXX to a C++ compiler, or unset it to use g++ or clang++."
        raise BuildError(message("nativeops", text, hint=hint)) from None
