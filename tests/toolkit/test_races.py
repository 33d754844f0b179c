# SPDX-License-Identifier: Apache-2.0
"""The debug device finds planted bugs, always, and finds none where there are none; nor has the
order of phases (devices/cpu/phases.h) any."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.races

SANITIZE = ("-O1", "-g", "-fsanitize=thread")
FLAGS = (*SANITIZE, "-DNATIVEOPS_CPU_THREADS")
TUNED = (*SANITIZE, "-mavx2", "-mfma", "-mf16c", "-DNATIVEOPS_LEVEL=1")
RACES = [
    "missing_barrier",
    "missing_barrier_before_reuse",
    "missing_barrier_in_tile",
    "warp_without_barrier",
    "race_on_shared_value",
    "histogram_without_atomics",
]
BARRIERS = {
    "divergent_barrier": "divergent barrier",
    "divergent_barrier_of_team": "divergent barrier",
    "barrier_not_reached_by_all": "barrier not reached by all",
    "warp_reduction_not_reached_by_all": "barrier not reached by all",
}
RACE, MISUSE = 66, 3
RUNS = 3

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def watched(program: Path) -> Run:
    """Start a program that was built with ThreadSanitizer."""
    setarch = shutil.which("setarch")
    assert setarch, (
        "these tests need `setarch` (of util-linux): ThreadSanitizer of g++ 12 cannot run while "
        "the kernel places memory at random"
    )
    environment = {**os.environ, "TSAN_OPTIONS": f"exitcode={RACE} halt_on_error=1"}

    def start(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [setarch, "-R", str(program), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=200, check=False
        )

    return start


@pytest.fixture(scope="session")
def run(build: Callable[..., Path]) -> Run:
    return watched(build("races.cpp", *FLAGS))


@pytest.fixture(scope="session")
def run_phases(build: Callable[..., Path]) -> Run:
    return watched(build("phases.cpp", *TUNED))


@pytest.mark.parametrize("kernel", RACES)
def test_planted_race_is_always_reported(run: Run, kernel: str) -> None:
    for _ in range(RUNS):
        done = run(kernel, "planted")
        assert done.returncode == RACE, done.stderr
        assert "data race" in done.stderr
        assert "races.cpp:" in done.stderr


@pytest.mark.parametrize("kernel", BARRIERS)
def test_planted_misuse_of_a_barrier_is_always_reported(run: Run, kernel: str) -> None:
    for _ in range(RUNS):
        done = run(kernel, "planted")
        assert done.returncode == MISUSE, done.stderr
        assert BARRIERS[kernel] in done.stderr
        assert "races.cpp:" in done.stderr


@pytest.mark.parametrize("kernel", [*RACES, *BARRIERS, "every_loop_shape", "pairwise_ops"])
def test_correct_kernel_is_not_reported(run: Run, kernel: str) -> None:
    for _ in range(2):
        done = run(kernel)
        assert done.returncode == 0, done.stderr
        assert not done.stderr


@pytest.mark.slow
def test_blocks_that_wait_for_one_another_have_no_races(build: Callable[..., Path]) -> None:
    run = watched(build("recurrent_blocks.cpp", *FLAGS, "-DNATIVEOPS_USER_OP"))
    for case in ("gru", "tanh"):  # half precision waits in the same places, and takes minutes
        done = run(f"{case}_equals_the_portable_kernel")
        assert done.returncode == 0, done.stderr
        assert not done.stderr


def test_race_within_a_phase_is_reported(run_phases: Run) -> None:
    done = run_phases("race_within_a_phase")
    assert done.returncode == RACE, done.stderr
    assert "data race" in done.stderr
    assert "phases.cpp:" in done.stderr


def test_phases_are_ordered(run_phases: Run) -> None:
    for _ in range(RUNS):
        done = run_phases()
        assert done.returncode == 0, done.stderr
        assert not done.stderr


def test_copies_of_matrices_are_read_when_they_are_there(build: Callable[..., Path]) -> None:
    run = watched(build("gemm.cpp", *TUNED))
    done = run("gemm_is_the_product_for_all_sizes_layouts_and_dtypes")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
