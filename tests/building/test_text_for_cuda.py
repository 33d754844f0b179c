# SPDX-License-Identifier: Apache-2.0
"""Text for CUDA on the CPU: all threads of a block where none needs another, else one."""

from pathlib import Path

import numpy as np
import pytest

from nativeops.glue import raw_text
from nativeops.testing.aspects import unwritten
from nativeops.testing.case import Case

from .an_op import declare, write

ONCE = """const int64_t n = x.size(0);
  launch(dev, dim3((n + 63) / 64), dim3(64), [=] KERNEL() {{
    const int64_t i = threadIdx.x + int64_t{{blockDim.x}} * blockIdx.x;
    {barrier}
    if (i < n) out(i) = T(2 * Accum<T>(x(i)));
  }});"""
FLAT = """const unsigned n = x.size(0);
  launch(dev, dim3(1, (n + 29) / 30, 2), dim3(3, 5), [=] KERNEL() {
    const unsigned i = threadIdx.x + 3 * (threadIdx.y + 5 * (blockIdx.z + 2 * blockIdx.y));
    if (i < n && gridDim.z == 2 && blockDim.y == 5) out(i) = T(2 * Accum<T>(x(i)));
  });"""


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000, 100_000])
@pytest.mark.parametrize("body", [ONCE.format(barrier=""), FLAT])
def test_every_thread_has_its_element(tmp_path: Path, size: int, body: str) -> None:
    header = write(tmp_path, body=body)
    assert raw_text(header) == "apart"
    x = np.arange(size, dtype="float32")
    assert np.array_equal(declare(header)(x), 2 * x)


def test_sum_of_all_threads_is_that_of_all_elements(tmp_path: Path) -> None:
    body = """launch(dev, dim3(1), dim3(1), [=] KERNEL() { out(0) = T(0.0f); });
  launch(dev, dim3(7), dim3(32), [=] KERNEL() {
    for (int64_t i = threadIdx.x + int64_t{blockDim.x} * blockIdx.x; i < x.size(0);
         i += int64_t{gridDim.x} * blockDim.x)
      out(i) = T(2 * Accum<T>(x(i)));
  });"""
    x = np.arange(5000.0)
    assert np.array_equal(declare(write(tmp_path, body=body))(x), 2 * x)


@pytest.mark.parametrize(
    "barrier",
    ["__syncthreads();", "sync();", "__shared__ int part[64]; part[threadIdx.x] = 0;",
     "if (threadIdx.x < warpSize) {}", "block_sum(1.0f);"],
)  # fmt: skip
def test_threads_that_need_each_other_are_one_and_check_says_so(tmp_path, barrier: str) -> None:
    header = write(tmp_path, body=ONCE.format(barrier=barrier))
    assert raw_text(header) == "together"
    op = declare(header)
    case = Case(op, "numpy", "cpu", {"Float": "float32"}, {"n": 200}, ((),), {})
    said = unwritten(case)
    assert said.endswith("a block has one thread: let it stride by blockDim and gridDim")


def test_barrier_of_an_included_file_counts(tmp_path: Path) -> None:
    header = write(tmp_path, body=ONCE.format(barrier="meet();"))
    text = header.read_text().replace("namespace nativeops {", '#include "meet.h"\n', 1)
    header.write_text(text.replace("template", "namespace nativeops {\ntemplate", 1))
    (tmp_path / "meet.h").write_text("// sync()\ninline KERNEL void meet() {}\n")
    assert raw_text(header) == "apart"
    (tmp_path / "meet.h").write_text("inline KERNEL void meet() { nativeops::sync(); }\n")
    assert raw_text(header) == "together"


def test_loops_of_a_team_are_no_text_for_cuda(tmp_path: Path) -> None:
    assert raw_text(write(tmp_path)) == ""
    mixed = "for_each_item(dev, 1, [=] KERNEL(Team team, int64_t) {{ team.sync(); }});\n  "
    assert raw_text(write(tmp_path, body=mixed + ONCE.format(barrier=""))) == "apart"
