# SPDX-License-Identifier: Apache-2.0
"""Tests of a framework that is not installed are skipped, and say so."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing.marks import missing


class Module(pytest.Module):
    """A file of tests, which may import a framework."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The tests of the file."""
        try:
            return list(super().collect())
        except self.CollectError as error:
            cause = error.__cause__
            if isinstance(cause, ModuleNotFoundError) and cause.name in FRAMEWORKS:
                missing(cause.name, f"install it with `pip install {cause.name}`")
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """A file of tests, as pytest asks for it."""
    return Module.from_parent(parent, path=module_path)
