# SPDX-License-Identifier: Apache-2.0
"""A changed kernel, gradient or declaration is never served stale, and names are not mixed up."""

from pathlib import Path

import numpy as np
import pytest

from nativeops import build, library, pairwise_l1, registry, shipping
from nativeops.declare import Array, Float, op
from nativeops.errors import ArgumentError, BuildError
from nativeops.identity import kernel_files
from nativeops.testing.aspects import selected

from .an_op import DECLARATION, declare, libraries, process, write


def version_of(folder: Path, **texts: str) -> str:
    """The version of the op of a module with a gradient, as a new process sees it."""
    helper = texts.get("helper", "FACTOR = 2\ndef twice(d):\n    return FACTOR * d\n")
    (folder / "helper.py").write_text(helper)
    rule = texts.get("rule", "return twice(d_out)")
    reference = texts.get("reference", "2 * x")
    (folder / "scaled.py").write_text(
        "from helper import twice\n"
        + DECLARATION.replace("2 * x", reference)
        + f"@scaled.gradient\ndef _(d_out):\n    {rule}\n"
    )
    (folder / "part.h").write_text(texts.get("part", "#define PART 2\n"))
    header = write(folder, "PART * x(i)")
    header.write_text('#include "part.h"\n' + header.read_text())
    done = process(folder, "print(scaled.version)", PYTHONDONTWRITEBYTECODE="1")
    out, error = done.communicate(timeout=60)
    assert out.startswith("v"), error
    return out.strip()


# What else a helper may take its factor from.
HELPERS = (
    "FACTOR = 3\ndef twice(d, *, f=FACTOR):\n    return f * d\n",
    "from functools import cache\n@cache\ndef factor():\n    return 3\n"
    "def twice(d):\n    return factor() * d\n",
)


def test_version_covers_what_the_result_and_the_gradient_depend_on(tmp_path: Path) -> None:
    known = [
        version_of(tmp_path),
        version_of(tmp_path, part="#define PART 3\n"),
        version_of(tmp_path, rule="return 3 * twice(d_out)"),
        version_of(tmp_path, reference="x + x"),
        version_of(tmp_path, helper="FACTOR = 3\ndef twice(d):\n    return FACTOR * d\n"),
        version_of(tmp_path, helper="FACTOR = 2\ndef twice(d):\n    return d + FACTOR * d\n"),
        *(version_of(tmp_path, helper=text.replace("3", n)) for text in HELPERS for n in "34"),
    ]
    assert len(set(known)) == len(known)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "temporary").mkdir(parents=True)
    assert version_of(elsewhere) == version_of(tmp_path) == known[0]


def test_changed_part_of_a_kernel_is_built_anew(tmp_path: Path) -> None:
    header = write(tmp_path, "PART * x(i)")
    header.write_text('#include "part.h"\n' + header.read_text())
    for value in (2, 3, 2):
        (tmp_path / "part.h").write_text(f"#define PART {value}\n")
        assert declare(header)(np.ones(2)).tolist() == [value, value]


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A kernel that includes `linked/../part.h`, which lies where `linked` points to."""
    own, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    (elsewhere / "inner").mkdir(parents=True)
    own.mkdir()
    (own / "linked").symlink_to(elsewhere / "inner")
    (elsewhere / "part.h").write_text("#define PART 2\n")
    (elsewhere / "inner/whole.h").write_text('#pragma once\n#include "../part.h"\n')
    header = write(own, "PART * x(i)")
    header.write_text('#pragma once\n#include "linked/whole.h"\n' + header.read_text())
    return header


def test_changed_part_behind_a_linked_folder_is_built_anew(linked: Path) -> None:
    (linked.parent / "part.h").write_text("#error the compiler does not read this\n")
    for value in (2, 3, 2):
        (linked.parent / "linked/../part.h").write_text(f"#define PART {value}\n")
        assert declare(linked)(np.ones(2)).tolist() == [value, value]


def test_kernel_with_a_linked_folder_is_the_same_where_it_is_shipped(
    linked: Path, tmp_path: Path
) -> None:
    scaled, target = declare(linked), tmp_path / "target"
    shipping._copy_sources(scaled, linked, target, {})
    assert not (target / "linked").is_symlink()
    assert declare(target / "scaled.h").kernel_digest == scaled.kernel_digest
    (linked.parent / "part.h").touch()
    linked.write_text('#include "part.h"\n' + linked.read_text())
    with pytest.raises(BuildError, match="would be one file"):
        shipping._copy_sources(declare(linked), linked, target, {})


def test_folder_that_is_linked_into_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    header = write(tmp_path)
    header.write_text('#pragma once\n#include "loop/scaled.h"\n' + header.read_text())
    assert kernel_files(header) == [header]
    assert declare(header)(np.ones(1)).tolist() == [2]


@pytest.mark.parametrize(
    "line", ["#include <part.h>", '#include /* c */ "part.h"', '#define P "part.h"\n#include P']
)
def test_part_whose_changes_would_not_be_seen_is_refused(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "a folder #1 of $2"
    folder.mkdir()
    header = write(folder, "PART * x(i)")
    header.write_text(f"{line}\n{header.read_text()}")
    (folder / "part.h").write_text("#define PART 2\n")
    with pytest.raises(BuildError, match=r'write `#include "part\.h"` on one line'):
        declare(header)(np.ones(2))


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ('#define P "../common/part.h"\n#include P', ""),
        ("#include <../common/part.h>", ""),
        ('#include "part.h"', "-I"),
    ],
)
def test_part_beside_the_folder_whose_changes_would_not_be_seen_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, flag: str
) -> None:
    for name in ("common", "ops"):
        (tmp_path / name).mkdir()
    if flag:
        monkeypatch.setenv("CXX", f"g++ {flag}{tmp_path / 'common'}")
    (tmp_path / "common/part.h").write_text("#define PART 2\n")
    header = write(tmp_path / "ops", "PART * x(i)")
    header.write_text(f"{line}\n{header.read_text()}")
    with pytest.raises(BuildError, match=r'write `#include "\.\./common/part\.h"` on one line'):
        declare(header)(np.ones(2))


def test_header_of_a_compiler_that_is_a_script_at_home_may_be_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "bin" / "gxx"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    header = write(tmp_path, "std::abs(x(i))")
    header.write_text(f"#include <cmath>\n{header.read_text()}")
    assert declare(header)(-np.ones(1)).tolist() == [1]
    (tmp_path / "part.h").write_text("#define PART 2\n")
    header = write(tmp_path, "PART * x(i)")
    header.write_text(f"#include <part.h>\n{header.read_text()}")
    with pytest.raises(BuildError, match="in a way that its changes would not be seen"):
        declare(header)(np.ones(1))


def test_headers_of_a_compiler_in_the_same_home_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "tools" / "include"
    theirs.mkdir(parents=True)
    (theirs / "two.h").write_text("#define TWO 2\n")
    compiler = tmp_path / "tools" / "bin" / "gxx"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec g++ -isystem {theirs} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    header = write(tmp_path, "TWO * x(i)")
    header.write_text(f"#include <two.h>\n{header.read_text()}")
    assert declare(header)(np.ones(1)).tolist() == [2]


def test_each_of_two_declarations_keeps_its_own_kernel(tmp_path: Path) -> None:
    first = declare(write(tmp_path, "2 * x(i)"))
    assert first(np.ones(1)).tolist() == [2]
    second = declare(write(tmp_path, "3 * x(i)"))
    assert second(np.ones(1)).tolist() == [3]
    assert first(np.ones(1)).tolist() == [2]


def test_kernel_that_changed_before_it_was_built_for_another_level_is_told(tmp_path: Path) -> None:
    first = declare(write(tmp_path, "2 * x(i)"))
    first(np.ones(1))
    write(tmp_path, "3 * x(i)")
    with pytest.raises(BuildError, match="changed after the op was first used"):
        build.build(first, level="portable")


@pytest.mark.slow
def test_another_level_is_built_when_it_is_selected(tmp_path: Path, kept: Path) -> None:
    best = library.selected()
    scaled = declare(write(tmp_path))
    try:
        scaled(np.ones(2))
        library.select("portable")
        assert scaled(np.ones(2)).tolist() == [2, 2]
        own = [path for path in libraries(kept) if path.name.startswith("scaled")]
        assert len(own) == 1 + (best != "portable")
    finally:
        library.select(best)
    assert scaled(np.ones(2)).tolist() == [2, 2]


def test_level_of_built_in_ops_alone_builds_nothing(tmp_path: Path, kept: Path) -> None:
    scaled = declare(write(tmp_path))
    scaled(np.ones(2))
    before = set(libraries(kept))
    with selected("portable"):
        pairwise_l1(np.ones((2, 3)), np.ones((2, 3)))
    assert set(libraries(kept)) == before
    assert scaled(np.ones(2)).tolist() == [2, 2]


def slopes_in_torch(op):
    torch = pytest.importorskip("torch")
    x = torch.ones(2, requires_grad=True)
    return torch.autograd.grad(op(x).sum(), x)[0].tolist()


def slopes_in_jax(op):
    jax = pytest.importorskip("jax")
    return jax.grad(lambda x: op(x).sum())(jax.numpy.ones(2)).tolist()


def slopes_in_tensorflow(op):
    tf = pytest.importorskip("tensorflow")
    x = tf.ones(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = op(x)
    return tape.gradient(y, x).numpy().tolist()


@pytest.mark.parametrize("slopes", [slopes_in_torch, slopes_in_jax, slopes_in_tensorflow])
def test_gradient_declared_anew_in_a_notebook_counts_with_its_own_arguments(
    tmp_path: Path, slopes
) -> None:
    scaled = declare(write(tmp_path))
    assert scaled(np.ones(2)).tolist() == [2, 2]

    @scaled.gradient
    def _(d_out):
        return 3 * d_out

    assert slopes(scaled) == [3, 3]

    @scaled.gradient
    def _(x, out, d_out):
        return (x + 2 * out) * d_out

    assert slopes(scaled) == [5, 5]
    assert scaled(np.ones(2)).tolist() == [2, 2]


@pytest.mark.slow
def test_torch_compile_never_serves_an_older_kernel_or_gradient(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        "import torch\n"
        "f = torch.compile(lambda x: scaled(x), fullgraph=True)\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "y = f(x); y.sum().backward()\n"
        "print(y[0].item(), x.grad[0].item())\n"
    )
    for value, factor in ((2, 2), (3, 2), (3, 5), (2, 2)):
        write(tmp_path, f"{value} * Accum<T>(x(i))")
        (tmp_path / "scaled.py").write_text(
            DECLARATION + f"@scaled.gradient\ndef _(d_out):\n    return {factor} * d_out\n"
        )
        done = process(
            tmp_path,
            code,
            PYTHONDONTWRITEBYTECODE="1",
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
        )
        out, error = done.communicate(timeout=240)
        assert out == f"{float(value)} {float(factor)}\n", error


def test_torch_takes_an_op_that_is_declared_again(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for value in (2, 2, 3, 2):
        scaled = declare(write(tmp_path, f"{value} * Accum<T>(x(i))"))
        assert scaled(torch.ones(1)).tolist() == [value]


AGAIN = """
import torch
from nativeops import registry
from nativeops.declare import Array, Float, op
print(scaled(torch.ones(1)).item())
registry._OPS.pop("scaled")
with open("scaled.h") as file:
    text = file.read()
with open("scaled.h", "w") as file:
    file.write(text.replace("> out)", "> out, double c)").replace("2 *", "c *"))

@op(kernel="scaled.h")
def scaled(x: Float[Array, "n"], *, c: float = 3.0) -> Float[Array, "n"]:
    return c * x

print(scaled(torch.ones(1)).item())
"""


def test_torch_ends_well_after_an_op_got_an_attribute(tmp_path: Path) -> None:
    """To PyTorch it is another op: one that got other overloads would end the process badly."""
    pytest.importorskip("torch")
    write(tmp_path, "2 * Accum<T>(x(i))")
    (tmp_path / "scaled.py").write_text(DECLARATION)
    done = process(tmp_path, AGAIN)
    out, error = done.communicate(timeout=120)
    assert (done.returncode, out) == (0, "2.0\n3.0\n"), error


def test_name_of_a_built_in_op_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="pairwise_l1: is the name of an op of nativeops"):

        @op(kernel=str(tmp_path / "pairwise_l1.h"))
        def pairwise_l1(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x


def test_name_of_another_file_is_refused(tmp_path: Path) -> None:
    declare(write(tmp_path))
    with pytest.raises(ArgumentError, match="scaled: is declared twice"):

        @op(kernel=str(tmp_path / "other.h"))
        def scaled(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x


def test_sibling_that_a_notebook_renamed_does_not_hinder(tmp_path: Path) -> None:
    header = tmp_path / "scaled.h"
    declare(write(tmp_path))
    text = header.read_text().replace("scaled", "renamed")
    header.write_text(text)

    @op(kernel=str(header))
    def renamed(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return 2 * x

    try:
        assert renamed(np.ones(2)).tolist() == [2, 2]
    finally:
        del registry._OPS["renamed"]
