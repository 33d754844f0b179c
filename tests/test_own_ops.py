# SPDX-License-Identifier: Apache-2.0
"""The ops in `examples` that a user could have written: right, small, checked and measured.

In processes of their own, as other tests look at the ops of this one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import installed

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
OWN = (
    "bias_gelu", "gated_recurrence", "layer_norm", "light_gru", "segment_sum", "stencil",
    "two_layers",
)  # fmt: skip
FILES = [*(EXAMPLES / "own_ops" / name for name in OWN), EXAMPLES / "cuda_style/cuda_style"]
TUNED = [EXAMPLES / f"own_ops/{name}" for name in ("light_gru_tuned", "segment_sum_cpu")]
IDS = [file.name for file in FILES]
DOCTESTS = """
import doctest, importlib, sys
import numpy as np
from nativeops.checking import ops_of
for name, op in ops_of(sys.argv[1]).items():
    shown = doctest.DocTestParser().get_doctest(
        op.reference.__doc__, {"np": np, name: op}, name, None, None)
    assert doctest.DocTestRunner().run(shown).failed == 0
"""


def run(*command: object, cache: Path, **settings: str) -> str:
    """What a command prints; it must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "NATIVEOPS_CACHE": str(cache), "COLUMNS": "200", **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def cache(shared_folder: Path) -> Path:
    return shared_folder / "own_ops"


def test_there_are_these_and_no_others() -> None:
    found = {path.with_suffix("") for path in EXAMPLES.glob("*/*.h")}
    assert found == {*FILES, *TUNED}


# What each file's own tests compare: kernel and reference in all frameworks, and another library.
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_tests_of_the_op_pass_in_all_frameworks(file: Path, cache: Path) -> None:
    options = ("-q", "-ra", "-p", "no:cacheprovider")
    printed = run("-m", "pytest", *options, f"{file}_test.py", cache=cache)
    if all(installed(name) for name in FRAMEWORKS):
        assert "skipped" not in printed


# The kernel beside the one that is tuned, which serves all other machines.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_gru", "segment_sum"])
def test_portable_kernel_passes_the_same_tests(name: str, cache: Path) -> None:
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not jax")
    run(*command, EXAMPLES / f"own_ops/{name}_test.py", cache=cache, NATIVEOPS_ISA="portable")


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_examples_in_docstrings_are_right(file: Path, cache: Path) -> None:
    run("-c", DOCTESTS, f"{file}.py", cache=cache)


# All but the frameworks and values, which the tests above have. The engine of light_gru takes nine
# minutes under sanitizers, where the tests of built-in layers have it.
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OWN)
def test_check_finds_nothing(name: str, cache: Path) -> None:
    pytest.importorskip("typer")
    aspects = ["large", "threads", "gradient", "cuda"]
    aspects += ["memory", "races"] if name != "light_gru" else []
    only = [word for aspect in aspects for word in ("--only", aspect)]
    printed = run("-m", "nativeops", "check", EXAMPLES / f"own_ops/{name}.py", *only, cache=cache)
    assert "ok, no bug found" in printed


@pytest.mark.slow
def test_benchmarks_beside_a_users_op_are_found(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    pytest.importorskip("scipy")
    options = ("--quick", "--case", "forward", "--sizes", "b=1,h=9,w=9", "--threads", "1")
    command = ("-m", "nativeops", "bench", EXAMPLES / "own_ops/stencil.py", *options)
    printed = run(*command, "--results", tmp_path, cache=cache)
    assert "ours, NumPy" in printed
    assert "scipy" in printed
    assert list(tmp_path.glob("results/*/stencil.md"))


@pytest.mark.parametrize(
    "file", [f"{file}{end}" for file in FILES for end in (".h", ".py")] + [f"{t}.h" for t in TUNED]
)
def test_files_are_short(file: str) -> None:
    text = re.sub(r'"""(?s:.*?)"""', "", Path(file).read_text())
    code = [
        line for line in text.splitlines() if line and not re.match(r" *(//|#(?!include))", line)
    ]
    # A recurrent layer also has lengths, two states and their gradients.
    assert len(code) <= (66 if file.endswith("light_gru.py") else 60)
