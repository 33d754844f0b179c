# SPDX-License-Identifier: Apache-2.0
"""The folder of compiled ops: files named by their content, written whole, at most so many bytes.

Several processes may use it at once, on NFS too: each builds to a folder of its own inside and
moves the finished file to its name. The lock only spares a machine the same work twice; it is the
system's own, gone when its process ends, and nobody waits for it without end.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from struct import unpack_from

from nativeops.errors import BuildError, RangeError, message

_PATIENCE = 120.0  # seconds to wait for another process that builds the same
_ABANDONED = 3600.0  # seconds after which a folder of a build was left by a process that died
_BUILDING = ".building-"
_OWN = re.compile(r"-[0-9a-f]{16}\.so$")  # the folder may hold what others put there
_MEBIBYTE = 2**20


def cache_folder() -> Path:
    """Where compiled ops are kept: NATIVEOPS_CACHE, or the user's cache."""
    if chosen := os.environ.get("NATIVEOPS_CACHE"):
        return Path(os.path.expanduser(chosen)).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "nativeops"


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """The file of that name; if there is none, `make` writes it to the path that it is given."""
    limit()  # or a wrong one would be told only where something is compiled
    if found := _find(name):
        return found
    with _alone(name):
        return _find(name) or _store(name, make)


def discard(path: Path) -> None:
    """Remove a file that turned out to be broken."""
    with contextlib.suppress(OSError):
        path.unlink()


def limit() -> int:
    """The bytes that the folder may hold: NATIVEOPS_CACHE_SIZE, in MiB."""
    text = os.environ.get("NATIVEOPS_CACHE_SIZE") or "256"
    if not text.isdecimal():
        what = f"`NATIVEOPS_CACHE_SIZE` must be a number of MiB, but is {text!r}."
        raise RangeError(message("nativeops", what))
    return int(text) * _MEBIBYTE


def private_folder() -> Path:
    """A folder in the system's temporary one that nobody else can write to, or replace."""
    path = Path(tempfile.gettempdir()) / f"nativeops-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return path if safe else _of_this_process()


@cache
def _of_this_process() -> Path:
    return Path(tempfile.mkdtemp(prefix="nativeops-"))


def _folders() -> Iterator[Path]:
    """Where to look and to write, the best first: the second is for read-only homes."""
    yield cache_folder()
    yield private_folder()


def _find(name: str) -> Path | None:
    for folder in _folders():
        path = folder / name
        with contextlib.suppress(OSError):
            if path.is_file() and is_whole(path):
                with contextlib.suppress(OSError):  # a read-only folder
                    os.utime(path)  # so that the one used longest ago is removed first
                return path
    return None


def is_whole(path: Path) -> bool:
    """Whether a library has its end: a machine that stopped may leave a part of it, or zeros.

    To load that would end the process. What stands last is the table of sections.
    """
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF":
            return False
        (start,), (size, count) = unpack_from("<Q", head, 0x28), unpack_from("<HH", head, 0x3A)
        file.seek(start + size * max(count - 1, 0))
        last = file.read(size)
    return len(last) == size and any(last)


def _store(name: str, make: Callable[[Path], None]) -> Path:
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            place = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder))
        except OSError:
            continue
        try:
            make(place / name)
            with (place / name).open("rb") as file:
                os.fsync(file.fileno())
            os.replace(place / name, folder / name)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        _evict(folder, name)
        return folder / name
    tried = " and ".join(str(folder) for folder in _folders())
    text = f"there is no folder to keep compiled ops in: neither {tried} can be written to."
    raise BuildError(message("nativeops", text, hint="set NATIVEOPS_CACHE to one that can."))


def _evict(folder: Path, newest: str) -> None:
    """Remove what was used longest ago, and what dead processes left, until the rest fits."""
    room, now = limit(), time.time()
    for age, size, path in sorted(_files(folder), key=lambda file: -file[0]):
        if path.name.startswith(_BUILDING):
            if now - age > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
            continue
        room -= size
        if room < 0 and path.name != newest:
            discard(path)


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Last use, size and path of what is in the cache; other processes remove files meanwhile."""
    for path in folder.iterdir():
        if _OWN.search(path.name) or path.name.startswith(_BUILDING):
            with contextlib.suppress(OSError):
                found = path.stat()
                yield found.st_mtime, found.st_size, path


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Wait while another process of this machine builds the same. The lock is on a local disk."""
    try:
        path = private_folder() / f"{name}.lock"
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + _PATIENCE
        while not _locked(handle) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield
    finally:
        discard(path)  # whoever waits holds the file itself, and finds the result when it is free
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here: then a machine may build the same twice
        return True
    return True
