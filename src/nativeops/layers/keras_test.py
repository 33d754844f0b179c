# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the layers for Keras with each of its backends: a process has only one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nativeops.testing.marks import missing

TESTS = Path(__file__).with_name("keras_backend_test.py")
# JAX compiles each shape anew, for a computation of microseconds.
QUICK = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_backend(backend):
    if not all(importlib.util.find_spec(name) for name in ("keras", backend)):
        missing(backend, f"install it with `pip install keras {backend}`")
    # Without plugins for several processes, which this one may itself be part of.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, TESTS],
        env={**os.environ, "KERAS_BACKEND": backend, **QUICK},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
