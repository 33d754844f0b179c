# SPDX-License-Identifier: Apache-2.0
"""``nativeops build FILE...``: compile ops ahead of time, to ship them."""

from pathlib import Path
from typing import Annotated

import typer

from nativeops.cli.files import check_usable, ops_in
from nativeops.cli.output import check_made, fail
from nativeops.errors import NativeOpsError
from nativeops.shipping import ship


def build(
    files: Annotated[list[Path], typer.Argument(help="The Python files that declare the ops.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the result; by default beside each kernel."),
    ] = None,
    cuda: Annotated[
        bool | None, typer.Option(help="For CUDA, too; by default where nvcc is found.")
    ] = None,
) -> None:
    """Compile ops for all instruction sets, so that they run where there is no compiler."""
    check_made("build", output)
    taken: dict[str, Path] = {}
    for file in files:  # all of them first: some may share a header, and so a library
        check_usable("build", ops_in("build", file).values())
    for file in files:
        try:
            for path in ship(file, output, cuda, taken):
                typer.echo(path)
        except NativeOpsError as error:
            fail(str(error), code=1)
