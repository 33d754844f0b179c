# SPDX-License-Identifier: Apache-2.0
"""Processes that measure or check end with the one that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

SLEEPER = """
import time
import numpy as np
from nativeops.bench.case import Bench, Rival

BENCHES = [
    Bench("sleeps", "x", [{}], lambda random: (np.ones(1),),
          [Rival("a", lambda x: lambda: time.sleep(600), "numpy", "numpy")]),
]
"""
STARTER = """
import sys
from nativeops.bench.run import Plan, run

plan = Plan("sleeper_bench", threads=1, folder=sys.argv[1])
for _ in run(plan, lambda text, share: print(text, flush=True)):
    pass
"""


def test_worker_of_a_benchmark_ends_with_who_started_it(tmp_path: Path) -> None:
    (tmp_path / "sleeper_bench.py").write_text(SLEEPER)
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
        assert started.stdout is not None
        assert b"is checked" in started.stdout.readline()
        (worker,) = psutil.Process(started.pid).children()
        started.kill()
    deadline = time.monotonic() + 10
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_process_whose_parent_has_gone_before_ends_itself() -> None:
    text = f"from nativeops.bench.parent import end_with\nend_with({os.getpid() + 1})"
    done = subprocess.run([sys.executable, "-c", text], check=False)
    assert done.returncode == -signal.SIGKILL
