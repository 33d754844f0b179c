# SPDX-License-Identifier: Apache-2.0
"""Races are looked for in a bounded time, and what was not looked at is said."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
from nativeops.checking import invoke, races
from nativeops.checking.finding import Case, Finding, Unchecked
from nativeops.declare import Array, Float, op
from nativeops.testing import cases

sys.path.insert(0, str(Path(__file__).resolve().parent))
from checks import findings, verdict

# Many blocks that stride over the grid, and a thread for each element.
KERNELS = """#include "nativeops/devices/kernel.h"
namespace nativeops {
inline void histogram(Device& dev, In<int32_t, 1> x, Out<int32_t, 1> out) {
  launch(dev, dim3(1), dim3(256), [=] KERNEL() {
    for (int64_t i = threadIdx.x; i < out.size(0); i += blockDim.x) out(i) = 0;
  });
  launch(dev, dim3(512), dim3(256), [=] KERNEL() {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = threadIdx.x + int64_t{blockDim.x} * blockIdx.x; i < x.size(0); i += step) {
      const int32_t k = x(i);
      if (k >= 0 && k < 4) ADD
    }
  });
}
inline void negative(Device& dev, In<float, 1> x, Out<float, 1> out) {
  const int64_t n = x.size(0);
  launch(dev, dim3(static_cast<unsigned>((n + 31) / 32)), dim3(32), [=] KERNEL() {
    const int64_t i = threadIdx.x + int64_t{blockDim.x} * blockIdx.x;
    if (i < n) out(i) = -x(i);
  });
}
}  // namespace nativeops
"""
DECLARED = '''import numpy as np
from nativeops.declare import Array, Float32, Int32, op


@op(kernel="own.h")
def histogram(x: Int32[Array, "n"]) -> Int32[Array, "4"]:
    """How often 0, 1, 2 and 3 stand there."""
    return (x[:, None] == np.arange(4)).sum(0, dtype=np.int32)


@op(kernel="own.h")
def negative(x: Float32[Array, "n"]) -> Float32[Array, "n"]:
    """The negative of all numbers."""
    return -x
'''


class NoLog:
    """The file of a sanitizer that reports nothing."""

    def new(self) -> str:
        return ""


def a_case() -> Any:
    def negative(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
        return -x

    return next(iter(cases(op(kernel="none_is_needed.h")(negative))))


def grid(monkeypatch: pytest.MonkeyPatch, needed: int, blocks: int, each: float) -> Any:
    """A kernel that needs so many blocks of its grid, each of which takes so many seconds."""

    def run(case: Any, compare: bool = True) -> str:
        most = int(os.environ["NATIVEOPS_MOST_BLOCKS"])
        tried.append(most)
        time.sleep(each * min(most, blocks))
        return "" if most >= needed else "15 of 15 elements are wrong"

    tried: list[int] = []
    monkeypatch.setattr(invoke, "run", run)
    made: Any = races.Grid(NoLog())  # type: ignore[arg-type]
    made.tried = tried
    return made


def test_few_blocks_are_enough_for_a_kernel_that_strides_over_the_grid(monkeypatch):
    own = grid(monkeypatch, needed=1, blocks=10000, each=0.001)
    assert own.run(a_case()) is None
    assert own.tried == [3]


def test_a_kernel_gets_the_blocks_that_it_needs_and_begins_with_them_the_next_time(monkeypatch):
    own = grid(monkeypatch, needed=20, blocks=100, each=0.001)
    assert own.run(a_case()) is None
    assert own.run(a_case()) is None
    assert own.tried == [3, 12, 48, 48]


def test_what_is_wrong_in_all_blocks_is_a_bug_and_is_found_without_trying_all_grids(monkeypatch):
    own = grid(monkeypatch, needed=races.ALL + 1, blocks=3, each=0.01)
    wrong = own.run(a_case())
    assert isinstance(wrong, Finding)
    assert wrong.bug == "wrong where a block has many threads"
    assert own.tried == [3, 12, races.ALL]


def test_what_would_take_minutes_is_not_run_and_said(monkeypatch):
    monkeypatch.setattr(races, "LONGEST", 0.3)
    own = grid(monkeypatch, needed=races.ALL, blocks=10**6, each=0.004)
    wrong = own.run(a_case())
    assert isinstance(wrong, Unchecked)
    assert wrong.why.startswith("negative in more than 48 blocks, which would take minutes (")
    assert own.tried == [3, 12, 48]


def test_cases_end_when_the_time_is_over_and_those_left_are_counted():
    case = a_case()
    steps = races.in_time(case.op, [case] * 10, lambda case: time.sleep(0.2), enough=0.3)
    *looked_at, last = steps
    assert [type(each) for each in looked_at] == [Case, Case]
    assert last == Unchecked("8 of 10 cases of negative, which take 0 s each")


def test_order_of_blocks_does_not_matter_to_what_only_some_blocks_write(monkeypatch):
    """A grid that is cut too short leaves results as they were, which are never the same."""
    own = grid(monkeypatch, needed=20, blocks=100, each=0.001)

    def results(case: Any) -> Any:
        whole = int(os.environ["NATIVEOPS_MOST_BLOCKS"]) >= 20
        return "", [np.zeros(3) if whole else np.random.default_rng().random(3)]

    monkeypatch.setattr(invoke, "results", results)
    assert own.depends_on_order(a_case()) is None


@pytest.mark.slow
@pytest.mark.races
@pytest.mark.parametrize("add", ["atomicAdd(&out(k), 1);", "out(k) += 1;"])
def test_many_blocks_as_cuda_has_them_are_checked_in_all_cases(tmp_path, add):
    (tmp_path / "own.h").write_text(KERNELS.replace("ADD", add))
    (tmp_path / "own.py").write_text(DECLARED)
    said = verdict(tmp_path / "cache", tmp_path, tmp_path / "own.py", "--only", "races")
    bugs = {(each["op"], each["bug"]) for each in findings(said)}
    assert bugs == (set() if "atomic" in add else {("histogram", "update without atomics")})
    (aspect,) = said["aspects"]
    assert aspect["not_checked"] == []
    assert aspect["seconds"] < 240  # a run of all blocks takes 100
