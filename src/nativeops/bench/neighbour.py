# SPDX-License-Identifier: Apache-2.0
"""A process that takes a CPU from others."""

import os
import subprocess
import sys
import weakref


class Neighbour:
    """A process that computes on the first CPU, until nobody holds this."""

    def __init__(self) -> None:
        cpu, parent = min(os.sched_getaffinity(0)), os.getpid()
        text = (
            f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile os.getppid() == {parent}: pass"
        )
        self.process = subprocess.Popen([sys.executable, "-c", text])
        weakref.finalize(self, _stop, self.process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
