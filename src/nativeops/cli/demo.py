# SPDX-License-Identifier: Apache-2.0
"""``nativeops demo``: a small application on real data."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nativeops.bench.machine import package_version
from nativeops.cli.output import fail, print_data, progress_bar

NEEDS = ("scikit-learn", "scipy", "matplotlib", "torch")


class Demo(StrEnum):
    """The demos there are."""

    l1 = "l1"


def demo(
    name: Annotated[Demo, typer.Argument(help="Which demo.")],
    output: Annotated[Path | None, typer.Option(help="Where the picture goes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, no peak memory.")] = False,
) -> None:
    """Handwritten digits by L1 distances: accuracy, times, memory, and a picture."""
    missing = [package for package in NEEDS if package_version(package) is None]
    if missing:
        fail(f"the demo needs {', '.join(missing)}: run `pip install 'nativeops[demo]'`.")
    from nativeops.demos import l1

    path = output or Path(f"nativeops-demo-{name.value}.png")
    started = time.perf_counter()
    with progress_bar() as progress:
        outcome = l1.demo(path, quick=quick, progress=progress)
    print_data(l1.table(outcome))
    typer.echo(f"{time.perf_counter() - started:.0f} s; picture: {path}")
