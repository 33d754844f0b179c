# SPDX-License-Identifier: Apache-2.0
"""Run the tests of JAX with other versions of it (`make test-versions`).

Each version has an environment of its own under build/versions. The package is built once: all use
the compiled files of the environment that runs this.

    python tests/versions.py [options for pytest]
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import nativeops._nativeops
from aside import ROOT, link_package

VERSIONS = ("0.6.2", "0.8.1", "0.10.2")
NEEDED = ("numpy", "ml_dtypes", "flatbuffers", "pytest", "pytest-timeout")
FOLDER = ROOT / "build/versions"


def main() -> int:
    """Test all versions, also after one has failed; how many have."""
    compiled = Path(nativeops._nativeops.__file__).parent.parent
    package = FOLDER / "package"
    link_package(ROOT / "src/nativeops", compiled, package)
    tests = sorted((package / "nativeops/frameworks").glob("jax*_test.py"))
    failed = [version for version in VERSIONS if not test(version, package, tests)]
    print("failed with JAX " + ", ".join(failed) if failed else f"passed with JAX {VERSIONS}")
    return len(failed)


def test(version: str, package: Path, tests: list[Path]) -> bool:
    """Whether the tests pass with one version."""
    print(f"JAX {version}", flush=True)
    python = environment(version)
    command = [python, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-m", "not cuda"]
    done = subprocess.run(
        [*command, *sys.argv[1:], *tests],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=FOLDER,
        check=False,
    )
    return done.returncode == 0


def environment(version: str) -> Path:
    """The Python of an environment with that version; made once."""
    folder = FOLDER / f"jax-{version}"
    python, made = folder / "bin/python", folder / ".made"
    if not made.exists():
        venv.create(folder, with_pip=True)
        own = [f"jax=={version}", f"jaxlib=={version}"]
        # The other packages in the versions of constraints.txt, which has a JAX as well.
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        kept = [line for line in lines if line and line.partition("==")[0] not in ("jax", "jaxlib")]
        (folder / "constraints.txt").write_text("\n".join(kept) + "\n")
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "-c", folder / "constraints.txt", *own, *NEEDED], check=True)
        made.touch()
    return python


if __name__ == "__main__":
    raise SystemExit(main())
