# SPDX-License-Identifier: Apache-2.0
"""What several Python threads must be able to do with an op, in any framework."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

# NumPy's arrays and a framework's in turn, all waiting for each other, in a new process.
_FIRST = """
import threading
import numpy, nativeops, {ones}
def work(make):
    begin.wait()
    x = make((3, 4))
    results.append(float(numpy.asarray(nativeops.pairwise_l1(x, x + 1)).sum()))
begin, results = threading.Barrier(8), []
threads = [threading.Thread(target=work, args=[m]) for m in [numpy.ones, {ones}.ones] * 4]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert results == [36.0] * 8, results
"""


def check_first_calls(module: str) -> None:
    """The first calls of a process may come from eight threads at once.

    Args:
        module: Where the framework has ``ones``.
    """
    command = [sys.executable, "-c", _FIRST.format(ones=module)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def check_others_run(call: Callable[[], object]) -> None:
    """While one thread is in a long call, another is never kept waiting for half of it."""

    def work() -> None:
        span.append(time.perf_counter())
        call()
        span.append(time.perf_counter())

    span: list[float] = []
    seen: list[float] = []
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        seen.append(time.perf_counter())
    during = [moment for moment in seen if span[0] <= moment <= span[1]]
    longest = max(b - a for a, b in zip([span[0], *during], [*during, span[1]], strict=True))
    assert longest < (span[1] - span[0]) / 2
