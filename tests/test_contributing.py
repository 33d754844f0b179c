# SPDX-License-Identifier: Apache-2.0
"""Following "Add an op" of CONTRIBUTING.md to the letter gives an op that works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import aside  # noqa: E402
from pages import blocks  # noqa: E402

PAGE = ROOT / "CONTRIBUTING.md"
NAME = "pairwise_squared_l2"
ENDINGS = (".h", ".py", "_test.py")


def follow_the_page(tree: Path) -> None:
    """Run the commands that the page marks, and export the name."""
    for block in blocks(PAGE):
        if block.mark == "run":
            variables = aside.with_our_tools()
            subprocess.run(["bash", "-ec", block.text], cwd=tree, env=variables, check=True)
        elif block.mark.startswith("import: "):
            init = tree / block.mark.removeprefix("import: ")
            exported = init.read_text().replace("__all__ = [", f'__all__ = ["{NAME}", ')
            init.write_text(exported.replace("\n__all__", f"{block.text}\n__all__"))


def written(tree: Path) -> list[Path]:
    """The files of the new op."""
    return sorted((tree / "src/nativeops/ops").glob(f"{NAME}*"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, with the op of the page."""
    tree = tmp_path_factory.mktemp("contributing")
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    shutil.copytree(
        ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    follow_the_page(tree)
    return tree


@pytest.mark.slow
def test_op_of_the_page_passes_its_tests(tree: Path) -> None:
    quick = ("-DNATIVEOPS_LEVELS=portable", "-DNATIVEOPS_OPTIMIZE=0")
    options = ("-DNATIVEOPS_CUDA=off", *quick)
    python = aside.build(tree / "build", tree, options)
    test = tree / f"build/package/nativeops/ops/{NAME}_test.py"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tree, test]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b4 passed", done.stdout)


def test_files_of_the_page_are_in_the_projects_style(tree: Path) -> None:
    files = [str(path) for path in written(tree) if path.suffix == ".py"]
    for check in (["check"], ["format", "--check"]):
        config = ["--config", str(ROOT / "pyproject.toml")]
        command = [sys.executable, "-m", "ruff", *check, *config, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_page_shows_every_word_of_the_makefile() -> None:
    words = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.M)
    shown = re.findall(r"^\| `make ([a-z-]+)` \|", PAGE.read_text(), flags=re.M)
    assert sorted(shown) == sorted(set(words) - {"help"})


def test_op_of_the_page_touches_three_new_files(tree: Path) -> None:
    assert [path.name for path in written(tree)] == [f"{NAME}{end}" for end in ENDINGS]
