# SPDX-License-Identifier: Apache-2.0
"""Build the package aside: in a folder of its own, next to and independent of the installed one.

The folder gets a small virtual environment that sees all packages of this Python, but the package
from here. The sanitizers' build, machines without pip, and the tests of CONTRIBUTING.md use it:

    python tests/aside.py FOLDER [options for CMake]     prints the environment's Python
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build(folder: Path, source: Path = ROOT, options: tuple[str, ...] = ()) -> Path:
    """Build `source` in `folder`; the path of a Python that imports the result."""
    python = make_environment(folder)
    options = (f"-DPython_EXECUTABLE={python}", *options)
    log = folder / "build.log"
    shutil.rmtree(folder / "compiled", ignore_errors=True)  # with what other options installed
    with log.open("w") as output:
        for command in (
            ["cmake", "-S", source, "-B", folder / "cmake", "-GNinja", *options],
            ["cmake", "--build", folder / "cmake"],
            ["cmake", "--install", folder / "cmake", "--prefix", folder / "compiled"],
        ):
            done = subprocess.run(
                command, stdout=output, stderr=output, env=with_our_tools(), check=False
            )
            if done.returncode:
                end = log.read_text()[-6000:]
                raise SystemExit(f"{command[0]} failed; the end of {log}:\n{end}")
    link_package(source / "src/nativeops", folder / "compiled", folder / "package")
    return python


def make_environment(folder: Path) -> Path:
    """An environment that finds the package in `folder` first, then all that this Python has."""
    environment = folder / "environment"
    python = environment / "bin/python"
    if not python.exists():
        venv.create(environment, symlinks=True)
    libraries = [p for p in sys.path if p.endswith("-packages")]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = [str((folder / "package").resolve()), *libraries]
    (environment / "lib" / version / "site-packages/aside.pth").write_text("\n".join(paths) + "\n")
    return python


def with_our_tools() -> dict[str, str]:
    """The environment variables, with the programs of this Python's environment found first."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def link_package(source: Path, compiled: Path, package: Path) -> None:
    """Put together the package: links to its sources, and the compiled files."""
    shutil.rmtree(package, ignore_errors=True)
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(source, package / "nativeops", copy_function=os.symlink, ignore=leave)
    for file in (compiled / "nativeops").iterdir():
        shutil.copy2(file, package / "nativeops")


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).absolute(), options=tuple(sys.argv[2:])))
