# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nativeops import registry

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/nativeops"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite the golden files")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what takes minutes to compile, or one process would end with it alone."""
    items.sort(key=lambda item: "toolkit" not in item.path.parts)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all processes of a session, for what takes minutes to compile."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with its golden file, or rewrite the file (`make golden`)."""

    def compare(name: str, text: str) -> None:
        path = ROOT / "tests/golden" / name
        if request.config.getoption("--golden"):
            path.write_text(text)
        assert path.exists(), f"{path.name} is missing: run `make golden` and review it"
        assert text == path.read_text(), f"{path.name} differs: if it should, run `make golden`"

    return compare


@pytest.fixture(autouse=True)
def _declared_here_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares is gone after it: other tests ask for all ops."""
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
