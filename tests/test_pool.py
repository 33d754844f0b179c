# SPDX-License-Identifier: Apache-2.0
"""Where the threads of the CPU run: in processes of their own, whose first calls make them."""

import os
import subprocess
import sys

import pytest

# A call starts the threads; later ones find them asleep, on whatever CPU the caller then is.
START = """
import os, time
import numpy as np
import nativeops

x = np.ones((500, 8), np.float32)
def threads():
    return {int(name) for name in os.listdir("/proc/self/task")}
def call():
    time.sleep(0.01)
    nativeops.pairwise_l1(x, x)
allowed = os.sched_getaffinity(0)
before = threads()
nativeops.set_num_threads(THREADS)
nativeops.pairwise_l1(x, x)
workers = threads() - before
assert len(workers) == THREADS - 1, workers
"""

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="there is only one CPU to run on"
)


def run(code: str, threads: int) -> None:
    code = START.replace("THREADS", str(threads)) + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_wake_where_the_caller_is_not() -> None:
    run(
        """
for one in sorted(allowed) * 2:
    os.sched_setaffinity(0, {one})
    call()
    for worker in workers:
        assert os.sched_getaffinity(worker) == allowed - {one}
""",
        2,
    )


def test_threads_that_somebody_has_placed_stay_there() -> None:
    # A place that the pool itself has chosen just before could not be told from a user's.
    run(
        """
os.sched_setaffinity(0, {max(allowed)})
call()
place = {max(allowed)}
for worker in workers:
    assert os.sched_getaffinity(worker) == allowed - place
    os.sched_setaffinity(worker, place)
for one in sorted(allowed) * 2:
    os.sched_setaffinity(0, {one})
    call()
    assert all(os.sched_getaffinity(worker) == place for worker in workers)
""",
        2,
    )


def test_more_threads_than_other_cpus_may_run_everywhere() -> None:
    run(
        """
for one in sorted(allowed):
    os.sched_setaffinity(0, {one})
    call()
    assert all(os.sched_getaffinity(worker) == allowed for worker in workers)
""",
        len(os.sched_getaffinity(0)) + 1,
    )
