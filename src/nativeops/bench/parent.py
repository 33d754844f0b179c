# SPDX-License-Identifier: Apache-2.0
"""A process that must not outlive the one that started it, however that one ends."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have this process killed when `parent`, which started it, is gone.

    That one may be killed and then cannot tell; who computes on would take CPUs from others. The
    system does it, also where a call keeps Python's lock or never ends.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it went before the system was told
        os.kill(os.getpid(), signal.SIGKILL)
