# SPDX-License-Identifier: Apache-2.0
"""``nativeops list``: which op runs where."""

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from rich import box
from rich.table import Table

import nativeops
from nativeops.bench.machine import package_version
from nativeops.call import Op
from nativeops.cli.checks import public_ops
from nativeops.cli.output import print_data
from nativeops.document import is_tuned
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.library import cuda_is_built, kernel_libraries
from nativeops.registry import import_announced
from nativeops.user_ops import shipped


def list_ops() -> None:
    """All ops with the devices they run on here, what calls them, and what each framework gives.

    `nativeops doctor` tries it.
    """
    for failure in import_announced():
        typer.echo(failure, err=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("op", "gradient", "cpu", "cuda"):
        table.add_column(column, no_wrap=True)
    built = [path.name for path in kernel_libraries()]
    for op in public_ops():
        gradient = "yes" if op.gradient_rule else "-"
        table.add_row(op.name, gradient, device(op, "cpu", built), device(op, "cuda", built))
    print_data(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("function of ops", no_wrap=True)
    table.add_column("what it gives")
    for name, about in functions():
        table.add_row(name, about)
    print_data(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("framework", "here", "value", "gradient", "compiled", "cpu", "cuda"):
        table.add_column(column, no_wrap=True)
    for cells in framework_rows():
        table.add_row(*cells)
    print_data(table)


def functions() -> Iterator[tuple[str, str]]:
    """The functions that call ops, with the first line of what they say of themselves."""
    for name in nativeops.__all__:
        function = getattr(nativeops, name)
        if inspect.isfunction(function) and ".library" not in function.__module__:
            yield name, (inspect.getdoc(function) or "").partition("\n")[0]


def framework_rows() -> Iterator[tuple[str, ...]]:
    """A line per framework: whether it is here, and what it gives, on which devices."""
    for name, about in FRAMEWORKS.items():
        here = package_version(name) or f"pip install {about.package}"
        gradient = "yes" if about.compiler else "its own op"
        cuda = ("yes" if cuda_is_built() else "not built") if "cuda" in about.devices else "-"
        yield name, here, "yes", gradient, about.compiler or "-", "yes", cuda


def device(op: Op[Any], name: str, built: list[str]) -> str:
    """How an op runs on a device: by a kernel tuned for it, or by the one for all."""
    if name not in op.devices:
        return "-"
    if not op.built_in and not any(device == name for device, _ in shipped(op)):
        return "not shipped"  # it may be compiled when it is used
    if op.built_in and not any(file.startswith(f"libnativeops_{name}") for file in built):
        return "not built"
    return "tuned kernel" if is_tuned(op, name) else "portable kernel"
