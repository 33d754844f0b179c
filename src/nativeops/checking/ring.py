# SPDX-License-Identifier: Apache-2.0
"""Arrays of any size in a few megabytes: the same pages stand behind all of its addresses.

Before and after them lie addresses without memory, as many as a 32-bit index could lead astray, so
that a wrong index ends the process instead of reading something else.
"""

import ctypes
import math
import mmap
import os
from typing import Any

import numpy as np

from nativeops.testing.arrays import numpy_dtype
from nativeops.testing.aspects import CANARY

PAGES = 1 << 22  # bytes of real memory
LARGEST_ITEM = 8
SHARED, FIXED, NO_RESERVE, POPULATE = 0x01, 0x10, 0x4000, 0x8000
FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(address: int | None, size: int, access: int, flags: int, file: int) -> int:
    """mmap of the C library, which can put pages where they are wanted."""
    place = _libc.mmap(address, size, access, flags, file, 0)
    if place is None or place == FAILED:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return int(place)


class Ring:
    """Room for arrays of up to `n_bytes`, all of whose values are those of its few pages."""

    def __init__(self, n_bytes: int) -> None:
        needed = max(1, -(-n_bytes // PAGES)) * PAGES
        guard = LARGEST_ITEM << 32
        self._size = needed + 2 * guard
        self._start = _map(None, self._size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANON | NO_RESERVE, -1)
        memory = os.memfd_create("nativeops")
        os.ftruncate(memory, PAGES)
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, SHARED | FIXED | POPULATE
        for offset in range(guard, guard + needed, PAGES):
            _map(self._start + offset, PAGES, access, flags, memory)
        os.close(memory)
        self._memory: Any = (ctypes.c_char * needed).from_address(self._start + guard)

    def array(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A contiguous array that begins where the memory begins."""
        return np.ndarray(shape, numpy_dtype(dtype), self._memory)

    def places(self, shape: tuple[int, ...], dtype: str) -> Any:
        """All different places of such an array."""
        kind = numpy_dtype(dtype)
        n_elements = math.prod(shape)
        return np.frombuffer(self._memory, kind, min(n_elements, PAGES // kind.itemsize))

    def __del__(self) -> None:
        _libc.munmap(self._start, self._size)


def clear(places: Any) -> None:
    """Write bytes that no kernel writes."""
    places.view(np.uint8)[...] = CANARY


def untouched(places: Any) -> int:
    """How many elements still have these bytes."""
    raw = places.reshape(-1, 1).view(np.uint8)
    return int((raw == CANARY).all(-1).sum())
