# SPDX-License-Identifier: Apache-2.0
"""What a header shows of its kernels and variants, and what is told of words of CUDA alone."""

from pathlib import Path

import numpy as np
import pytest

from nativeops.complaints import complaints
from nativeops.errors import BuildError
from nativeops.glue import defines, kernel_line, kernel_source

from .an_op import HEADER, declare, write

TUNED = """#pragma once
#include "nativeops/devices/kernel.h"
namespace nativeops::tuned {
template <class T>
void scaled(Device& dev, In<T, 1> x, Out<T, 1> out) {
  fill(dev, out, [=] KERNEL(int64_t i) { return 2 * Accum<T>(x(i)); });
}
}  // namespace nativeops::tuned
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("int one;\nvoid scaled(Device& dev) {}", 2),
        ("/* of\nold: */\nvoid\n  scaled (Device& dev) {}", 3),
        ("constexpr auto scaled = other<T>;", 1),
        ("#define MAP(name) void name(Device&)\n  MAP(scaled)", 2),
        ("MAP_ALL(scaled, 2 * v)", 1),
        ('const char* s = "// no comment"; void scaled(Device& dev) {}', 1),
        ("// void scaled(Device& dev) {}", 0),
        ("/* void scaled(Device& dev) {}\n void scaled(Device& dev); */", 0),
        ("  if (helper(scaled)) return;\n  other(scaled, 2);", 0),
        ("MAP(rescaled) void scaled_by(Device& dev) {}", 0),
    ],
)
def test_line_of_a_kernel(tmp_path: Path, text: str, line: int) -> None:
    header = tmp_path / "scaled.h"
    header.write_text(text)
    assert kernel_line(header, "scaled") == line
    assert defines(header, "scaled") == (line > 0)


def test_kernel_of_a_file_that_a_variant_includes_is_used(tmp_path: Path) -> None:
    made = declare(write(tmp_path))
    (tmp_path / "fast.h").write_text(TUNED)
    (tmp_path / "scaled_cpu.h").write_text('#pragma once\n#include "fast.h"\n')
    assert "nativeops::tuned::scaled" in kernel_source([made], "scaled.h")
    assert made(np.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kernel", ["", "// void scaled(Device& dev) {}\n", '#include "fast.h"\n'])
def test_variant_without_a_kernel_is_refused(tmp_path: Path, kernel: str) -> None:
    made = declare(write(tmp_path))
    (tmp_path / "fast.h").write_text(TUNED.replace("scaled", "other"))
    (tmp_path / "scaled_cpu.h").write_text(f'#pragma once\n{kernel}#include "scaled.h"\n')
    with pytest.raises(BuildError, match=r"scaled_cpu\.h has no tuned kernel of the ops of scaled"):
        made(np.ones(2))


def test_variant_of_other_ops_of_the_header_is_right(tmp_path: Path) -> None:
    header = write(tmp_path)
    other = HEADER.replace("scaled", "other").format(body="fill(dev, out, x);")
    header.write_text(header.read_text() + other)
    (tmp_path / "scaled_cpu.h").write_text(TUNED.replace("void scaled", "void other"))
    assert "tuned" not in kernel_source([declare(header)], "scaled.h").replace("_tuned", "")


def test_file_that_the_header_includes_is_no_variant(tmp_path: Path) -> None:
    header = write(tmp_path)
    (tmp_path / "scaled_cpu.h").write_text("#pragma once\n")
    header.write_text('#include "scaled_cpu.h"\n' + header.read_text())
    assert declare(header)(np.ones(2)).tolist() == [2.0, 2.0]


# As g++ 12 says it; {} is the user's file.
NOT_DECLARED = "{}:2:1: error: '%s' was not declared in this scope"
NO_TYPE = "{}:2:1: error: '%s' does not name a type"


@pytest.mark.parametrize(
    ("said", "way_out"),
    [
        (NO_TYPE % "__global__", "write its body in `launch(dev, grid, block, [=] KERNEL() {"),
        (NO_TYPE % "__device__", "write `HOST_DEVICE` before a function of yours"),
        (NOT_DECLARED % "atomicMax", "of atomics there is `atomicAdd`"),
        (NOT_DECLARED % "__ldg", "write `x(b, i)`"),
        (
            "/x/devices/cpu/block.h:14:16: error: standard attributes in middle of decl-specifiers",
            "`SHARED float part[256]`",
        ),
    ],
    ids=["__global__", "__device__", "atomicMax", "__ldg", "extern __shared__"],
)
def test_way_out_is_told_of_words_of_cuda_alone(tmp_path: Path, said: str, way_out: str) -> None:
    header = tmp_path / "own.h"
    header.write_text("#pragma once\n  extern __shared__ float s[];\n")
    [text] = complaints(said.format(header), [header])
    assert text.startswith(f"{header}:2:")
    assert way_out in text.splitlines()[-1]


def test_extern_shared_is_told_at_its_line(tmp_path: Path) -> None:
    body = "launch(dev, 4, 64, [=] KERNEL() { extern __shared__ float s[]; s[0] = out.size(0); });"
    header = write(tmp_path, body=body)
    with pytest.raises(BuildError) as caught:
        declare(header)(np.ones(2))
    assert f"{header}:6: error: standard attributes" in str(caught.value)
    assert "CXX" not in str(caught.value)
