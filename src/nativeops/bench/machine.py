# SPDX-License-Identifier: Apache-2.0
"""On what and with what a figure was measured."""

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import nativeops
from nativeops.frameworks.base import FRAMEWORKS


def cpu_name() -> str:
    """The processor's model name, with family and model where the name says little."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", text, re.MULTILINE))
    name = re.sub(r"\(R\)|\(TM\)", "", facts.get("model name", platform.machine()))
    kind = f" (family {facts['cpu family']}, model {facts['model']})" if "model" in facts else ""
    return name.strip() + kind


def machine_key(gpu: str = "") -> str:
    """The machine in a word that can be a file name, for example ``amd-epyc-25-17-2cpu``.

    Args:
        gpu: Its name, if that is measured.
    """
    words = re.findall(r"[a-z0-9]+", (gpu or cpu_name()).lower())
    kept = [word for word in words if word not in ("family", "model", "cpu")]
    return "-".join(kept if gpu else [*kept, f"{os.cpu_count()}cpu"])


def compiler(libraries: Iterable[Path]) -> str:
    """What built these libraries, from the note that compilers leave in them."""
    for path in libraries:
        note = re.search(rb"GCC: \([^)]*\) ([\d.]+)|clang version ([\d.]+)", path.read_bytes())
        if note:
            name, number = ("g++", note[1]) if note[1] else ("clang++", note[2])
            return f"{name} {number.decode()}"
    return "unknown compiler"


@cache
def commit() -> str:
    """Short id of the checked-out commit, with a plus if files were changed; else the version."""
    here = Path(nativeops.__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return package_version("nativeops") or "unknown"
    return done.stdout.strip()


def package_version(package: str) -> str | None:
    """The installed version, without importing; nothing if it is not installed."""
    about = FRAMEWORKS.get(package)
    for name in (package, *(about.also if about else ())):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def today() -> str:
    """Date and time of the run, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
