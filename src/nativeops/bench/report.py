# SPDX-License-Identifier: Apache-2.0
"""The figures as tables: for the terminal, and as Markdown."""

import io
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from nativeops.bench.case import Bench, size_text
from nativeops.bench.compare import Row
from nativeops.bench.history import Run


def cases(benches: Sequence[Bench], rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The title and the rows of each case, in the order they were measured."""
    about = {bench.name: bench.about for bench in benches}
    for case, group in groupby(rows, key=lambda row: row.figures.case):
        yield f"{case}: {about[case]}", list(group)


def to_terminal(run: Run, benches: Sequence[Bench], rows: Sequence[Row], processor: str) -> Group:
    """The whole report, for `rich.console.Console.print`."""
    parts: list[Table | Text] = [Text(headline(run, processor)), Text(versions(rows) + "\n")]
    for title, some in cases(benches, rows):
        parts += [Text(title, style="bold"), _table(some, box.SIMPLE_HEAD)]
        parts += [Text(f"  {remark}") for remark in [*remarks(some), ""]]
    return Group(*parts, Text(LEGEND.replace("`", "")))


def to_markdown(
    run: Run, benches: Sequence[Bench], rows: Sequence[Row], processor: str, picture: str = ""
) -> str:
    """The same report as a Markdown page; `picture` is a file beside it."""
    page = [f"# {run.op}", headline(run, processor), versions(rows), LEGEND]
    if picture:
        page.append(f"![The medians as bars]({picture})")
    for title, some in cases(benches, rows):
        console = Console(file=io.StringIO(), width=240, color_system=None)
        console.print(_table(some, box.MARKDOWN))
        assert isinstance(console.file, io.StringIO)
        lines = (line.rstrip() for line in console.file.getvalue().strip().splitlines())
        page += [f"## {title}", "\n".join(lines)]
        if left_out := remarks(some):
            page.append("\n".join(f"* {remark}" for remark in left_out))
    return "\n\n".join(page) + "\n"


LEGEND = (
    "`ratio`: times our time (in the same framework, where there is one); `before`: the same in "
    "the last run on this machine. `of limit`: the time that the work takes at the machine's "
    "limit, measured in the same rounds, over the median. `memory`: peak beyond the inputs, "
    "the result included."
)


def headline(run: Run, processor: str) -> str:
    """On what was measured."""
    how = f"{run.threads} threads, {run.instructions}" if run.device == "cpu" else "float32 in full"
    return (
        f"{run.op} on {run.device}: {processor}, {how}; "
        f"{run.compiler}; commit {run.commit}; {run.date[:10]}"
    )


def versions(rows: Sequence[Row]) -> str:
    """Who was measured."""
    known = {row.figures.package: row.figures.version for row in rows if row.figures.version}
    return "Versions: " + ", ".join(" ".join(item) for item in sorted(known.items())) + "."


COLUMNS = ("median", "q1", "q3", "n", "ratio", "before", "limit", "of limit", "memory")


def _table(rows: list[Row], style: box.Box) -> Table:
    """A section per size."""
    table = Table(box=style, pad_edge=style is box.MARKDOWN)
    cells = {id(row): _cells(row) for row in rows}
    used = [c for c in COLUMNS if any(cells[id(row)][c] for row in rows)]
    table.add_column("who", no_wrap=True)
    for column in used:
        table.add_column(column, justify="right", no_wrap=True)
    for _, group in groupby(rows, key=lambda row: row.figures.size):
        some = list(group)
        if some[0].figures.size:
            table.add_row(size_text(some[0].figures.size), style="italic")
        for row in some:
            values = (cells[id(row)][column] for column in used)
            name = row.figures.rival.replace("|", r"\|" if style is box.MARKDOWN else "|")
            who = Text(f"  {name}")  # not a str, of which rich would take `[..]` for a style
            table.add_row(who, *values, style="bold" if row.figures.ours else None)
        table.add_section()
    return table


def remarks(rows: Sequence[Row]) -> list[str]:
    """Who has no time, and why."""
    return [
        f"{figures.rival}, {size_text(figures.size)}: "
        + (f"ERROR: {figures.error}" if figures.error else f"left out: {figures.skipped}")
        for figures in (row.figures for row in rows)
        if not figures.counts
    ]


def _cells(row: Row) -> dict[str, str]:
    figures = row.figures
    if not figures.counts:
        return {**dict.fromkeys(COLUMNS, ""), "median": "ERROR" if figures.error else "-"}
    return {
        "median": duration(figures.median),
        "q1": duration(figures.q1),
        "q3": duration(figures.q3),
        "n": str(figures.n),
        "ratio": _times(row.ratio),
        "before": _times(row.ratio_before),
        "limit": duration(figures.limit) if figures.limit else "",
        "of limit": f"{figures.fraction:.0%}" if figures.fraction else "",
        "memory": megabytes(figures.memory),
    }


def megabytes(size: int | None) -> str:
    """Of memory; empty where it was not measured."""
    if size is None:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else "<0.1 MB"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}x" if ratio < 100 else f"{ratio:.0f}x"


def duration(seconds: float) -> str:
    """With three digits, in the unit that suits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:#.3g} {unit}".replace(". ", " ")
    return f"{seconds * 1e9:#.3g} ns".replace(". ", " ")
