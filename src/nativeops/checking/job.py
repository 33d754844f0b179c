# SPDX-License-Identifier: Apache-2.0
"""Starting the jobs of a check, each in a process of its own, and reading what they say."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nativeops.call import Op
from nativeops.checking import reports, source
from nativeops.checking.finding import Finding, found
from nativeops.compilers import cpp_compiler
from nativeops.compilers import run as run_compiler

# The libraries that must be loaded before Python, and the settings, by aspect.
PRELOAD = {
    "memory": ("libasan.so", "libubsan.so"),
    "races": ("libtsan.so",),
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:log_path={log}",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:log_path={log}",
    "TSAN_OPTIONS": "exitcode=0:halt_on_error=0:report_thread_leaks=0:log_path={log}",
}
TOOL_DIED = re.compile(r"Sanitizer: (nested bug in the same thread|CHECK failed)")
OLDEST_GPU = "75-real"  # of those that the package is built for: it allows least
TIME_LIMIT = 300.0  # seconds without a word and a compiler, far beyond what any case takes


@dataclass
class Job:
    """One aspect of the ops of a file, and what was found."""

    aspect: str
    ops: dict[str, Op[Any]]
    file: Path
    framework: str = ""
    case: str = ""  # where an earlier job died
    cases: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    _process: "subprocess.Popen[str] | None" = field(default=None, repr=False)
    _below: "Job | None" = field(default=None, repr=False)  # looks closer at what this one found
    _again: set[str] = field(default_factory=set, repr=False)  # the ops that were begun twice
    _stopped: bool = False
    _if_dies: Finding | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The aspect, or the framework."""
        return self.framework or self.aspect

    @property
    def compiles(self) -> bool:
        """Whether a kernel runs; gradient rules are compared with slopes of the reference."""
        return self.aspect != "gradient"

    def run(self, progress: Callable[[str], None]) -> None:
        """Run in processes until every op was looked at; one that dies is a finding."""
        start = time.perf_counter()
        left = list(self.ops)
        if why := missing_tool(self.aspect):
            self.unchecked.append(why)
            left = []
        while left and not self._stopped:
            left = self._run_process(left, progress)
        self.findings = [replace(each, aspect=self.aspect) for each in self.findings]
        self.seconds = time.perf_counter() - start

    def stop(self) -> None:
        """End what runs, and begin nothing more."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()
        if self._below is not None:
            self._below.stop()

    def _run_process(self, names: list[str], progress: Callable[[str], None]) -> list[str]:
        """One process; the ops that it did not come to."""
        with tempfile.TemporaryDirectory() as folder:
            log, errors = Path(folder) / "report", Path(folder) / "errors"
            current, case, ended = "", "", False
            left: list[str] = []
            with errors.open("w") as stream, self._start(names, log, stream) as process:
                self._process = process
                if self._stopped:  # before there was a process to end
                    process.terminate()
                for line in lines_of(process):
                    said = json.loads(line)
                    current = said.get("op", current)
                    case = "" if "op" in said else said.get("Case", {}).get("name", case)
                    ended |= bool(said.keys() & {"end", "leave"})
                    left = names[names.index(current) + 1 :] if "leave" in said else []
                    self._take(said)
                    progress(f"{self.name}: {case or current}")
            if ended or self._stopped:
                return left
            written = "".join(
                p.read_text(errors="replace") for p in Path(folder).iterdir() if p != errors
            )
            said_last = written + errors.read_text(errors="replace")
        left = names[names.index(current) + 1 :] if current else []
        if not current or not TOOL_DIED.search(said_last):
            self.findings.append(self._death(process.returncode, current, case, said_last))
            return left
        if current not in self._again:  # nothing is known of the op
            self._again.add(current)
            return [current, *left]
        self.unchecked.append(f"{current}: the sanitizer itself failed twice ({case})")
        return left

    def _start(self, names: list[str], log: Path, errors: Any) -> "subprocess.Popen[str]":
        job = {
            "file": str(self.file), "aspect": self.aspect, "framework": self.framework,
            "case": self.case, "ops": names, "log": str(log),
            "parent": os.getpid(),
        }  # fmt: skip
        command = [sys.executable, "-m", "nativeops.checking.child", json.dumps(job)]
        if self.aspect == "races":  # ThreadSanitizer cannot run where memory is placed at random
            command = [str(shutil.which("setarch")), "-R", *command]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=self._environment(log)
        )

    def _environment(self, log: Path) -> dict[str, str]:
        own = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        own.pop("NATIVEOPS_DISABLE_JIT", None)  # to check a kernel is to compile it
        if self.aspect in PRELOAD:
            libraries = [library(name) for name in PRELOAD[self.aspect]]
            own["LD_PRELOAD"] = " ".join(filter(None, libraries))
            own |= {name: text.format(log=log) for name, text in OPTIONS.items()}
            own["NATIVEOPS_NUM_THREADS"] = "1"
            own["OPENBLAS_NUM_THREADS"] = "1"
        if self.aspect == "cuda":
            own["NATIVEOPS_CUDA_ARCHS"] = OLDEST_GPU
        return own

    def _take(self, said: dict[str, Any]) -> None:
        if "Finding" in said:
            self.findings.append(Finding(**said["Finding"]))
        elif "Unchecked" in said:
            self.unchecked.append(said["Unchecked"]["why"])
        elif "Case" in said:
            self.cases += 1
            death = said["Case"]["death"]
            self._if_dies = Finding(**death) if death else None

    def _death(self, code: int, name: str, case: str, said: str) -> Finding:
        """The finding for a process that did not come to its end."""
        if not name:
            text = last_error(said) or f"exit status {code}"
            place = source.declaration(next(iter(self.ops.values())))
            return found("", "the file cannot be used", text, place)
        op = self.ops[name]
        place, own = source.kernel(op), source.own_files(op)
        if report := reports.memory(said, name, own, place):
            return replace(report, text=f"{report.text} ({case})")
        if code in (-signal.SIGSEGV, -signal.SIGBUS) and self.aspect in ("large", "below"):
            if self._if_dies:
                return self._if_dies
            below = self._below = Job("below", {name: op}, self.file, case=case)
            if not self._stopped:
                below.run(lambda text: None)
            if below.findings:
                return below.findings[0]
        if code == -signal.SIGALRM:
            return found(name, "does not end", f"the kernel was stopped ({case})", place)
        bug = "crashes" if code < 0 else "the check of it failed"
        return found(name, bug, f"signal {-code} ({case})" if code < 0 else last_error(said), place)


def lines_of(process: "subprocess.Popen[str]") -> Iterator[str]:
    """What a process says; it is stopped when it is silent for too long."""
    assert process.stdout is not None
    line = "..."
    while line:
        said = threading.Event()
        threading.Thread(target=_stop_if_silent, args=(process, said), daemon=True).start()
        line = process.stdout.readline()
        said.set()
        if line:
            yield line


def _stop_if_silent(process: "subprocess.Popen[str]", said: threading.Event) -> None:
    begin = time.monotonic()
    while not said.wait(TIME_LIMIT / 100):
        if _has_children(process.pid):
            begin = time.monotonic()
        elif time.monotonic() > begin + TIME_LIMIT:
            process.send_signal(signal.SIGALRM)
            break


def _has_children(process: int) -> bool:
    """Whether a process waits for another: a compiler, which has all the time that it takes."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parent = status.read_text().rpartition(")")[2].split()[1]
            if int(parent) == process:
                return True
    return False


def last_error(said: str) -> str:
    """The exception that ended a process, from its standard error."""
    errors = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception|Interrupt|Exit)\b.*)", said, re.M)
    return errors[-1] if errors else said.strip().rpartition("\n")[2]


def missing_tool(aspect: str) -> str:
    """What this machine lacks for an aspect; empty if nothing."""
    absent = [name for name in PRELOAD.get(aspect, ()) if not library(name)]
    if absent:
        return f"{cpp_compiler()[0]} has no {absent[0]}: install it"
    if aspect == "races":
        if not shutil.which("setarch"):
            return "`setarch` was not found: install util-linux"
        tried = subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False)
        if tried.returncode:  # as in a container that may not change how memory is placed
            return f"`setarch -R` is refused here: {tried.stderr.decode().strip()}"
    return ""


def library(name: str) -> str:
    """The path of a library of the compiler; empty if it has none."""
    path = run_compiler([*cpp_compiler(), f"-print-file-name={name}"]).stdout.strip()
    return path if os.path.isabs(path) and Path(path).exists() else ""
