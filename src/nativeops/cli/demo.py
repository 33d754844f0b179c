# SPDX-License-Identifier: Apache-2.0
"""``nativeops demo``: small applications on real data."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nativeops.bench.machine import package_version
from nativeops.cli.output import check_folders, fail, print_data, progress_bar
from nativeops.errors import ArgumentError

NEEDS = ("scikit-learn", "scipy", "matplotlib", "jinja2", "torch")


class Demo(StrEnum):
    """The demos there are."""

    lines = "lines"
    l1 = "l1"


def demo(
    name: Annotated[
        Demo,
        typer.Argument(
            help="`lines`: handwritten lines read by LSTM and CTC. `l1`: digits by L1 distances."
        ),
    ] = Demo.lines,
    output: Annotated[Path | None, typer.Option(help="Where the picture goes.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps, few rounds.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write all of it to this file, as one HTML page (`lines`).")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Keep the trained model there (`lines`); go on from there if it exists. Else "
            "a file beside the picture does so, which is removed when the demo is done."
        ),
    ] = None,
) -> None:
    """Learn from real images: accuracy, times against other libraries, and a picture."""
    missing = [package for package in NEEDS if package_version(package) is None]
    if missing:
        fail(f"the demo needs {', '.join(missing)}: run `pip install 'nativeops[demo]'`.")
    path = output or Path(f"nativeops-demo-{name.value}.png")
    check_folders("demo", path, report, checkpoint)
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        fail(f"nativeops demo: {path} is no picture: name it like {path.with_suffix('.png')}.")
    if name is Demo.lines:
        _lines(path, report, checkpoint, quick=quick)
    elif report or checkpoint:
        fail("--report and --checkpoint belong to the demo `lines`: leave them away.")
    else:
        _l1(path, quick=quick)


def _lines(path: Path, report: Path | None, checkpoint: Path | None, *, quick: bool) -> None:
    from nativeops.demos import lines, lines_report

    kept = checkpoint or path.with_suffix(".pt")
    started = time.perf_counter()
    try:
        with progress_bar() as progress:
            outcome = lines.demo(kept, quick=quick, progress=progress)
            figure = lines.draw(outcome)
            figure.savefig(path)
    except KeyboardInterrupt:
        where = f": the same command goes on from {kept}" if kept.exists() else ""
        fail(f"Interrupted{where}.", code=130)
    except ArgumentError as error:
        fail(str(error))
    for sentence in lines.findings(outcome):
        typer.echo(sentence)
    print_data(lines.table(outcome.speed))
    if report:
        report.write_text(lines_report.html(outcome, figure), "utf-8")
    if checkpoint is None:
        kept.unlink(missing_ok=True)
    written = f"picture: {path}" + (f", page: {report}" if report else "")
    typer.echo(f"{time.perf_counter() - started:.0f} s; {written}")
    if any(each.error for each in outcome.speed):
        raise typer.Exit(1)


def _l1(path: Path, *, quick: bool) -> None:
    from nativeops.demos import l1

    started = time.perf_counter()
    with progress_bar() as progress:
        outcome = l1.demo(path, quick=quick, progress=progress)
    print_data(l1.table(outcome))
    typer.echo(f"{time.perf_counter() - started:.0f} s; picture: {path}")
