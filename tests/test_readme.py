# SPDX-License-Identifier: Apache-2.0
"""What the pages show is true: their code runs, their quotations and links are right."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from pages import Block, blocks  # noqa: E402

README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# CONTRIBUTING.md has a test of its own, which builds what it shows.
PAGES = [p for p in DOCUMENTS if p.name != "CONTRIBUTING.md" and "reference" not in p.parts]
SEPARATOR = "--- next block ---"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_blocks(wanted: Callable[[Block], object]) -> list[Path]:
    return [page for page in PAGES if any(wanted(block) for block in blocks(page))]


def run(command: list[str | Path], folder: Path, **settings: str) -> str:
    """The output of a command; a failure shows it."""
    variables = {**os.environ, **settings}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_program(block: Block) -> bool:
    return block.language == "python" and not block.path


def test_readme_shows_code_that_runs_within_its_first_25_lines() -> None:
    first = next(filter(is_program, blocks(README)))
    assert first.line + first.text.count("\n") <= 25


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks(is_program), ids=name)
def test_python_of_the_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    shown = blocks(page)
    for block in shown:
        if block.mark.startswith("file: "):
            (tmp_path / block.path).write_text(block.text)
    programs = [i for i, block in enumerate(shown) if is_program(block)]
    source = f"print({SEPARATOR!r})\n".join(shown[i].text for i in programs)
    (tmp_path / "page.py").write_text(source)
    output = run([sys.executable, "page.py"], tmp_path, NATIVEOPS_CACHE=str(tmp_path / "cache"))
    printed = output.split(f"{SEPARATOR}\n")
    for i, text in zip(programs, printed, strict=True):
        if i + 1 < len(shown) and shown[i + 1].language == "text":
            assert text == shown[i + 1].text


@pytest.mark.parametrize("page", with_blocks(lambda b: b.mark.startswith("from: ")), ids=name)
def test_quotations_are_literal(page: Path) -> None:
    for block in blocks(page):
        if block.mark.startswith("from: "):
            source = (ROOT / block.path).read_text()
            for part in re.split(r"^ *\.\.\.\n", block.text, flags=re.M):
                assert part in source, f"{name(page)}:{block.line} is not in {block.path}"


@pytest.mark.slow
def test_commands_of_the_readme_run() -> None:
    # The installation has its test in test_install.py.
    commands = [b.text for b in blocks(README) if b.language == "sh" and b.mark != "install"]
    assert commands
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        run(["bash", "-ec", command], ROOT, PATH=path)


@pytest.mark.parametrize("page", DOCUMENTS, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_architecture_names_every_module_and_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in (ROOT / "src/nativeops").iterdir():
        own = path.suffix in ("", ".py") and not path.stem.endswith("_test")
        if own and not path.name.startswith("_"):
            shown = f"{path.name}/" if path.is_dir() else path.name
            assert shown in text, f"ARCHITECTURE.md does not name {shown}"
