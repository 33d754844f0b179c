# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own for the kernels, so that each file's are built now."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NATIVEOPS_CACHE", str(folder))
        yield folder
