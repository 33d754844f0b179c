# SPDX-License-Identifier: Apache-2.0
"""The checks of ``nativeops doctor``. Frameworks are imported in processes of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import nativeops
from nativeops import cache, compilers, library
from nativeops.bench.machine import compiler, cpu_name, package_version
from nativeops.call import Op
from nativeops.errors import NativeOpsError, RangeError
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.registry import ops
from nativeops.testing import arguments
from nativeops.testing.probe import ABSENT

OK, MISSING, BROKEN = "ok", "missing", "BROKEN"
PATIENCE = 120  # seconds for a framework to be imported, to compile, and to answer

REINSTALL = "run `make setup` in a checkout, or `pip install --force-reinstall nativeops`"
PACKAGE = Path(nativeops.__file__).parent

TOOLS = {
    "g++": "needed to build ops of your own: run `apt install g++`",
    "clang++": "an alternative to g++: run `apt install clang`",
    "nvcc": "needed for CUDA kernels only: install the CUDA toolkit",
}
VARIABLES = {
    "CXX": "compiler of ops of one's own",
    "NATIVEOPS_ISA": "instruction set",
    "NATIVEOPS_NUM_THREADS": "threads",
    "NATIVEOPS_DEBUG": "all that compilers say",
    "NATIVEOPS_CACHE": "folder of built ops",
    "NATIVEOPS_CACHE_SIZE": "its bound in MiB",
    "NATIVEOPS_DISABLE_JIT": "no compiling on first use",
    "NATIVEOPS_CUDA": "CUDA kernels: auto, on or off",
    "NATIVEOPS_CUDA_ARCHS": "for which GPUs",
    "NATIVEOPS_EXPECT": "what tests must not skip",
}
READ_BY: dict[str, Callable[[], object]] = {  # which raise an error that says what is allowed
    "CXX": lambda: compilers.version(compilers.cpp_compiler()),
    "NATIVEOPS_ISA": library.selected,
    "NATIVEOPS_NUM_THREADS": library.get_num_threads,
    "NATIVEOPS_CACHE_SIZE": cache.limit,
    "NATIVEOPS_CUDA": compilers.cuda_setting,
    "NATIVEOPS_CUDA_ARCHS": compilers.cuda_flags,
}
_BUILD = ("LEVELS", "OPTIMIZE", "SANITIZE", "SOFT_TILES")
BUILD_VARIABLES = tuple(f"NATIVEOPS_{name}" for name in _BUILD)


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, its state, what was found, and the command that helps."""

    what: str
    state: str
    found: str
    help: str = ""


def all_checks() -> Iterator[Check]:
    """All checks in the order of the report; a check that fails itself is a broken thing."""
    groups: list[Callable[[], Iterator[Check]]] = [
        package, frameworks, kernels, works, instruction_sets, devices, freshness, threads, tools,
        variables,
    ]  # fmt: skip
    for group in groups:
        try:
            yield from group()
        except Exception as error:
            what = group.__name__.replace("_", " ")
            text = " ".join(str(error).split())
            told = isinstance(error, RangeError) or "hint:" in text  # of a setting, or the way out
            yield Check(what, BROKEN, text, "" if told else REINSTALL)


def package() -> Iterator[Check]:
    """The package itself and its compiled core."""
    yield Check("nativeops", OK, f"{package_version('nativeops') or 'not installed'}, {PACKAGE}")
    yield Check("python", OK, f"{sys.version.split()[0]}, {sys.executable}")
    core = library.extension()
    yield Check("compiled core", OK, f"{Path(str(core.__file__)).name}, {built_by()}")


def built_by() -> str:
    """The compiler of the kernels."""
    return f"built by {compiler(library.kernel_libraries())}"


def frameworks() -> Iterator[Check]:
    """Whose arrays can be passed, in the versions that the package's metadata asks for."""
    for name, about in FRAMEWORKS.items():
        found, oldest = package_version(name), oldest_version(name)
        if found is None:
            state = BROKEN if name == "numpy" else MISSING
            yield Check(name, state, "not installed", f"run `pip install {about.package}`")
        elif numbers(found) < numbers(oldest):
            upgrade = f"run `pip install --upgrade {about.package}`"
            yield Check(name, BROKEN, f"{found}, older than {oldest}", upgrade)
        else:
            yield Check(name, OK, found)


def works() -> Iterator[Check]:
    """What each framework gives on each device: tried, each in a process, all at once."""
    ops = [op for op in public_ops() if op.built_in]
    places = [
        (name, device)
        for name, about in FRAMEWORKS.items()
        for device in about.devices
        if package_version(name) and (device == "cpu" or cuda_is_usable())
    ]
    started = [
        ((name, device), start_probe(name, device, [o.name for o in ops if device in o.devices]))
        for name, device in places
    ]
    for (name, device), process in started:
        yield probe_check(f"{name} on {device}", process, FRAMEWORKS[name].compiler)


def start_probe(framework: str, device: str, names: list[str]) -> subprocess.Popen[str]:
    """A process that tries a framework on a device; see `nativeops.testing.probe`."""
    command = [sys.executable, "-m", "nativeops.testing.probe", framework, device, *names]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def probe_check(what: str, process: subprocess.Popen[str], compiler: str) -> Check:
    """What the process found."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Check(what, BROKEN, f"no answer after {PATIENCE} s", "run it again, or reinstall it")
    if process.returncode:
        last = err.strip().rpartition("\n")[2] or f"exit status {process.returncode}"
        return Check(what, BROKEN, last, f"reinstall it, or {REINSTALL}")
    tried = {key.replace("compiled", compiler): text for key, text in json.loads(out).items()}
    if ABSENT in tried:
        return Check(what, MISSING, tried[ABSENT], "install a build of it for CUDA")
    wrong = [f"{key}: {text}" for key, text in tried.items() if text]
    if wrong:
        return Check(what, BROKEN, "; ".join(wrong), REINSTALL)
    return Check(what, OK, f"{', '.join(tried)}: right")


def oldest_version(name: str) -> str:
    """What the metadata asks for; a build that was not installed has none, and takes any."""
    try:
        requires = metadata.requires("nativeops") or []
    except metadata.PackageNotFoundError:
        return "0"
    stated = (re.match(rf"{name}(?:-cpu)?>=([\d.]+)", each) for each in requires)
    return next((match[1] for match in stated if match), "0")


def numbers(version: str) -> list[int]:
    """Major and minor version, to compare."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def instruction_sets() -> Iterator[Check]:
    """What the processor has, what was built, and what is in use."""
    names = [path.name for path in library.kernel_libraries()]
    built = [level for level in library.LEVELS if f"libnativeops_cpu_{level}.so" in names]
    best = library.LEVELS[library.extension().levels()[0]]
    found = f"machine {best}; built {', '.join(built) or 'none'}; in use {library.selected()}"
    if "portable" not in built:
        yield Check("instruction sets", BROKEN, found, REINSTALL)
    elif best not in built and best != "amx":
        yield Check("instruction sets", MISSING, found, f"slower than it could be: {REINSTALL}")
    else:
        yield Check("instruction sets", OK, found)


def devices() -> Iterator[Check]:
    """Where ops can run."""
    yield Check("cpu", OK, cpu_name())
    cards, built = cuda_cards(), library.cuda_is_built()
    if not cards:
        found = "no device here; kernels " + ("built" if built else "not built")
        yield Check("cuda", MISSING, found, "needed only for arrays on a GPU")
    elif built:
        yield Check("cuda", OK, f"{cards} devices; kernels built")
    else:
        rebuild = "run `make setup` or reinstall with nvcc on the PATH"
        yield Check("cuda", MISSING, f"{cards} devices; kernels not built", rebuild)


def cuda_cards() -> int:
    """How many NVIDIA GPUs this machine shows; Linux in Windows does not tell their number."""
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or int(Path("/dev/dxg").exists())


def cuda_is_usable() -> bool:
    """Whether ops can run on a GPU here, as far as it is ours to say."""
    return cuda_cards() > 0 and library.cuda_is_built()


def kernels() -> Iterator[Check]:
    """Whether every op loads, and gives what its reference gives."""
    for op in public_ops():
        given = arguments(op, np.random.default_rng(0))
        for spec in op.signature.inputs:
            if spec.kind in ("Int32", "Float32") and given.get(spec.name) is not None:
                given[spec.name] = np.asarray(given[spec.name], spec.kind.lower())
        found, expected = op(**given), op.reference(**given)
        pairs = zip(found, expected, strict=True) if op.result else [(found, expected)]
        if all(np.allclose(one, other) for one, other in pairs if one is not None):
            yield Check(op.name, OK, "gives what its definition gives")
        else:
            yield Check(op.name, BROKEN, "gives wrong results", REINSTALL)


def public_ops() -> list[Op[Any]]:
    """All ops that are not another's gradient."""
    names = {op.name for op in ops()}
    return [op for op in ops() if op.name.removesuffix("_grad") not in names - {op.name}]


def freshness() -> Iterator[Check]:
    """In a checkout: whether the sources changed after the build."""
    if not (PACKAGE.parent.parent / "CMakeLists.txt").exists():
        return
    sources = [p for folder in ("ops", "devices", "bindings") for p in source_files(folder)]
    built = min(path.stat().st_mtime for path in library.kernel_libraries())
    newer = [path for path in sources if path.stat().st_mtime > built]
    if newer:
        latest = max(newer, key=lambda path: path.stat().st_mtime).relative_to(PACKAGE)
        found = f"{len(newer)} sources are newer than the kernels, last {latest}"
        yield Check("build", BROKEN, found, "run `make setup`")
    else:
        yield Check("build", OK, "newer than all sources")


def source_files(folder: str) -> Iterator[Path]:
    """The C++ and CUDA sources below a folder of the package."""
    return (p for p in (PACKAGE / folder).rglob("*") if p.suffix in (".h", ".cpp", ".cu"))


def threads() -> Iterator[Check]:
    """How many threads a kernel uses."""
    allowed = len(os.sched_getaffinity(0))
    found = f"{library.get_num_threads()} in use, {allowed} CPUs for this process"
    yield Check("threads", OK, found)


def tools() -> Iterator[Check]:
    """Compilers on the PATH."""
    for name, help_text in TOOLS.items():
        path = shutil.which(name)
        if path is None:
            yield Check(name, MISSING, "not found", help_text)
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
        yield Check(name, OK, f"{version[0] if version else 'unknown version'}, {path}")


def variables() -> Iterator[Check]:
    """The environment variables that we read, and those that nobody reads."""
    for name, meaning in VARIABLES.items():
        value = os.environ.get(name)
        try:
            if value is not None and name in READ_BY:
                READ_BY[name]()
        except NativeOpsError as error:
            yield Check(name, BROKEN, " ".join(str(error).split()), "mend it, or unset it")
            continue
        yield Check(name, OK, f"{meaning}: {'not set' if value is None else value}")
    for name in sorted(os.environ):
        if name in BUILD_VARIABLES:
            yield Check(name, OK, f"read by the build only: {os.environ[name]}")
        elif name.startswith("NATIVEOPS_") and name not in VARIABLES:
            close = get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {close[0]}?" if close else "it has no effect"
            yield Check(name, BROKEN, "nobody reads this variable", hint)
