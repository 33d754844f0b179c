# SPDX-License-Identifier: Apache-2.0
"""``nativeops show OP``: what an op does, and where its kernel is."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import nativeops
from nativeops.bench.machine import package_version
from nativeops.call import Op
from nativeops.cli.output import fail, find_op
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.identity import variants
from nativeops.library import cuda_is_built
from nativeops.user_ops import shipped


def show(
    op: Annotated[str, typer.Argument(help="Name of the op; `nativeops list` shows all.")],
    kernel: Annotated[bool, typer.Option("--kernel", help="Print the kernel's source.")] = False,
) -> None:
    """Signature and documentation of an op, and the files it is made of; of a function the same."""
    function = getattr(nativeops, op, None)
    if inspect.isfunction(function):
        if kernel:
            fail(
                f"nativeops show: {op} is a function that calls ops, and has no kernel of its own."
            )
        typer.echo(f"{_head(function)}\n\n{inspect.getdoc(function)}\n")
        typer.echo(f"declared in  {inspect.getfile(function)}")
        return
    found = find_op(op)
    if kernel:
        typer.echo(
            "\n\n".join(f"// {path}\n{path.read_text('utf-8')}".rstrip() for path in kernels(found))
        )
        return
    typer.echo(f"{inspect.cleandoc(found.__doc__ or '')}\n")
    typer.echo(f"declared in  {inspect.getfile(found.reference)}")
    for path in kernels(found):
        typer.echo(f"kernel       {path}")
    for line in runs_in(found):
        typer.echo(f"runs in      {line}")


def runs_in(op: Op[Any]) -> Iterator[str]:
    """A line per framework: what it gives, where, and how to get what is missing."""
    for name, about in FRAMEWORKS.items():
        gives = ["value"]
        if about.compiler:
            gives += ["gradient"] * bool(op.gradient_rule) + [about.compiler]
        on_cuda = cuda_is_built() if op.built_in else "cuda" in dict(shipped(op))
        where = [d for d in about.devices if d == "cpu" or (on_cuda and d in op.devices)]
        line = f"{name}: {', '.join(gives)}; on {', '.join(where)}"
        missing = "" if package_version(name) else f" (run `pip install {about.package}`)"
        yield line + missing


def kernels(op: Op[Any]) -> list[Path]:
    """The kernel for all devices, and those tuned for some."""
    return [op.kernel, *variants(op.kernel).values()]


def _head(function: Any) -> str:
    """What stands above a function's documentation, as it is written."""
    source = inspect.getsource(function)
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    return "\n".join(source.splitlines()[definition.lineno - 1 : definition.body[0].lineno - 1])
