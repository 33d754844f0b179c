# SPDX-License-Identifier: Apache-2.0
"""What is kept, how much of it, and that many processes may build at once."""

import os
import shutil
import stat
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from nativeops import build, cache
from nativeops.errors import BuildError, RangeError

from .an_op import DECLARATION, declare, libraries, process, write


def test_four_processes_at_once_compile_once(tmp_path: Path, kept: Path) -> None:
    write(tmp_path)
    (tmp_path / "scaled.py").write_text(DECLARATION)
    own = tmp_path / "counting"
    log = tmp_path / "log"
    # A slow compiler: all four have asked for the op before the first is done.
    own.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) ;; *) '
        f'echo run >> {log}; sleep 1;; esac\nexec {shutil.which("g++")} "$@"\n'
    )
    own.chmod(0o755)
    running = [
        process(tmp_path, "print(scaled(np.arange(3.0)).tolist())", CXX=str(own)) for _ in range(4)
    ]
    for each in running:
        out, error = each.communicate(timeout=120)
        assert out == "[0.0, 2.0, 4.0]\n", error
    assert log.read_text().count("run") == 1
    assert len(libraries(kept)) == 1
    assert [path.name for path in kept.iterdir()] == [libraries(kept)[0].name], "left over"


def test_a_killed_builder_hinders_nobody(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "scaled.py").write_text(DECLARATION)
    stuck = tmp_path / "stuck"
    stuck.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) exec {shutil.which("g++")} "$@";; esac\n'
        "echo started\nexec sleep 600\n"
    )
    stuck.chmod(0o755)
    first = process(tmp_path, "scaled(np.ones(2))", CXX=str(stuck))
    folder = tmp_path / "temporary" / f"nativeops-{os.getuid()}"
    deadline = time.monotonic() + 60
    while not list(folder.glob("*.lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(folder.glob("*.lock")), "the first process never got there"
    first.kill()
    first.communicate(timeout=60)
    second = process(tmp_path, "print(scaled(np.ones(2)).tolist())")
    out, error = second.communicate(timeout=60)
    assert out == "[2.0, 2.0]\n", error


def test_a_cache_that_cannot_be_written_is_gone_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NATIVEOPS_CACHE", str(tmp_path / "file/cache"))
    header = write(tmp_path)
    assert declare(header)(np.ones(2)).tolist() == [2, 2]
    private = tmp_path / "temporary" / f"nativeops-{os.getuid()}"
    assert len(libraries(private)) == 1
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    before = libraries(private)
    assert build.build(declare(header)) == before[0], "it was built again"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_who_cannot_write_to_the_cache_reads_it_and_keeps_the_rest_apart() -> None:
    nobody = 65534
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "temporary").mkdir()
        (folder / "temporary").chmod(0o777)
        (folder / "scaled.py").write_text(DECLARATION)
        code = "print(scaled(np.ones(2))[0])"
        become = f"import os, nativeops.user_ops\nos.setuid({nobody})\n"
        for value, user in (("2", ""), ("2", become), ("3", become)):
            write(folder, f"{value} * x(i)")
            done = process(folder, user + code, NATIVEOPS_CACHE=f"{folder}/cache")
            out, error = done.communicate(timeout=60)
            assert out == f"{value}.0\n", error
            (folder / "cache").chmod(0o755)
        private = folder / f"temporary/nativeops-{nobody}"
        assert private.stat().st_uid == nobody
        assert len(libraries(private)) == len(libraries(folder / "cache")) == 1


@pytest.mark.parametrize("planted", ["folder of others", "link"])
def test_a_planted_temporary_folder_is_not_trusted(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "temporary" / f"nativeops-{os.getuid()}"
    if planted == "link":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
        path.chmod(0o777)
    cache._of_this_process.cache_clear()
    chosen = cache.private_folder()
    cache._of_this_process.cache_clear()
    assert chosen != path
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700


def test_the_cache_is_bounded_and_forgets_the_oldest(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATIVEOPS_CACHE_SIZE", "1")
    a, b, c, d = (f"{letter}-0123456789abcdef.so" for letter in "abcd")

    def make(path: Path) -> None:
        path.write_bytes(b"x" * 400_000)

    for name in (a, b):
        cache.kept(name, make)
    now = time.time()
    os.utime(kept / a, (now - 20, now - 20))
    os.utime(kept / b, (now - 10, now - 10))
    cache.kept(a, make)  # used again, so that b is the oldest
    abandoned = kept / ".building-dead"
    abandoned.mkdir()
    os.utime(abandoned, (now - 7200, now - 7200))
    (kept / "libothers.so").write_bytes(b"x" * 4_000_000)  # not ours to remove
    cache.kept(c, make)
    assert [path.name for path in sorted(kept.iterdir())] == [a, c, "libothers.so"]
    monkeypatch.setenv("NATIVEOPS_CACHE_SIZE", "0")
    cache.kept(d, make)
    left = sorted(path.name for path in kept.iterdir())
    assert left == [d, "libothers.so"], "the newest always stays"


def test_a_size_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATIVEOPS_CACHE_SIZE", "much")
    for _ in range(2):  # also before anything is compiled
        with pytest.raises(RangeError, match="NATIVEOPS_CACHE_SIZE"):
            cache.kept("nothing.so", lambda path: pytest.fail("it was made"))


def test_what_was_removed_or_broken_is_built_again(tmp_path: Path, kept: Path) -> None:
    path = build.build(declare(write(tmp_path)))
    path.write_bytes(b"broken")
    assert declare(tmp_path / "scaled.h")(np.ones(2)).tolist() == [2, 2]
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("share", "zeros"),
    [(0.02, False), (0.5, False), (0.9, False), (0.999, False), (0.02, True), (0.9, True)],
)
def test_half_of_a_file_is_built_again(
    tmp_path: Path, kept: Path, share: float, zeros: bool
) -> None:
    """As a machine leaves it that loses its power: to load it would end the process."""
    path = build.build(declare(write(tmp_path)))
    whole = path.read_bytes()
    size = int(share * len(whole))
    path.write_bytes(whole[:size] + bytes(len(whole) - size) * zeros)
    assert build.build(declare(tmp_path / "scaled.h")) == path
    assert path.read_bytes() == whole


def test_half_of_a_shipped_library_is_told(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = declare(write(tmp_path))
    whole = build.build(op).read_bytes()
    shipped = tmp_path / "libscaled_cpu_portable.so"
    shipped.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setenv("NATIVEOPS_DISABLE_JIT", "1")
    with pytest.raises(BuildError, match=f"{shipped.name} cannot be used .*not a whole library"):
        op(np.ones(2))


def test_name_depends_on_content_alone(tmp_path: Path) -> None:
    first = build.build(declare(write(tmp_path)))
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.copy(tmp_path / "scaled.h", moved)
    os.utime(moved / "scaled.h", (0, 0))
    assert build.build(declare(moved / "scaled.h")) == first


def test_a_folder_shared_by_machines_of_two_kinds_has_a_library_for_each(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = declare(write(tmp_path))
    first = build.build(op)
    monkeypatch.setattr("platform.machine", lambda: "another")
    assert build.build(op) != first
    assert len(libraries(kept)) == 2
