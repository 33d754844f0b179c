# SPDX-License-Identifier: Apache-2.0
"""The rules of ARCHITECTURE.md: who may import whom, who names what, and how small things are."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median, quantiles

import pytest

import nativeops.ops  # noqa: F401  declares all built-in ops
from nativeops.registry import ops

PACKAGE = Path(__file__).resolve().parent.parent / "src/nativeops"
PYTHON = sorted(PACKAGE.rglob("*.py"))
LIBRARY = [path for path in PYTHON if not path.stem.endswith(("_test", "_bench"))]
CPP = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".h", ".cpp", ".cu"))

# From the top to the bottom. What a line names may import the lines below it, and its own line.
LAYERS = [
    ["__main__", "cli", "demos"],
    ["checking", "shipping"],
    ["bench", "testing"],
    ["compat"],
    ["nativeops"],
    ["automata"],
    ["layers", "ops"],
    ["declare", "document", "glue", "build", "cache", "compilers", "complaints", "user_ops"],
    ["frameworks.numpy", "frameworks.torch", "frameworks.jax", "frameworks.tensorflow"],
    ["frameworks.dlpack", "frameworks.absent", "frameworks.failures", "frameworks.out"],
    ["call", "registry"],
    ["lists"],
    ["arrays"],
    ["frameworks", "library", "identity"],
    ["signature"],
    ["attributes"],
    ["sizes", "errors", "names"],
]
# Imports inside of functions that point upwards, each for its reason.
UPWARDS = {
    ("call", "document"),  # the text of help() is made when somebody reads it
    ("library", "user_ops"),  # a user's op is compiled on first use
    ("document", "ops"),  # `python -m nativeops.document` and `.glue` need all built-in ops
    ("glue", "ops"),
}
DEVICES = ["blocks", "cpu", "cpu_threads", "cuda"]
# What each folder of C++ may include. Only the files named here choose a device.
INCLUDES = {
    "ops": {"devices", "ops"},
    "ops for cpu": {"devices", "devices/cpu", "ops"},
    "ops for cuda": {"devices", "devices/cuda", "devices/blocks", "ops"},
    "ops for tuned": {"devices", "ops"},
    "devices": {"devices"},
    "devices/kernel.h": {"devices", *(f"devices/{name}" for name in DEVICES)},
    "devices/gemm.h": {"devices", *(f"devices/{name}" for name in DEVICES)},
    # Compiled for each device.
    "devices/library.cpp": {"devices", "devices/cpu", "devices/cuda"},
    "devices/recurrent_tuned.h": {"devices", "devices/cpu", "devices/blocks"},
    "devices/twice.h": {"devices", "devices/cpu"},
    "devices/blocks": {"devices", "devices/blocks"},
    "devices/cpu": {"devices", "devices/cpu"},
    "devices/cpu_threads": {"devices", "devices/cpu", "devices/cpu_threads"},
    "devices/cuda": {"devices", "devices/cuda"},
    "bindings": {"devices", "devices/cpu", "bindings"},
}  # fmt: skip


def module(path: Path) -> str:
    """The module's name without the package's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "nativeops"


def layer(name: str) -> int:
    """The position of the longest name in LAYERS that `name` starts with."""
    known = {word: i for i, words in enumerate(LAYERS) for word in words}
    fitting = [w for w in known if name == w or name.startswith((f"{w}.", f"{w}_"))]
    assert fitting, f"{name} is in no layer: add it to LAYERS"
    return known[max(fitting, key=len)]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """What a module imports from the package, and whether it does so when it is imported."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef) or _is_type_checking(outer)
        for node in ast.walk(outer)
    }
    only_types = {
        id(node) for outer in ast.walk(tree) if _is_type_checking(outer) for node in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [_imported(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "nativeops" and name != "nativeops._nativeops":
                yield name.removeprefix("nativeops."), id(node) not in inside


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imported(package: str, name: str) -> str:
    """The module that `from package import name` needs."""
    return f"{package}.{name}" if is_module(package, name) or name == "_nativeops" else package


def is_module(package: str, name: str) -> bool:
    path = PACKAGE.parent / package.replace(".", "/")
    return (path / f"{name}.py").exists() or (path / name / "__init__.py").exists()


@pytest.mark.parametrize("path", LIBRARY, ids=module)
def test_imports_point_downwards(path: Path) -> None:
    own = module(path)
    for name, at_import in imports(path):
        pair = (own.partition(".")[0], name.partition(".")[0])
        allowed = layer(name) >= layer(own) or (not at_import and pair in UPWARDS)
        assert allowed, f"{own} must not import {name}, which is in a higher layer"


def test_python_modules_import_each_other_without_circles() -> None:
    check_no_circle({module(p): [n for n, at_import in imports(p) if at_import] for p in LIBRARY})


def check_no_circle(graph: Mapping[str, Iterable[str]]) -> None:
    TopologicalSorter({k: [v for v in vs if v != k] for k, vs in graph.items()}).prepare()


def includes(path: Path) -> list[str]:
    return re.findall(r'#\s*include "nativeops/([^"]+)"', path.read_text())


def place(path: Path) -> str:
    """The key of INCLUDES for a file."""
    file = path.relative_to(PACKAGE).as_posix()
    if file in INCLUDES:
        return file
    device = re.search(r"_(cpu|cuda|tuned)$", path.stem)
    folder = path.parent.relative_to(PACKAGE).as_posix()
    return f"{folder} for {device[1]}" if folder == "ops" and device else folder


@pytest.mark.parametrize("path", CPP, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_includes_point_downwards(path: Path) -> None:
    for name in includes(path):
        folder = name.rpartition("/")[0]
        assert folder in INCLUDES[place(path)], f"{place(path)} must not include {name}"


def test_headers_include_each_other_without_circles() -> None:
    check_no_circle({p.relative_to(PACKAGE).as_posix(): includes(p) for p in CPP})


ADAPTERS = [p for p in LIBRARY if p.parent.name == "frameworks"]
ADAPTERS += [p for p in CPP if p.parent.name == "bindings"]


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda p: p.name)
def test_adapters_name_no_op(path: Path) -> None:
    words = set(re.findall(r"\w+", path.read_text()))
    assert not words & {op.name for op in ops()}


def test_each_op_lies_beside_its_test_and_its_benchmark() -> None:
    own = [op for op in ops() if op.built_in]
    assert len(own) > 50
    for op in own:
        declared = PACKAGE.parent / f"{op.__module__.replace('.', '/')}.py"
        for kind in ("test", "bench"):
            assert declared.with_name(f"{declared.stem}_{kind}.py").is_file(), (op.name, kind)


def test_no_module_has_the_name_of_something_its_package_exports() -> None:
    for path in LIBRARY:
        if path.name != "__init__.py":
            continue
        exported = {
            alias.asname or alias.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if not is_module(node.module or "", alias.name)  # which keeps its own name
        }
        both = exported & {p.stem for p in path.parent.iterdir()}
        assert not both, f"{module(path)} exports {both} and has modules of that name"


def test_files_are_small() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in [*PYTHON, *CPP]}
    too_long = {name: n for name, n in lines.items() if n > 500}
    assert not too_long
    assert median(lines.values()) <= 150
    assert ninetieth(lines.values()) <= 320


def test_kernel_headers_are_small() -> None:
    for path in CPP:
        if path.parent.name == "ops":
            assert len(path.read_text().splitlines()) <= 200, path.name


def test_adapters_are_small() -> None:
    lines = {p.name: len(p.read_text().splitlines()) for p in ADAPTERS if p.suffix == ".py"}
    assert not {name: n for name, n in lines.items() if n > 150}


def test_lines_are_narrow() -> None:
    for path in [*PYTHON, *CPP]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert len(line) <= 100, f"{path.name}:{number} has {len(line)} characters"


def test_source_files_start_with_their_licence() -> None:
    for path in [*PYTHON, *CPP]:
        assert "SPDX-License-Identifier: Apache-2.0" in path.read_text()[:60], path.name


def python_functions() -> dict[str, int]:
    return {
        f"{path.name}:{node.name}": (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    if ast.get_docstring(node) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def cpp_functions() -> dict[str, int]:
    """The outermost blocks in braces that are no namespace, class or table."""
    opens = re.compile(r"^(?!.*\b(?:namespace|struct|class|union|enum|extern)\b).*\)[^=;]*\{$")
    found = {}
    for path in CPP:
        depth = start = 0
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = re.sub(r"//.*|\"(\\.|[^\"])*\"|'(\\.|[^'])'", "", line).rstrip()
            if not depth and not opens.match(code):
                continue
            start = start if depth else number
            depth += code.count("{") - code.count("}")
            if not depth:
                found[f"{path.name}:{start}"] = number - start + 1
        assert not depth, f"{path.name}:{start} does not end"
    return found


@pytest.mark.parametrize("functions", [python_functions, cpp_functions])
def test_functions_are_small(functions) -> None:  # type: ignore[no-untyped-def]
    lines = functions()
    assert len(lines) > 50, "the functions were not found"
    assert not {name: n for name, n in lines.items() if n > 60}
    assert median(lines.values()) <= 8
    assert ninetieth(lines.values()) <= 35


def ninetieth(numbers: Iterable[int]) -> float:
    return quantiles(numbers, n=10)[-1]
