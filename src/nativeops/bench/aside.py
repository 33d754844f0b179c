# SPDX-License-Identifier: Apache-2.0
"""Rivals in an environment of their own: libraries that cannot be imported beside the others.

Such an environment is ``rivals/PACKAGE`` in that of this process. A program runs there, keeps the
arrays, and computes when told; beyond that a call costs two lines through pipes, some 20 us.
"""

import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from nativeops.bench.case import Later, NdArray


def environment_of(package: str) -> Path:
    """Where a library is looked for that needs an environment of its own."""
    return Path(sys.prefix, "rivals", package)


def version_aside(package: str) -> str | None:
    """The version that its own environment has; nothing without such an environment."""
    folders = environment_of(package).glob("lib/python*/site-packages")
    found = metadata.distributions(name=package, path=[str(folder) for folder in folders])
    return next((each.version for each in found), None)


def process_ids() -> set[int]:
    """Of all programs that run aside now."""
    return {aside.process_id for aside in _RUNNING}


class AsideError(RuntimeError):
    """The program ended without an answer."""


class Aside:
    """A program in another environment, which computes again with each call.

    It is run as ``PYTHON PROGRAM FOLDER ARGUMENT``, finds its inputs in the folder as ``0.npy``,
    ``1.npy`` and so on, and answers two words with an empty line: ``run`` when the results are
    there, ``save`` when they lie in the folder as ``result-0.npy`` and so on. The program ends with
    its input, thus when nobody holds this.
    """

    def __init__(
        self, python: Path, program: Path, argument: str, arrays: Sequence[NdArray]
    ) -> None:
        folder = tempfile.TemporaryDirectory(prefix="nativeops-rival-")
        for number, array in enumerate(arrays):
            np.save(Path(folder.name, f"{number}.npy"), array)
        self._folder = Path(folder.name)
        with Path(folder.name, "complaints").open("w") as complaints:
            self._process = subprocess.Popen(
                [str(python), str(program), folder.name, argument],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self._saved = False
        self.process_id = self._process.pid
        _RUNNING.add(self)
        weakref.finalize(self, _end, self._process, folder)

    def run(self) -> None:
        """Compute once; the results stay there."""
        self._saved = False
        self._ask("run")

    def result(self, number: int) -> NdArray:
        """One of the results of the last run."""
        if not self._saved:
            self._ask("save")
            self._saved = True
        saved: NdArray = np.load(self._folder / f"result-{number}.npy")
        return saved

    def _ask(self, word: str) -> None:
        pipe = self._process
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        try:
            pipe.stdin.write(word + "\n")
            pipe.stdin.flush()
            answer = pipe.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.wait()
            said = (self._folder / "complaints").read_text().strip().rpartition("\n")[2]
            raise AsideError(said or f"exit status {self._process.returncode}")


def _end(process: "subprocess.Popen[str]", folder: "tempfile.TemporaryDirectory[str]") -> None:
    process.kill()
    process.communicate()
    folder.cleanup()


_RUNNING: "weakref.WeakSet[Aside]" = weakref.WeakSet()


def prepare_aside(
    package: str, program: Path, argument: str, arrays: Sequence[NdArray], results: int
) -> Callable[[], tuple[Later, ...]]:
    """The call that lets a program in the environment of `package` compute that many results."""
    aside = Aside(environment_of(package) / "bin/python", program, argument, arrays)
    given = tuple(Later(number, aside.result) for number in range(results))

    def call() -> tuple[Later, ...]:
        aside.run()
        return given

    return call
