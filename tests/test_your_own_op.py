# SPDX-License-Identifier: Apache-2.0
"""Following docs/guides/your-own-op.md word for word: every command, file and output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from pages import blocks  # noqa: E402

PAGE = ROOT / "docs/guides/your-own-op.md"


def run(text: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    own = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    own["NATIVEOPS_CACHE"] = str(folder / "cache")
    return subprocess.run(
        ["bash", "-ec", text], cwd=folder, env=own, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_page_can_be_followed_word_for_word(tmp_path: Path) -> None:
    last = ""
    for block in blocks(PAGE):
        where = f"{PAGE.name}:{block.line}"
        if block.mark.startswith("file: "):
            (tmp_path / block.path).write_text(block.text)
        elif block.language == "sh":
            done = run(block.text, tmp_path)
            said = f"{where}:\n{done.stdout}{done.stderr}"
            assert done.returncode == (1 if block.mark == "fails" else 0), said
            last = done.stdout
        elif block.language == "text":
            fits = block.text in last if block.mark == "part" else block.text == last
            assert fits, f"{where} shows\n{block.text}\nbut it is\n{last}"
        else:
            pytest.fail(f"{where} is a block that nobody runs")
