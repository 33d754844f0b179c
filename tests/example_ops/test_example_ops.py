# SPDX-License-Identifier: Apache-2.0
"""Ops that users declare: built on first use, and right in all that the built-in ones are."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nativeops import build, registry
from nativeops.errors import RangeError, ShapeError
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import Case, Mistake, cases, installed, mistakes
from nativeops.testing.guard import check_memory

from . import choices, results, windows

OPS = [op for op in registry.ops() if op.kernel.parent == Path(__file__).parent]
PRESENT = [framework for framework in FRAMEWORKS if installed(framework)]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):  # type: ignore[no-untyped-def]
    """A cache of our own, so that the kernels are built now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NATIVEOPS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize(
    "case", [case for framework in PRESENT for op in OPS for case in cases(op, framework)], ids=str
)
def test_case_is_right(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("mistake", [m for op in OPS for m in mistakes(op)], ids=str)
def test_mistake_is_explained_alike_in_all_frameworks(mistake: Mistake) -> None:
    mistake.run(PRESENT)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_kernels_stay_inside_their_arrays(op) -> None:  # type: ignore[no-untyped-def]
    assert check_memory(op) > 0
