# SPDX-License-Identifier: Apache-2.0
"""`nativeops check` as a user runs it, and what it finds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def command(
    cache: Path, *arguments: object, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run `nativeops` in a process of its own, as a user does, with its output piped."""
    program = [sys.executable, "-m", "nativeops", *map(str, arguments)]
    own = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    own |= {"NATIVEOPS_CACHE": str(cache), **variables}
    return subprocess.run(
        program, capture_output=True, text=True, timeout=500, check=False, env=own
    )


def verdict(cache: Path, tmp_path: Path, *arguments: object) -> dict[str, Any]:
    """What `nativeops check --json` writes, and its exit code."""
    file = tmp_path / "verdict.json"
    done = command(cache, "check", *arguments, "--json", file)
    assert file.exists(), done.stdout + done.stderr
    return {**json.loads(file.read_text()), "code": done.returncode, "text": done.stdout}


def findings(said: dict[str, Any]) -> list[dict[str, Any]]:
    """All bugs of a verdict."""
    return [each for aspect in said["aspects"] for each in aspect["findings"]]
