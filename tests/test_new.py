# SPDX-License-Identifier: Apache-2.0
"""`nativeops new` writes ops that work at once, and refuses what could not work."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from nativeops.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("map", "reduce", "contract", "item", "raw")
LONG = "x" * 30


def new(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["new", *map(str, arguments)])
    return result.exit_code, result.stdout + result.stderr


def test_three_files_are_written_and_named(tmp_path: Path) -> None:
    code, said = new("some_op", "-o", tmp_path / "deep" / "folder")
    assert code == 0
    names = sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir())
    assert names == ["some_op.h", "some_op.py", "some_op_test.py"]
    assert all(name in said for name in names)
    for path in (tmp_path / "deep" / "folder").iterdir():
        assert "NAME" not in path.read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "some_op.h").write_text("mine")
    code, said = new("some_op", "-o", tmp_path)
    assert code == 2
    assert "some_op.h exists" in said
    assert [path.name for path in tmp_path.iterdir()] == ["some_op.h"]
    assert (tmp_path / "some_op.h").read_text() == "mine"


def test_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    code, said = new("some_op", "-o", tmp_path / "taken")
    assert code == 2
    assert "there can be no folder" in said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("2nd", "is no name"),
        ("op", "is the name of"),
        ("signal", "is the name of"),
        ("with-dash", "is no name"),
        ("CamelCase", "is no name"),
        ("../up", "is no name"),
        ("lambda", "a word of Python or C++"),
        ("template", "a word of Python or C++"),
        ("xor", "a word of Python or C++"),
        ("static_assert", "a word of Python or C++"),
        ("bf16", "a word of Python or C++"),
        ("offsetof", "a word of Python or C++"),
        ("expected", "something that an op's files use"),
        ("pairwise_l1", "there is an op `pairwise_l1` already"),
        ("ctc_loss", "there is `nativeops.ctc_loss` already"),
        ("mine_grad", "names that end in `_grad`"),
        ("mine_test", "names that end in `_test`"),
        (LONG + "x", "longer than 30"),
    ],
)
def test_name_that_cannot_work_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    code, said = new(name, "-o", tmp_path)
    assert code == 2
    assert reason in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a", LONG])
def test_files_are_in_the_projects_style(tmp_path: Path, kind: str, name: str) -> None:
    new(name, "--kind", kind, "-o", tmp_path)
    ours = ["--config", str(ROOT / "pyproject.toml")]
    for check in (["check", "--ignore", "F821"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, *ours, "--no-cache", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_in_the_projects_style(tmp_path: Path, kind: str) -> None:
    new("pairwise_squared_l2", "--kind", kind, "-o", tmp_path)
    program = Path(sys.executable).with_name("clang-format")
    if not program.exists():
        pytest.skip("clang-format is not installed")
    style = f"--style=file:{ROOT / '.clang-format'}"
    command = [program, style, "--dry-run", "-Werror", tmp_path / "pairwise_squared_l2.h"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tests_that_come_with_an_op_pass_in_any_folder(tmp_path: Path, kind: str) -> None:
    new("some_op", "--kind", kind, "-o", tmp_path)
    options = ["-q", "-W", "error", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "some_op_test.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
