# SPDX-License-Identifier: Apache-2.0
"""``nativeops show OP``: what an op does, and where its kernel is."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from nativeops.call import Op
from nativeops.cli.output import find_op


def show(
    op: Annotated[str, typer.Argument(help="Name of the op; `nativeops list` shows all.")],
    kernel: Annotated[bool, typer.Option("--kernel", help="Print the kernel's source.")] = False,
) -> None:
    """Signature and documentation of an op, and the files it is made of."""
    found = find_op(op)
    if kernel:
        typer.echo(
            "\n\n".join(f"// {path}\n{path.read_text()}".rstrip() for path in kernels(found))
        )
        return
    typer.echo(f"{inspect.cleandoc(found.__doc__ or '')}\n")
    typer.echo(f"declared in  {inspect.getfile(found.reference)}")
    for path in kernels(found):
        typer.echo(f"kernel       {path}")


def kernels(op: Op[Any]) -> list[Path]:
    """The kernel for all devices, and those tuned for one."""
    tuned = (op.kernel.with_name(f"{op.kernel.stem}_{device}.h") for device in ("cpu", "cuda"))
    return [op.kernel, *(path for path in tuned if path.exists())]
