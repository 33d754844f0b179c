# SPDX-License-Identifier: Apache-2.0
"""``nativeops new NAME``: the three files of an op that works at once."""

import keyword
import re
import shlex
import sys
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

import nativeops
from nativeops.cli.output import fail
from nativeops.names import is_cpp_word
from nativeops.registry import ops

ENDINGS = (".py", ".h", "_test.py")
LONGEST = 30  # so that the lines of the files stay within their width
# What the files of an op import, or a test of them runs.
USED = {"op", "np", "numpy", "nativeops", "pytest", "check", "transpose"}
USED |= {"torch", "jax", "tensorflow", "x", "expected", "found"}


class Kind(StrEnum):
    """The shape of the example's loops, from the simplest to the freest."""

    map = "map"
    reduce = "reduce"
    contract = "contract"
    item = "item"
    raw = "raw"


def new(
    name: Annotated[str, typer.Argument(help="Name of the op: lower case words with `_`.")],
    kind: Annotated[
        Kind,
        typer.Option(
            help="map: number by number; reduce: sums over an axis; contract: like a matrix "
            "product; item: a team of threads per item, in phases; raw: CUDA's own style."
        ),
    ] = Kind.map,
    folder: Annotated[
        Path, typer.Option("--folder", "-o", help="Where the files go; made if it is missing.")
    ] = Path(),
) -> None:
    """Write NAME.py, NAME.h and NAME_test.py: a small op with its gradient, to be changed."""
    if problem := wrong_name(name):
        fail(f"nativeops new: {problem}")
    paths = [folder / f"{name}{ending}" for ending in ENDINGS]
    if existing := [str(path) for path in paths if path.exists()]:
        fail(f"nativeops new: {', '.join(existing)} exists; choose another name or folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"nativeops new: there can be no folder {folder}: {error.strerror}.")
    for path, ending in zip(paths, ENDINGS, strict=True):
        try:
            path.write_text(content(name, kind, ending), "utf-8")
        except OSError as error:
            fail(f"nativeops new: {path} cannot be written: {error.strerror}.")
        typer.echo(f"wrote  {path}")
    typer.echo(f"next   pytest {shlex.quote(str(paths[2]))}")
    typer.echo(f"       nativeops check {shlex.quote(str(paths[0]))}")


def content(name: str, kind: Kind, ending: str) -> str:
    """One of the three files of an op."""
    template = files("nativeops") / "templates" / f"{kind}{ending}.in"
    return template.read_text(encoding="utf-8").replace("NAME", name)


def wrong_name(name: str) -> str:
    """Why an op cannot be called so; empty if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"`{name}` is no name: use lower case letters, digits and `_`, a letter first."
    if len(name) > LONGEST:
        return f"`{name}` is longer than {LONGEST} characters."
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or is_cpp_word(name):
        return f"`{name}` is a word of Python or C++."
    if name in sys.stdlib_module_names or name in USED:
        return f"`{name}` is the name of a module, or of something that an op's files use."
    if name.endswith(("_test", "_bench", "_cpu", "_cuda", "_tuned", "_grad")):
        ending = name.rpartition("_")[2]
        return f"names that end in `_{ending}` are taken by the files that belong to an op."
    if taken := {op.name for op in ops()} & {name, f"{name}_grad"}:
        return f"there is an op `{min(taken)}` already; choose another name."
    if name in nativeops.__all__:
        return f"there is `nativeops.{name}` already; choose another name."
    return ""
