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


def test_number_of_threads_may_change_during_a_call() -> None:
    """Memory and work are shared out by one number, which another thread may set meanwhile."""
    run(
        """
import threading
from nativeops.ops.fast_viterbi import fast_viterbi
from nativeops.ops.lstm import lstm_layer_grad

random = np.random.RandomState(0)
f = lambda *shape: (0.1 * random.randn(*shape)).astype("f")
t, b, i, h = 4, 64, 8, 256
zero = np.zeros((b, h), "f")
lstm = [f(t, b, i), f(4 * h, i), f(4 * h, h), f(t, b, h), f(t, b, h), f(t, b, h), zero, zero]
lstm += [abs(f(t, b, 4 * h))]
states, frames = 300, 500
edges = [(s, s + d, (s + d) % 50, 0) for s in range(states) for d in (0, 1) if s + d < states]
viterbi = f(frames, 1, 50), np.array(edges, "i4").T.copy(), np.zeros(len(edges), "f")
ends = np.array([[0], [states - 1]], "i4")

def compute():
    made = fast_viterbi(*viterbi, ends)
    grads = lstm_layer_grad(*lstm, reverse=False, precision="highest")
    return [a.tobytes() for a in (made.scores, made.alignment, *grads) if a is not None]

expected, stop = compute(), time.monotonic() + 3
def change():
    while time.monotonic() < stop:
        nativeops.set_num_threads(1)
        nativeops.set_num_threads(32)
changing = threading.Thread(target=change)
changing.start()
while time.monotonic() < stop:
    assert compute() == expected
changing.join()
""",
        2,
    )


def test_fork_waits_until_no_thread_defines_an_op() -> None:
    """The child could not define one ever after; the other thread may be compiling its kernel."""
    run(
        """
import signal, threading
from nativeops import library

held = threading.Event()
def define():
    with library._defining:
        held.set()
        time.sleep(0.3)
threading.Thread(target=define).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    nativeops.pairwise_lp(x, x)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
        2,
    )
