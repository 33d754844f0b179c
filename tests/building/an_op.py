# SPDX-License-Identifier: Apache-2.0
"""An op `scaled` that the tests of this folder write, change and declare again."""

import os
import subprocess
import sys
from pathlib import Path

from nativeops import registry
from nativeops.declare import Array, Float, op

HEADER = """#pragma once
#include "nativeops/devices/kernel.h"
namespace nativeops {{
template <class T>
void scaled(Device& dev, In<T, 1> x, Out<T, 1> out) {{
  {body}
}}
}}  // namespace nativeops
"""
LOOP = "for_each(dev, out, [=] KERNEL(int64_t i) {{ out(i) = T({value}); }});"
DECLARATION = """from nativeops.declare import Array, Float, op

@op(kernel="scaled.h")
def scaled(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return 2 * x
"""


def write(folder: Path, value: str = "2 * Accum<T>(x(i))", body: str = "") -> Path:
    """The header of an op `scaled`."""
    path = folder / "scaled.h"
    path.write_text(HEADER.format(body=body or LOOP.format(value=value)))
    return path


def declare(header: Path):
    """Declare `scaled` again, as a notebook does."""
    registry._OPS.pop("scaled", None)

    @op(kernel=str(header))
    def scaled(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return 2 * x

    return scaled


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


def process(folder: Path, code: str, **variables: str) -> "subprocess.Popen[str]":
    """Another process with the op of a folder."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import numpy as np\nfrom scaled import scaled\n{code}"],
        env={**os.environ, "PYTHONPATH": str(folder), "TMPDIR": str(folder / "temporary")}
        | variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
