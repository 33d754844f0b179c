# SPDX-License-Identifier: Apache-2.0
"""``nativeops doctor``: what works here, what does not, and the command that helps."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from nativeops.cli.checks import BROKEN, all_checks
from nativeops.cli.output import print_data


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """One line per check. The exit code is 1 if something needed is broken."""
    checks = list(all_checks())
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in checks:
            help_text = f"{check.found}; {check.help}" if check.help else check.found
            table.add_row(check.state, check.what, help_text)
        print_data(table)
    if any(check.state == BROKEN for check in checks):
        raise typer.Exit(1)
