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
    log = folder / "build.log"
    with log.open("w") as output:
        for command in (
            ["cmake", "-S", source, "-B", folder / "cmake", "-G", "Ninja"]
            + [f"-DPython_EXECUTABLE={python}", *options],
            ["cmake", "--build", folder / "cmake"],
            ["cmake", "--install", folder / "cmake", "--prefix", folder / "compiled"],
        ):
            done = subprocess.run(command, stdout=output, stderr=output, env=with_our_tools())
            if done.returncode:
                raise SystemExit(f"{command[0]} failed; the end of {log}:\n{log.read_text()[-6000:]}")
    link_package(source / "src/nativeops", folder / "compiled/nativeops", folder / "package/nativeops")
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
    shutil.copytree(
        source, package, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    for file in compiled.iterdir():
        shutil.copy2(file, package)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).absolute(), options=tuple(sys.argv[2:])))
