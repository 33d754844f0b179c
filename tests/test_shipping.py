# SPDX-License-Identifier: Apache-2.0
"""Ops of other packages: built ahead of time, found by entry points, run without a compiler."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import nativeops
from nativeops import library, registry, shipping
from nativeops.errors import ArgumentError, BuildError
from nativeops.shipping import ship

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/ship_an_op"
DECLARATION = """from nativeops.declare import Array, Float, op

@op(kernel="{name}.h")
def {name}(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return 2 * x
"""
HEADER = """#pragma once
#include "nativeops/devices/kernel.h"
namespace nativeops {{
template <class T>
void {name}(Device& dev, In<T, 1> x, Out<T, 1> out) {{
  for_each(dev, out, [=] KERNEL(int64_t i) {{ out(i) = T(2 * Accum<T>(x(i))); }});
}}
}}  // namespace nativeops
"""


def without_compiler(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a machine that can compile nothing, and has nothing in its cache."""
    variables = {**os.environ, "PATH": str(folder / "nothing"), "NATIVEOPS_DISABLE_JIT": "1"}
    variables.pop("CXX", None)
    return {**variables, "NATIVEOPS_CACHE": str(folder / "empty"), "NATIVEOPS_CUDA": "off", **more}


def run(python: str | Path, code: str, folder: Path, **more: str) -> str:
    """What code prints without a compiler, or the error that it ends with."""
    done = subprocess.run(
        [python, "-c", code],
        cwd=folder,
        env=without_compiler(folder, **more),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def declared(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file that declares an op of a name that no other test has."""
    name = f"shipped_{request.node.name.replace('[', '_').replace(']', '')}"[:60]
    source = tmp_path / "source"
    source.mkdir()
    (source / f"{name}.py").write_text(DECLARATION.format(name=name))
    (source / f"{name}.h").write_text(HEADER.format(name=name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NATIVEOPS_CACHE", str(tmp_path / "cache"))
        patch.setenv("NATIVEOPS_CUDA", "off")
        patch.setattr(sys, "path", [*sys.path])
        yield source / f"{name}.py"
    registry._OPS.pop(name, None)
    sys.modules.pop(name, None)


def call(name: str) -> str:
    return f"import numpy as np\nfrom {name} import {name}\nprint({name}(np.ones(2)).tolist())"


def test_two_kernels_of_one_name_do_not_go_to_one_folder(declared: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "another.py").write_text(
        DECLARATION.format(name="another").replace("another.h", f"{declared.stem}.h")
    )
    (other / f"{declared.stem}.h").write_text(HEADER.format(name="another"))
    taken: dict[str, Path] = {}
    list(ship(declared, tmp_path / "ship", False, taken))
    with pytest.raises(BuildError, match=r"would be one file in .*ship"):
        list(ship(other / "another.py", tmp_path / "ship", False, taken))
    registry._OPS.pop("another", None)
    sys.modules.pop("another", None)


@pytest.fixture
def two_of_one_header(declared: Path) -> Iterator[tuple[Path, Path]]:
    """Two files that declare an op each of one header."""
    name = f"{declared.stem}_b"
    other = declared.with_name(f"{name}.py")
    header = declared.with_suffix(".h")
    other.write_text(DECLARATION.format(name=name).replace(f"{name}.h", header.name))
    kernel = HEADER.format(name=name).replace("#pragma once", "")
    header.write_text(header.read_text() + kernel)
    yield declared, other
    registry._OPS.pop(name, None)
    sys.modules.pop(name, None)


@pytest.fixture
def portable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instruction set, which compiles in a quarter of the time."""
    monkeypatch.setattr(shipping, "LEVELS", library.LEVELS[:1])


@pytest.mark.usefixtures("portable_alone")
def test_library_of_another_files_ops_is_not_lost(two_of_one_header: tuple[Path, Path]) -> None:
    first, second = two_of_one_header
    (made,) = ship(first)
    text = made.read_bytes()
    registry._OPS.pop(first.stem)  # as in another process
    said = f"{made.name} also has the kernel of `{first.stem}`, which would be lost"
    with pytest.raises(BuildError, match=re.escape(said)):
        list(ship(second))
    assert made.read_bytes() == text
    header = first.with_suffix(".h")
    header.write_text(header.read_text() + "// Of another kernel, nothing can be used.\n")
    registry._OPS.pop(second.stem)
    sys.modules.pop(second.stem)
    list(ship(second))
    assert made.read_bytes() != text


@pytest.mark.usefixtures("portable_alone")
def test_two_files_of_one_header_go_to_one_library(two_of_one_header: tuple[Path, Path]) -> None:
    made = {path for file in two_of_one_header for path in ship(file)}
    (path,) = made
    first, second = two_of_one_header
    for name in (first.stem, second.stem):
        assert run(sys.executable, call(name), path.parent, NATIVEOPS_ISA="portable") == (
            "[2.0, 2.0]\n"
        )


MAPS = """#include "nativeops/devices/kernel.h"
#define {macro}(name, factor) \\
  template <class T> void name(Device& dev, In<T, 1> x, Out<T, 1> out) {{ \\
    fill(dev, out, [=] KERNEL(int64_t i) {{ return factor * Accum<T>(x(i)); }}); \\
  }}
namespace nativeops {{
{macro}({name}, 2)
{macro}({name}_b, 2)
}}
"""


@pytest.mark.usefixtures("portable_alone")
@pytest.mark.parametrize("macro", ["MAP", "map_of"])
def test_ops_that_macros_make_are_all_shipped_or_refused(declared: Path, macro: str) -> None:
    name = declared.stem
    declared.with_suffix(".h").write_text(MAPS.format(name=name, macro=macro))
    other = DECLARATION.format(name=f"{name}_b").replace(f"{name}_b.h", f"{name}.h")
    declared.write_text(declared.read_text() + other.partition("\n")[2])
    if macro == "MAP":
        list(ship(declared))
        for each in (name, f"{name}_b"):
            code = call(each).replace(f"from {each}", f"from {name}")
            said = run(sys.executable, code, declared.parent, NATIVEOPS_ISA="portable")
            assert said == "[2.0, 2.0]\n"
    else:
        with pytest.raises(BuildError, match=r"does not show its kernel: `void \w+\(\.\.\.\)`"):
            list(ship(declared))
    registry._OPS.pop(f"{name}_b", None)


@pytest.mark.slow
def test_folder_is_all_that_another_machine_needs(declared: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    made = list(ship(declared, target))
    assert [path.name for path in made] == [
        f"lib{declared.stem}_cpu_{level}.so" for level in library.LEVELS
    ]
    declared.with_suffix(".h").unlink()
    assert run(sys.executable, call(declared.stem), target) == "[2.0, 2.0]\n"
    assert not (target / "empty").exists(), "something was built"


@pytest.mark.slow
def test_libraries_beside_the_kernel_are_found(declared: Path) -> None:
    list(ship(declared))
    assert run(sys.executable, call(declared.stem), declared.parent) == "[2.0, 2.0]\n"
    portable = run(sys.executable, call(declared.stem), declared.parent, NATIVEOPS_ISA="portable")
    assert portable == "[2.0, 2.0]\n"


@pytest.mark.slow
@pytest.mark.parametrize("change", ["kernel", "declaration"])
def test_stale_library_is_refused_or_built_anew(declared: Path, change: str) -> None:
    list(ship(declared))
    if change == "kernel":
        header = declared.with_suffix(".h")
        header.write_text(header.read_text().replace("T(2 *", "T(3 *"))
        expected = "[3.0, 3.0]\n"
    else:
        declared.write_text(declared.read_text().replace('"n"', '"m"'))
        expected = "[2.0, 2.0]\n"
    text = run(sys.executable, call(declared.stem), declared.parent)
    assert "BuildError" in text
    assert "was built for another kernel or declaration" in text
    assert f"nativeops build {declared}" in text
    allowed = {"PATH": os.environ["PATH"], "NATIVEOPS_DISABLE_JIT": "0"}
    assert run(sys.executable, call(declared.stem), declared.parent, **allowed) == expected


@pytest.mark.slow
def test_broken_library_is_told(declared: Path) -> None:
    for path in ship(declared):
        path.write_bytes(b"no library")
    text = run(sys.executable, call(declared.stem), declared.parent)
    assert "BuildError" in text
    assert "cannot be used" in text


def test_built_in_op_is_not_shipped() -> None:
    with pytest.raises(BuildError, match="is an op of nativeops"):
        list(ship(Path(nativeops.__file__).parent / "ops/pairwise_l1.py"))


@pytest.mark.slow
def test_command_builds_and_tells_what_is_wrong(declared: Path, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from nativeops.cli.app import app

    result = CliRunner().invoke(app, ["build", str(declared), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert len(result.stdout.split()) == len(library.LEVELS)
    assert all(Path(line).exists() for line in result.stdout.split())
    missing = CliRunner().invoke(app, ["build", str(tmp_path / "missing.py")])
    assert missing.exit_code == 2
    assert "there is no file" in missing.stderr
    header = declared.with_suffix(".h")
    header.write_text(header.read_text().replace("x(i)", "y(i)"))
    registry._OPS.pop(declared.stem)
    sys.modules.pop(declared.stem)
    refused = CliRunner().invoke(app, ["build", str(declared)])
    assert refused.exit_code == 1
    assert f"{header}:6:" in refused.stderr


# Entry points.


def announce(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    found = {n: metadata.EntryPoint(n, value, registry.GROUP) for n, value in points.items()}
    monkeypatch.setattr(registry, "announced", lambda: found)


def test_announced_op_is_imported_when_it_is_looked_up(
    declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(declared.parent))
    announce(monkeypatch, **{declared.stem: declared.stem})
    assert declared.stem not in sys.modules
    assert registry.find(declared.stem).name == declared.stem


def test_wrong_announcement_is_told(declared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(declared.parent))
    announce(monkeypatch, absent="no_such_module", other=declared.stem)
    with pytest.raises(ArgumentError, match="`no_such_module` cannot be imported"):
        registry.find("absent")
    with pytest.raises(ArgumentError, match="does not declare it"):
        registry.find("other")
    with pytest.raises(ArgumentError, match="did you mean `absent`"):
        registry.find("absentt")


def test_list_shows_announced_ops_and_tells_of_broken_ones(
    declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from nativeops.cli.app import app

    monkeypatch.syspath_prepend(str(declared.parent))
    announce(monkeypatch, **{declared.stem: declared.stem, "absent": "no_such_module"})
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0
    assert declared.stem in result.stdout
    assert "`no_such_module` cannot be imported" in result.stderr


# The example.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's wheel, as its own build makes it."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in sorted(EXAMPLE.rglob("*")):
        kept = {".py", ".h", ".toml"}
        if path.suffix in kept and "build" not in path.relative_to(EXAMPLE).parts:
            copy = source / path.relative_to(EXAMPLE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text())
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, source]
    done = subprocess.run(
        command,
        env={**os.environ, "NATIVEOPS_CUDA": "off", "NATIVEOPS_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel, that also sees the packages of this one."""
    folder = tmp_path_factory.mktemp("target")
    venv.create(folder / "environment", symlinks=True)
    python = folder / "environment/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", wheel], check=True)
    (site,) = (folder / "environment/lib").glob("python*/site-packages")
    own = Path(nativeops.__file__).parent.parent
    shared = [path for path in sys.path if path.endswith("-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in shared]
    (site / "shared.pth").write_text("\n".join([str(own), *lines]) + "\n")
    return python


@pytest.mark.slow
def test_wheel_of_the_example_has_kernels_for_every_machine(wheel: Path) -> None:
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert {f"libhuber_cpu_{level}.so" for level in library.LEVELS} <= names
    assert {"huber.h", "huber.py"} <= names


@pytest.mark.slow
def test_example_runs_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys, nativeops\n"
        "assert 'huber_op' not in sys.modules\n"
        "from nativeops.registry import find\n"
        "huber = find('huber')\n"
        "import numpy as np\n"
        "print(huber(np.array([-3.0, 0.5]), delta=2.0).tolist())\n"
    )
    assert run(installed, code, tmp_path) == "[4.0, 0.125]\n"


@pytest.mark.slow
def test_gradient_of_the_example_runs_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        "import torch\n"
        "from huber_op import huber\n"
        "x = torch.tensor([-3.0, 0.5], requires_grad=True)\n"
        "huber(x, delta=2.0).sum().backward()\n"
        "print(x.grad.tolist())\n"
    )
    assert run(installed, code, tmp_path) == "[-2.0, 0.5]\n"


@pytest.mark.slow
def test_example_passes_the_tests_of_all_ops(installed: Path, tmp_path: Path) -> None:
    code = (
        "from huber_op import huber\n"
        "from nativeops.testing import check\n"
        "check(huber, 'numpy')\n"
        "print('all right')\n"
    )
    assert run(installed, code, tmp_path).endswith("all right\n")
