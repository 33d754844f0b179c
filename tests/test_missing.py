# SPDX-License-Identifier: Apache-2.0
"""Where a framework is not installed, its tests are skipped and say so; where a job promises it,
they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nativeops.frameworks.base import FRAMEWORKS

ROOT = Path(__file__).resolve().parent.parent
# `sys.modules[name] = None` would not do: for `import jax.numpy` it says that jax is no package.
WITHOUT = """
import sys
from importlib.machinery import PathFinder
import pytest
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] == sys.argv[1] else find(name, *rest)
)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", "framework_is_there", *sys.argv[2:]]))
"""
GOLDEN = ROOT / "tests/test_golden.py"  # compares what PyTorch has registered


def report_without(framework, expected):
    """What pytest says of the tests that import a framework bare, and of the one of all."""
    package = ROOT / "src/nativeops"
    named = [*package.glob(f"frameworks/{framework}*_test.py"), *package.glob("layers/*/*_test.py")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, framework, *named, GOLDEN, ROOT / "tests/test_matrix.py"],
        env={**os.environ, "NATIVEOPS_EXPECT": expected},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "numpy"])
def test_tests_of_a_missing_framework_are_skipped_unless_it_is_expected(framework):
    text = f"{framework} is missing: install it with `pip install {framework}`"
    code, said = report_without(framework, "")
    assert code == 0, said
    assert text in said
    code, said = report_without(framework, f"numpy {framework}")
    assert code > 0, said
    assert text.replace("is missing", "is expected by NATIVEOPS_EXPECT, but it is missing") in said
