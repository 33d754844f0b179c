# SPDX-License-Identifier: Apache-2.0
"""``nativeops list``: which op runs where."""

from typing import Any

from rich import box
from rich.table import Table

from nativeops.bench.machine import package_version
from nativeops.call import Op
from nativeops.cli.checks import public_ops
from nativeops.cli.output import print_data
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.library import kernel_files


def list_ops() -> None:
    """All ops, with the frameworks and devices they run on here."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("op", "gradient", *FRAMEWORKS, "cpu", "cuda"):
        table.add_column(column, no_wrap=True)
    built = [path.name for path in kernel_files()]
    for op in public_ops():
        table.add_row(
            op.name,
            "yes" if op.gradient_rule else "-",
            *("yes" if package_version(package) else "not installed" for package in FRAMEWORKS),
            device(op, "cpu", built),
            device(op, "cuda", built),
        )
    print_data(table)


def device(op: Op[Any], name: str, built: list[str]) -> str:
    """How an op runs on a device: by a kernel tuned for it, or by the one for all."""
    if not any(file.startswith(f"libnativeops_{name}") for file in built):
        return "not built"
    tuned = op.kernel.with_name(f"{op.kernel.stem}_{name}.h").exists()
    return "tuned kernel" if tuned else "portable kernel"
