# SPDX-License-Identifier: Apache-2.0
"""What keeps these tests apart from the machine's own cache and settings."""

from pathlib import Path

import pytest

from nativeops import cache, compilers


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a temporary folder of our own, and no setting of whoever runs the tests."""
    for name in ("NATIVEOPS_DISABLE_JIT", "NATIVEOPS_CACHE_SIZE", "NATIVEOPS_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NATIVEOPS_CUDA", "off")
    monkeypatch.setenv("NATIVEOPS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "cache"


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any compiler."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: None)
