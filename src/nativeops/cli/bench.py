# SPDX-License-Identifier: Apache-2.0
"""``nativeops bench``: how fast, against whom."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from nativeops.bench import compare, history, machine, picture, report
from nativeops.bench.case import Size
from nativeops.bench.measure import QUICK, THOROUGH
from nativeops.bench.measurement import Measurement
from nativeops.bench.place import Place
from nativeops.bench.run import Plan, WorkerError, bench_module, run
from nativeops.checking.source import importable, line_in
from nativeops.cli.output import check_folders, check_made, fail, find_op, print_data, progress_bar
from nativeops.library import kernel_libraries, selected
from nativeops.registry import ops

Device = Literal["cpu", "cuda"]


class Cases(NamedTuple):
    """A module with cases, and the folder it is imported from if that is on no path."""

    module: str
    folder: str = ""


OTHERS = {  # what is no op
    "overhead": Cases("nativeops.frameworks.overhead_bench"),
    "stack": Cases("nativeops.layers.stack_bench"),
}


def bench(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="An op; a file NAME.py with NAME_bench.py beside it, or a folder of such; or "
            "`overhead` of calls in all frameworks, `stack` of recurrent layers. Without it, all "
            "ops of the package, which takes an hour or more."
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None, typer.Option(help="For example n=1000,m=1000,d=128; more than once.")
    ] = None,
    case: Annotated[list[str] | None, typer.Option(help="Only this case; more than once.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPUs for everybody; all by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smallest sizes, few rounds.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file, too.")
    ] = None,
    device: Annotated[
        Device, typer.Option(help="cuda: PyTorch's and JAX's rivals, on the first GPU.")
    ] = "cpu",
    results: Annotated[
        Path | None,
        typer.Option(help="Folder for the history and the tables; with --quick none by default."),
    ] = None,
) -> None:
    """Measure ops against other libraries: the results are compared, then the times."""
    folder = results or (None if quick else checkout_folder())
    given = tuple(read_size(text) for text in sizes or ())
    lines: list[dict[str, Any]] = []
    wrong = False
    check_folders("bench", json_file)
    check_made("bench", folder)
    if missing := Place(device).missing():
        fail(f"nativeops bench: {missing}")
    if (load := os.getloadavg()[0]) > 1:
        typer.echo(f"Other programs are busy (load {load:.1f}): expect wide quartiles.", err=True)
    for name, (module, cases_folder) in modules(subject).items():
        plan = Plan(
            module,
            threads or len(os.sched_getaffinity(0)),
            QUICK if quick else THOROUGH,
            tuple(case or ()),
            given,
            smallest=quick and not given,
            memory=not quick,
            folder=cases_folder,
            device=device,
        )
        check_cases(name, plan)
        measured, shared = measure(name, plan, folder)
        lines += [history.record(shared, figures) for figures in measured if figures.counts]
        wrong |= any(figures.error for figures in measured)
    if json_file:
        json_file.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")
    if wrong:
        raise typer.Exit(1)


def modules(subject: str | None) -> dict[str, Cases]:
    """What is measured, each with the module that has its cases."""
    declared = sorted(ops(), key=lambda op: (op.reference.__code__.co_firstlineno, len(op.name)))
    found = {op.name: bench_module(op.__module__) for op in declared}
    known = {name: Cases(module) for name, module in found.items() if module} | OTHERS
    if subject is None:  # ops of one file have the same cases: each file as its first op
        first = {own.module: name for name, own in reversed(known.items())}
        return {name: known[name] for name in sorted(first.values())}
    if subject not in known and Path(subject).exists():
        return of_files(Path(subject).resolve())
    if subject not in known:
        find_op(subject)  # or the end, with what there is
        fail(f"{subject}: there is no {subject}_bench.py beside its declaration.")
    return {subject: known[subject]}


def of_files(path: Path) -> dict[str, Cases]:
    """The cases beside a user's file, or all in a folder."""
    stem = path.stem.removesuffix("_bench")
    folder, name = (path, "*") if path.is_dir() else (path.parent, stem)
    files = sorted(folder.glob(f"{name}_bench.py"))
    if not files:
        fail(f"nativeops bench: there is no {name}_bench.py in {folder}.")
    places = {file.stem.removesuffix("_bench"): importable(file) for file in files}
    return {name: Cases(module, str(root)) for name, (root, module) in places.items()}


def measure(name: str, plan: Plan, folder: Path | None) -> tuple[list[Measurement], history.Run]:
    """Run, keep and print the figures of one subject; a run that is stopped keeps what it has."""
    place = Place(plan.device)
    processor = place.name()
    shared = history.Run(
        op=name,
        device=plan.device,
        machine=machine.machine_key(processor if place.on_gpu else ""),
        threads=plan.threads,
        instructions="" if place.on_gpu else selected(),
        compiler=machine.compiler(kernel_libraries()),
        commit=machine.commit(),
        date=machine.today(),
    )
    file = (folder or Path("benchmarks")) / "history" / f"{shared.machine}.jsonl"
    before, measured = history.read(file), []
    with progress_bar() as progress:
        try:
            for figures in run(plan, lambda text, share: progress(f"{name}: {text}", share)):
                measured.append(figures)
                if folder:
                    history.append(file, shared, [figures])
        except WorkerError as error:
            fail(f"nativeops bench: {name}: {error}", code=1)
    rows = compare.rows(shared, measured, before)
    benches = [each for each, _ in plan.jobs()]
    print_data(report.to_terminal(shared, benches, rows, processor))
    if folder:
        page = folder / "results" / shared.machine / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        drawn = draw(page.with_suffix(".svg"), report.headline(shared, processor), measured)
        page.write_text(report.to_markdown(shared, benches, rows, processor, drawn), "utf-8")
    return measured, shared


def draw(path: Path, title: str, measured: list[Measurement]) -> str:
    """Draw the figures; the name of the file, empty where there is nothing to draw, or nothing to
    draw with."""
    if not any(figures.counts for figures in measured):
        return ""
    if find_spec("matplotlib") is None:
        typer.echo("No picture: matplotlib is missing; `pip install matplotlib`.", err=True)
        return ""
    picture.draw(path, title, measured)
    return path.name


def checkout_folder() -> Path | None:
    """``benchmarks`` in the current folder, if there is one: that of a checkout."""
    folder = Path("benchmarks")
    return folder if folder.is_dir() else None


def check_cases(name: str, plan: Plan) -> None:
    """The end where a benchmark cannot be read, or has nothing to measure."""
    try:
        jobs, known = list(plan.jobs()), known_cases(plan)
    except (Exception, SystemExit) as error:
        text = f"nativeops bench: {plan.module} cannot be used: {type(error).__name__}: {error}"
        file = Path(plan.folder, *plan.module.split(".")).with_suffix(".py")
        line = line_in(file, error)
        fail(f"{text}\n    at {file}:{line}" if line else text)
    if not known:
        fail(f"nativeops bench: {name} has no cases: `BENCHES` lists them, each with its sizes.")
    if not jobs:
        fail(f"{name}: no case fits: it has {known}.")


def known_cases(plan: Plan) -> str:
    """The cases of a benchmark with the axes of their sizes, for an error message."""
    jobs = Plan(plan.module, threads=1, folder=plan.folder).jobs()
    return ", ".join(f"`{bench.name}` ({', '.join(sizes[0])})" for bench, sizes in jobs)


def read_size(text: str) -> Size:
    """``n=1000,m=1000,d=128``."""
    try:
        size = {axis.strip(): int(n) for axis, n in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not like n=1000,m=1000,d=128") from None
    if min(size.values()) < 1:
        raise typer.BadParameter(f"{text!r} has a size below 1")
    return size
