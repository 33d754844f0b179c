# SPDX-License-Identifier: Apache-2.0
"""Where commands write: data to standard output, progress to standard error."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from nativeops.call import Op
from nativeops.errors import ArgumentError
from nativeops.registry import find

WIDTH = 120  # of tables that are piped


def print_data(renderable: RenderableType) -> None:
    """To standard output: in colour on a terminal, and wide enough when piped."""
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(width=width, highlight=False, markup=False)  # `nativeops[cli]` is no style
    with console.capture() as captured:
        console.print(renderable)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error; call what it gives with the text and the share that is done."""
    columns = (
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=share)


def fail(text: str, code: int = 2) -> NoReturn:
    """End with one sentence on standard error."""
    typer.echo(text, err=True)
    raise typer.Exit(code)


def check_folders(command: str, *files: Path | None) -> None:
    """The end where a file that a command writes last cannot be written: before it begins."""
    for file in filter(None, files):
        if not os.path.isdir(file.absolute().parent):
            fail(f"nativeops {command}: there is no folder {file.parent} for {file.name}.")
        if os.path.isdir(file):
            fail(f"nativeops {command}: {file} is a folder: name a file.")
        if not os.access(file if os.path.exists(file) else file.absolute().parent, os.W_OK):
            fail(f"nativeops {command}: {file} cannot be written.")


def check_made(command: str, folder: Path | None) -> None:
    """The end where a folder that a command makes cannot be made, or holds nothing new."""
    if folder is None:
        return
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not os.path.isdir(there):
        fail(f"nativeops {command}: {there} is no folder.")
    if not os.access(there, os.W_OK):
        fail(f"nativeops {command}: nothing can be written to {there}.")


def find_op(name: str) -> Op[Any]:
    """The op of that name, or the end with a sentence that says what there is."""
    try:
        return find(name)
    except ArgumentError as error:
        fail(str(error))
