# SPDX-License-Identifier: Apache-2.0
"""What `import nativeops` brings and costs, and which types the public names have."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import nativeops

ROOT = Path(__file__).resolve().parent.parent

IMPORT = """
import numpy, sys
before = set(sys.modules)
import nativeops
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""

TYPED = """
from typing import assert_type

import numpy as np
import torch

import nativeops

def tensors(x: torch.Tensor) -> None:
    assert_type(nativeops.pairwise_l1(x, x), torch.Tensor)
    assert_type(nativeops.pairwise_lp(x, x, p=1.5), torch.Tensor)

def arrays(x: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    assert_type(
        nativeops.pairwise_l1(x, x), np.ndarray[tuple[int, int], np.dtype[np.float32]]
    )
    assert_type(
        nativeops.pairwise_l1.into(x)(x, x), np.ndarray[tuple[int, int], np.dtype[np.float32]]
    )
    nativeops.set_num_threads(nativeops.get_num_threads())
"""

WRONG = {
    "nativeops.pairwise_l1(1)": "missing",
    "nativeops.pairwise_lp(x, x, p='two')": "arg-type",
    "nativeops.pairwise_lp(x, x, q=2.0)": "call-arg",
}


def test_import_brings_nothing_but_numpy_and_the_standard_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"nativeops"}


def test_package_tells_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        installed = metadata.version("nativeops")
    except metadata.PackageNotFoundError:
        assert nativeops.__version__ == "0+unknown"
    else:
        assert nativeops.__version__ == installed == project["version"]
    with pytest.raises(AttributeError, match="module 'nativeops' has no attribute 'pairwise'"):
        nativeops.pairwise  # noqa: B018


def mypy(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src/nativeops/py.typed").exists()


@pytest.mark.slow
def test_package_passes_mypy_strict() -> None:
    assert mypy() == ""


@pytest.mark.slow
def test_array_of_a_framework_in_gives_array_of_the_framework_out(tmp_path: Path) -> None:
    source = tmp_path / "typed.py"
    source.write_text(TYPED)
    assert mypy("--strict", source) == ""


@pytest.mark.slow
def test_wrong_calls_are_found_by_the_type_checker(tmp_path: Path) -> None:
    source = tmp_path / "wrong.py"
    lines = ["import numpy as np", "import nativeops", "x = np.zeros((2, 2))", *WRONG]
    source.write_text("\n".join(lines))
    found = mypy(source)
    for number, code in enumerate(WRONG, len(lines) - len(WRONG) + 1):
        assert f"wrong.py:{number}: error" in found, f"mypy accepts {code}"
