# SPDX-License-Identifier: Apache-2.0
"""Peak memory of one call in this process, which should be a fresh one."""

import re
from collections.abc import Callable
from pathlib import Path

from nativeops.bench.case import Bench, Size

STATUS = Path("/proc/self/status")


def peak_growth(bench: Bench, rival_name: str, size: Size) -> int:
    """Bytes at the peak of one call beyond what was there before it, the result included.

    The library was loaded and ran once on small arrays before, so that its own start does not
    count: only what grows with the sizes does.
    """
    rival = bench.rival(rival_name)
    rival.prepare(*bench.arrays({axis: min(length, 8) for axis, length in size.items()}))()
    return growth(rival.prepare(*bench.arrays(size)))


def growth(call: Callable[[], object]) -> int:
    """Bytes at the peak of a call beyond what the process held before, its result included."""
    before = _forget_peak()
    result = call()
    most = peak()
    del result
    return most - before


def peak() -> int:
    """The most bytes that this process has held so far."""
    return _status("VmHWM")


def _forget_peak() -> int:
    """Set the process's peak to what it holds now, and say how much that is."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if not found:
        raise OSError(f"{STATUS} has no {key}: peak memory is measured on Linux only")
    return int(found[1]) * 1024
