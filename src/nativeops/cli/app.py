# SPDX-License-Identifier: Apache-2.0
"""All commands together."""

from typing import Annotated

import typer

import nativeops
from nativeops.cli.bench import bench
from nativeops.cli.build import build
from nativeops.cli.check import check
from nativeops.cli.demo import demo
from nativeops.cli.doctor import doctor
from nativeops.cli.list import list_ops
from nativeops.cli.new import new
from nativeops.cli.show import show

app = typer.Typer(
    help="Fused native operations: what there is, whether it works here, and how fast.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    """The end after the version, if it is asked for."""
    if wanted:
        typer.echo(nativeops.__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """What stands before a command."""


app.command("list")(list_ops)
app.command("show")(show)
app.command("doctor")(doctor)
app.command("new")(new)
app.command("check")(check)
app.command("build")(build)
app.command("bench")(bench)
app.command("demo")(demo)
