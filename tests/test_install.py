# SPDX-License-Identifier: Apache-2.0
"""The source archive and the wheel: what is in them, and that they work in a new environment."""

import email
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from pages import blocks  # noqa: E402

pytestmark = pytest.mark.slow
# One instruction set and no CUDA: here it is about the archives, and time.
QUICK = {
    "NATIVEOPS_CUDA": "off",
    "CMAKE_ARGS": "-DNATIVEOPS_LEVELS=portable -DNATIVEOPS_OPTIMIZE=0",
}
CALL = "import nativeops, numpy; print(nativeops.pairwise_l1(numpy.eye(2), numpy.eye(2)).sum())"


class Archives(NamedTuple):
    source: Path
    wheel: Path


def run(command: list[str | Path], folder: Path, **settings: str) -> str:
    """The output of a command; a failure shows it."""
    variables = {**os.environ, **QUICK, **settings}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Built as `make wheel` does: the wheel from the source archive, in a new environment."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", folder], ROOT)
    (source,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return Archives(source, wheel)


@pytest.fixture(scope="module")
def installed(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel, and NumPy alone."""
    python = new_environment(tmp_path_factory.mktemp("wheel"))
    run([python, "-m", "pip", "install", "--quiet", archives.wheel], archives.wheel.parent)
    return python


def new_environment(folder: Path) -> Path:
    venv.create(folder / "environment", with_pip=True)
    return folder / "environment/bin/python"


def test_one_wheel_serves_all_pythons_from_3_11_on(archives: Archives) -> None:
    assert "-cp311-abi3-linux_" in archives.wheel.name


def test_wheel_requires_only_numpy(archives: Archives) -> None:
    with zipfile.ZipFile(archives.wheel) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    required = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    assert [r.partition(">")[0] for r in required] == ["numpy"]
    assert metadata["License-Expression"] == "Apache-2.0"


def test_wheel_has_what_a_user_needs_and_nothing_else(archives: Archives) -> None:
    with zipfile.ZipFile(archives.wheel) as wheel:
        names = set(wheel.namelist())
    for needed in (
        "py.typed", "ops/pairwise_l1.h", "devices/kernel.h", "devices/cpu/device.h",
        "devices/library.cpp", "devices/flags.txt", "_nativeops.abi3.so",
        "libnativeops_cpu_portable.so", "templates/map_test.py.in",
    ):  # fmt: skip
        assert f"nativeops/{needed}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    unwanted = ("bindings/", "__pycache__", "build/", ".cpp")
    wrong = {n for n in names if any(part in n for part in unwanted) or n.endswith("_test.py")}
    assert wrong == {"nativeops/devices/library.cpp"}
    assert all(n.startswith(("nativeops/", "nativeops-")) for n in names)


def test_source_archive_has_the_sources_and_no_leftovers(archives: Archives) -> None:
    with tarfile.open(archives.source) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    for needed in (
        "CMakeLists.txt",
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "src/nativeops/py.typed",
    ):
        assert needed in names
    parts = {part for name in names for part in Path(name).parts}
    assert not parts & {".venv", "build", "dist", "__pycache__", ".git", ".mypy_cache"}
    assert not {name for name in names if name.endswith(".so")}


def test_wheel_works_in_a_new_environment(installed: Path, tmp_path: Path) -> None:
    assert run([installed, "-c", CALL], tmp_path) == "4.0\n"
    listed = run([installed, "-m", "pip", "list", "--format=freeze"], tmp_path)
    packages = {line.partition("==")[0] for line in listed.split()}
    assert packages - {"pip", "setuptools"} == {"nativeops", "numpy"}


def test_command_says_what_it_needs_where_that_is_missing(installed: Path, tmp_path: Path) -> None:
    command = [installed.with_name("nativeops"), "list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'nativeops[cli]'" in done.stderr


def test_op_of_a_user_is_compiled_by_the_installed_package(installed: Path, tmp_path: Path) -> None:
    for block in blocks(ROOT / "docs/guides/your-own-op.md"):
        if block.path:
            (tmp_path / block.path).write_text(block.text)
    printed = run([installed, "try_it.py"], tmp_path, NATIVEOPS_CACHE=str(tmp_path / "cache"))
    assert printed == "[-0.75  0.    0.5 ]\n"


def test_installation_of_the_readme_works_from_the_source_archive(
    archives: Archives, tmp_path: Path
) -> None:
    (command,) = [b.text for b in blocks(ROOT / "README.md") if b.mark == "install"]
    with tarfile.open(archives.source) as source:
        # Debian's Python 3.11.2 has no filters, and later ones want one.
        source.extraction_filter = getattr(tarfile, "data_filter", None)
        source.extractall(tmp_path)
    (unpacked,) = tmp_path.iterdir()
    python = new_environment(tmp_path)
    run(["bash", "-ec", command], unpacked, PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    assert run([python, "-c", CALL], tmp_path) == "4.0\n"
