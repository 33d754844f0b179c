# SPDX-License-Identifier: Apache-2.0
"""Building a user's op on this machine: on first use, or ahead of time; kept by its content."""

import hashlib
import inspect
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from nativeops import identity
from nativeops.cache import kept
from nativeops.call import Op
from nativeops.compilers import (
    NO_NVCC,
    cpp_compiler,
    cuda_compiler,
    cuda_flags,
    flags_of_levels,
    quick_flags,
    run,
    version,
)
from nativeops.errors import BuildError, message
from nativeops.glue import defines, kernel_source
from nativeops.library import LEVELS, selected
from nativeops.registry import ops

_PACKAGE = Path(__file__).resolve().parent
_NAMESPACE = re.compile(r"(?<!using )\bnamespace\s+nativeops\b")
_NOT_FOUND = re.compile("fatal error: (.*): No such file or directory")
# What a compiler says that lacked memory, or room for its result.
_NO_ROOM = re.compile("Killed signal|No space left|File size limit")
_SYSTEM = ("/usr/include", "/usr/lib", "/usr/local/include", "/usr/local/lib")
_SHARED = ["-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden"]


def build(
    op: Op[Any], device: str = "cpu", sanitize: str = "", level: str = "", ahead: bool = False
) -> Path:
    """The library with the kernels of all ops that share the op's header; compiled if it is new.

    Args:
        op: The op.
        device: ``cpu``, ``cuda``, or ``cpu-threads`` where each block runs as real threads (for
            races).
        sanitize: A sanitizer of the compiler, such as ``thread``.
        level: The instruction set of the CPU; by default the one in use.
        ahead: Compile although ``NATIVEOPS_DISABLE_JIT=1`` forbids it on first use.
    """
    digest = _digest(op)
    if not ahead and is_set("NATIVEOPS_DISABLE_JIT"):
        text = "it has no kernels that were built for this machine, and NATIVEOPS_DISABLE_JIT=1 "
        hint = f"ship them: `nativeops build {declared_in(op)}`; or unset NATIVEOPS_DISABLE_JIT."
        raise BuildError(message(op.name, text + "forbids to compile them.", hint=hint))
    level = (level or selected()) if device == "cpu" else "portable"
    recipe = _recipe(op, _group(op), digest, _command(op, device, sanitize, level), device)
    return kept(recipe.name, partial(_compile, recipe))


def may_compile() -> bool:
    """Whether an op can be compiled on first use."""
    if is_set("NATIVEOPS_DISABLE_JIT"):
        return False
    try:
        cpp_compiler()
    except BuildError:
        return False
    return True


def is_set(variable: str) -> bool:
    """Whether an environment variable says yes."""
    return os.environ.get(variable, "").lower() not in ("", "0", "false", "no", "off")


def declared_in(op: Op[Any]) -> str:
    """The file that declares the op."""
    return inspect.getfile(op.reference)


def _digest(op: Op[Any]) -> str:
    """The hash of the kernel's files, which have not changed since the op was first used."""
    digest = "" if op.built_in else identity.kernel_digest(op)
    if digest != op.kernel_digest:
        text = f"{op.kernel.name} changed after the op was first used."
        raise BuildError(message(op.name, text, hint="declare the op again, or restart Python."))
    return digest


def _group(op: Op[Any]) -> list[Op[Any]]:
    """The ops of the same header, without those that a notebook declared before a renaming."""
    headers = identity.kernel_files(op.kernel)
    others = (other for other in ops() if other.kernel == op.kernel and other.name != op.name)
    present = [other for other in others if any(defines(path, other.name) for path in headers)]
    return sorted([op, *present], key=lambda each: each.name)


def _command(op: Op[Any], device: str, sanitize: str, level: str) -> list[str]:
    """Compiler and flags."""
    flags = [f"-DNATIVEOPS_LEVEL={LEVELS.index(level)}", f'-DNATIVEOPS_DEVICE_NAME="{device}"']
    flags.append("-DNATIVEOPS_USER_OP")
    if device == "cuda":
        command = cuda_compiler()
        if command is None:
            text = "there is no nvcc for its CUDA kernels."
            raise BuildError(message(op.name, text, hint=NO_NVCC))
        return [*command, *cuda_flags(), *flags]
    known = flags_of_levels()
    compiler = cpp_compiler()
    own = [*known["all"], *quick_flags(compiler), *known[level]]
    command = [*compiler, *_SHARED, *own, *flags]
    if device == "cpu-threads":
        command += ["-DNATIVEOPS_CPU_THREADS", "-g1", "-O1"]
    if sanitize:
        # Less optimised, large kernels compile in a tenth of the time. AddressSanitizer sees an
        # access by a null pointer or by one that wrapped around.
        unneeded = "-fno-sanitize=null,pointer-overflow"
        command += [f"-fsanitize={sanitize}", unneeded, "-g1", "-O1"]
    return command


@dataclass(frozen=True)
class _Recipe:
    """All that makes one library."""

    op: Op[Any]
    name: str
    source: str
    compiler: list[str]
    flags: list[str]
    device: str


def _recipe(
    op: Op[Any], group: list[Op[Any]], digest: str, command: list[str], device: str
) -> _Recipe:
    """The library's source, and its name: a hash of all that it depends on, never of places.

    But what a sanitizer reports names the files, and so would those of a copy.
    """
    source = kernel_source(group, op.kernel.name, digest)
    source += '#include "nativeops/devices/library.cpp"\n'
    first = next(i for i, word in enumerate(command) if word.startswith(("-std=", "-fPIC")))
    compiler, flags = command[:first], command[first:]
    made_for = [platform.machine(), version(compiler), *compiler[1:], *flags]
    if "-g1" in flags:
        made_for.append(str(op.kernel.parent))
    parts = [source, digest, _own_headers(), *made_for]
    if op.built_in:
        parts += [path.read_text("utf-8") for path in identity.kernel_files(op.kernel)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return _Recipe(op, f"{op.kernel.stem}-{key}.so", source, compiler, flags, device)


@cache
def _own_headers() -> str:
    """A hash of this package's headers."""
    return hashlib.sha256(b"\0".join(_texts())).hexdigest()


def _texts() -> Iterator[bytes]:
    # Of more than a hundred files; pathlib would take three times as long.
    folder = str(_PACKAGE / "devices")
    paths = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    for path in sorted(path for path in paths if path.endswith((".h", ".cpp"))):
        yield path.removeprefix(folder).encode()
        with open(path, "rb") as file:
            yield file.read()


def _places(folder: Path, device: str) -> list[str]:
    """Where headers are looked for."""
    if device == "cuda":  # nvcc knows no other kind of place
        return [f"-I{folder}", f"-I{_PACKAGE.parent}"]
    # A file of the user's with the name of one of the system's must not take its place; and a
    # kernel with such a name is found, unless g++ is told of its folder in another way as well.
    return ["-iquote", str(folder), f"-I{_PACKAGE.parent}"]


def _check_names(op: Op[Any], source: Path) -> None:
    """Refuse what nvcc splits, or gives to a shell that takes it for a quote or a variable."""
    for place, others in ((op.kernel.parent, ""), (_PACKAGE, ""), (source.parent, "$")):
        if odd := re.search(f"[\"',{others}]", str(place)):
            text = f"nvcc cannot read {place}, as there is {odd[0]} in its name."
            hint = "put the op, this package and NATIVEOPS_CACHE into folders without such."
            raise BuildError(message(op.name, text, hint=hint))


def _check_read(recipe: "_Recipe", source: Path, rule: str) -> None:
    """Refuse a kernel that reads what its hash does not cover: nobody would see it change.

    Such as a header of the user's that is included by a macro, or found by a flag in CXX.

    Args:
        recipe: The library.
        source: Its source.
        rule: The compiler's, for make: all files that it read.
    """
    known = {path.resolve() for path in identity.kernel_files(recipe.op.kernel)} | {source}
    folder = recipe.op.kernel.parent.resolve()
    installed = _installed(folder, recipe.compiler[0])
    resolved = cache(Path.resolve)  # hundreds of a compiler's headers lie in a few folders
    _, _, files = rule.replace("\\\n", " ").partition(": ")
    for word in re.split(r"(?<!\\)\s+", files.strip()):
        path = Path(word.replace("\\ ", " ").replace("\\#", "#").replace("$$", "$"))
        path = path.resolve() if path.is_symlink() else resolved(path.parent) / path.name
        if path in known or str(path).startswith(installed):
            continue
        if str(path).startswith(_searched(tuple(recipe.compiler))):
            continue
        raise _unseen(recipe.op, path)


def _unseen(op: Op[Any], path: Path) -> BuildError:
    """The error of a kernel that reads a file which its hash does not cover."""
    text = f"its kernel reads {path} in a way that its changes would not be seen."
    hint = f'write `#include "{os.path.relpath(path, op.kernel.parent.resolve())}"` on one line.'
    return BuildError(message(op.name, text, hint=hint))


def _installed(folder: Path, compiler: str) -> tuple[str, ...]:
    """Where lies what is not the user's, unless an op's folder does: a compiler may be in his home.

    This package, the system's headers, Python's packages, and the compiler.
    """
    theirs = Path(shutil.which(compiler) or compiler).resolve().parent.parent
    roots = [theirs, *map(Path, (*_SYSTEM, sys.prefix, sys.base_prefix))]
    others = [root for root in roots if not folder.is_relative_to(root)]
    return tuple(f"{root}{os.sep}" for root in (_PACKAGE, *others))


@cache
def _searched(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """The folders of headers that a compiler knows without flags."""
    by_itself = [word for word in compiler if not word.startswith(("-I", "-i"))]
    said = run([*by_itself, "-E", "-x", "c++", "-v", os.devnull]).stderr
    listed = said.partition("search starts here:\n")[2].partition("End of search list.")[0]
    folders = (line.strip() for line in listed.splitlines() if line.startswith(" "))
    return tuple(f"{Path(folder).resolve()}{os.sep}" for folder in folders)


def _compile(recipe: _Recipe, built: Path) -> None:
    """Compile to the path, or tell what the compiler complained about."""
    source = built.with_suffix(".cpp")
    source.write_text(recipe.source, "utf-8")
    folder = recipe.op.kernel.parent
    if recipe.device == "cuda":
        _check_names(recipe.op, source)
    command = [*recipe.compiler, *recipe.flags, *_places(folder, recipe.device), str(source)]
    read = built.with_suffix(".d")
    told = [] if recipe.device == "cuda" else ["-MD", "-MF", str(read)]
    done = run([*command, *told, "-o", str(built)])
    debug = is_set("NATIVEOPS_DEBUG")
    if debug:
        print(shlex.join(command), done.stderr, sep="\n", file=sys.stderr)
    if done.returncode == 0 and built.exists():
        _digest(recipe.op)  # the files may have been saved anew while the compiler read them
        if read.exists():
            _check_read(recipe, source.resolve(), read.read_text("utf-8"))
        return
    from nativeops.complaints import complaints  # a millisecond of each process otherwise

    said = done.stderr + done.stdout
    if done.returncode < 0 or not said.strip() or _NO_ROOM.search(said):
        lines = said.strip().splitlines()
        told = [
            *filter(_NO_ROOM.search, lines),
            *lines[-1:],
            f"it ended with status {done.returncode}",
        ]
        text = f"the compiler could not do its work: {told[0].strip()}."
        hint = "look for memory, for room where NATIVEOPS_CACHE is, and at CXX."
        raise BuildError(message(recipe.op.name, text, hint=hint))
    absent = _NOT_FOUND.search(said)
    if absent and (folder / absent[1]).is_file():  # it is included as one of the system's
        raise _unseen(recipe.op, (folder / absent[1]).resolve())
    files = identity.kernel_files(recipe.op.kernel)
    first = complaints(said, files)
    hint = f"mend {recipe.op.kernel}"
    # What is told of no file of the user's need not be his mistake.
    elsewhere = all(each.startswith("error:") for each in first)
    if elsewhere or "Unsupported gpu architecture" in said:
        settings = "NATIVEOPS_CUDA_ARCHS" if recipe.device == "cuda" else "CXX"
        hint = f"look at {settings}, and {hint}"
    first = first or said.splitlines()[-5:]
    if not any(defines(path, recipe.op.name) for path in files):
        names = ", ".join(path.name for path in files)
        first.insert(0, f"there is no kernel `void {recipe.op.name}(...)` in {names}")
        hint = f"mend {recipe.op.kernel}"
    elif not any(_NAMESPACE.search(path.read_text(errors="replace")) for path in files):
        first.insert(0, f"the kernel `{recipe.op.name}` must be in `namespace nativeops {{ .. }}`")
        hint = f"mend {recipe.op.kernel}"
    text = "the compiler refused its kernel:\n    " + "\n    ".join(first)
    hint += "." if debug else "; `NATIVEOPS_DEBUG=1` shows all that the compiler says."
    raise BuildError(message(recipe.op.name, text, hint=hint))
