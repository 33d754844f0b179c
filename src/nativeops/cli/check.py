# SPDX-License-Identifier: Apache-2.0
"""``nativeops check FILE``: everything that can be checked of the ops that a file declares."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from nativeops.checking.finding import Finding
from nativeops.checking.job import Job
from nativeops.checking.run import ASPECTS, jobs, present, run
from nativeops.cli.files import check_usable, ops_in
from nativeops.cli.output import check_folders, fail, print_data, progress_bar
from nativeops.compilers import cpp_compiler, version
from nativeops.errors import BuildError
from nativeops.frameworks.base import FRAMEWORKS

Aspect = StrEnum("Aspect", {name: name for name in ASPECTS})  # type: ignore[misc]
FrameworkName = StrEnum("FrameworkName", {name: name for name in FRAMEWORKS})  # type: ignore[misc]
CASE = re.compile(r" \(\w+(?:-[^ ]+)+\)$")  # of a finding's text: the case that showed it
COLOURS = {"ok": "green", "FAILED": "bold red", "not checked": "yellow"}


def check(
    file: Annotated[Path, typer.Argument(help="The Python file that declares the ops.")],
    only: Annotated[
        list[Aspect] | None, typer.Option(help="Only this aspect; more than once.")
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="Only this op; more than once.")] = None,
    framework: Annotated[
        list[FrameworkName] | None,
        typer.Option(help="Only this framework; more than once. All installed ones by default."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdict to this file, too.")
    ] = None,
) -> None:
    """Check the ops of a file, with sanitizers and in all frameworks. The exit code is 1 for a bug.

    Nothing is assumed beyond the declaration; kernels are compiled anew for each kind of check.
    """
    ops = ops_in("check", file)
    if unknown := sorted(set(op or ()) - set(ops)):
        fail(f"nativeops check: {file} declares no op {unknown[0]}, but {', '.join(ops)}.")
    check_folders("check", json_file)
    ops = {name: each for name, each in ops.items() if not op or name in op}
    check_usable("check", ops.values())
    frameworks = [str(name) for name in framework or ()] or present()
    planned = jobs(file.resolve(), ops, [str(name) for name in only or ()], frameworks)
    if any(job.compiles for job in planned):
        try:
            version(cpp_compiler())
        except BuildError as error:
            fail(str(error))
    with progress_bar() as progress:
        run(planned, progress)
    findings = alike([each for job in planned for each in job.findings])
    print_data(table(planned))
    for each in findings:
        print_data(describe(each))
    print_data(Text(summary(list(ops), planned, findings)))
    if json_file:
        json_file.write_text(
            json.dumps(as_json(file, list(ops), planned), indent=1) + "\n", "utf-8"
        )
    if findings:
        raise typer.Exit(1)


def state(job: Job) -> str:
    """The verdict of one job."""
    if job.findings:
        return "FAILED"
    return "ok" if job.cases else "not checked" if job.unchecked else "nothing to check"


def table(planned: Sequence[Job]) -> Table:
    """One line per job."""
    grid = Table.grid(padding=(0, 2))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    for _ in range(2):
        grid.add_column(no_wrap=True, justify="right")
    grid.add_column(overflow="fold")
    for job in planned:
        word = state(job)
        meaning = "; ".join([ASPECTS[job.aspect], *(f"not checked: {w}" for w in job.unchecked)])
        figures = (f"{job.cases} cases", f"{job.seconds:.0f} s") if job.cases else ("", "")
        grid.add_row(Text(word, COLOURS.get(word, "")), job.name, *figures, Text(meaning))
    return grid


def alike(findings: Sequence[Finding]) -> list[Finding]:
    """Each bug once, with all aspects that saw the same of it, whatever case they saw it in."""
    aspects: dict[Finding, dict[str, Finding]] = {}
    for each in findings:
        seen = replace(each, aspect="", text=CASE.sub("", each.text))
        aspects.setdefault(seen, {}).setdefault(each.aspect, each)
    return [replace(next(iter(same.values())), aspect=", ".join(same)) for same in aspects.values()]


def describe(finding: Finding) -> Text:
    """A bug: where it is, what it is, and what was seen."""
    text = Text("\n")
    text.append(f"{shown(finding.file)}:{finding.line}", "bold")
    text.append(f"  {finding.op}: ")
    text.append(finding.bug, "bold red")
    text.append(f"  [{finding.aspect}]\n{indent(finding.text.strip(), '    ')}")
    return text


def shown(file: str) -> str:
    """The path from here, if the file lies below."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def summary(names: Sequence[str], planned: Sequence[Job], findings: Sequence[Finding]) -> str:
    """The verdict in one sentence."""
    total = f"{sum(job.cases for job in planned)} cases of {', '.join(names)}"
    if findings:
        return f"\nFAILED, {len(findings)} found: {total}."
    left = [job.name for job in planned if job.unchecked]
    return f"\nok, no bug found: {total}." + (
        f" Not all checked: {', '.join(left)}." if left else ""
    )


def as_json(file: Path, names: Sequence[str], planned: Sequence[Job]) -> dict[str, Any]:
    """The verdict for a program."""
    return {
        "file": str(file),
        "ops": list(names),
        "ok": not any(job.findings for job in planned),
        "aspects": [
            {
                "aspect": job.aspect,
                "framework": job.framework or None,
                "state": state(job),
                "cases": job.cases,
                "seconds": round(job.seconds, 1),
                "not_checked": job.unchecked,
                "findings": [asdict(each) for each in job.findings],
            }
            for job in planned
        ],
    }
