# SPDX-License-Identifier: Apache-2.0
"""`nativeops check` finds every planted bug where it is, and none where there is none."""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
import nativeops
from nativeops.checking import job
from nativeops.checking.law import SMALL, law

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from checks import command, findings, verdict  # noqa: E402

FOLDER = ROOT / "tests/planted"
FILE = FOLDER / "planted.py"
KINDS = ("map", "reduce", "contract", "item", "raw")
NO_REUSE = "wrong where `out` reuses `x`, as declared"
# Op, the aspect that finds its bug, and what the bug is called.
PLANTED = [
    ("missing_barrier", "races", "missing barrier"),
    ("race_on_a_shared_value", "races", "race on a shared value"),
    ("histogram_without_atomics", "races", "update without atomics"),
    ("divergent_barrier", "races", "divergent barrier"),
    ("sum_by_atomics", "races", "results depend on the order of blocks"),
    ("write_past_the_end", "memory", "writes past the end of an array"),
    ("write_past_the_workspace", "memory", "writes past the end of an array"),
    ("write_of_what_nobody_keeps", "memory", "writes outside of its arrays"),
    ("read_before_the_start", "memory", "reads before the start of an array"),
    ("read_past_the_end", "memory", "reads past the end of an array"),
    ("wrong_sign", "gradient", "gradient of `y` has the wrong sign"),
    ("wrong_sign_of_the_kernel", "values", "wrong sign"),
    ("forgotten_argument", "gradient", "gradient of `y` is forgotten"),
    ("forgotten_alone", "gradient", "gradient of `y` is forgotten where nothing else is needed"),
    ("number_of_threads", "threads", "results depend on the number of threads"),
    ("race_between_items", "threads", "results depend on the number of threads"),
    ("number_shared_by_calls", "threads", "calls disturb each other"),
    ("attribute_shared_by_calls", "threads", "calls disturb each other"),
    ("reference_of_some", "values", "the reference fails"),
    ("two_flags", "values", "wrong values for several attributes at once"),
    ("dependent_axis", "values", "`n` is declared `independent`, but is not"),
    ("overwrites_what_it_reads", "values", NO_REUSE),
    ("reads_what_it_overwrote", "races", NO_REUSE),
    ("second_block", "values", "wrong values for some sizes"),
    ("negative_shift", "values", "wrong values for some attributes"),
    ("negative_slope", "values", "wrong values for some attributes"),
    ("overflowing_size", "large", "integer overflow at sizes over 2^31"),
    ("overflowing_index", "large", "integer overflow at sizes over 2^31"),
    ("overflowing_product", "large", "integer overflow at sizes over 2^31"),
    ("sum_in_single_precision", "large", "wrong at large sizes"),
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kernels of these tests are built once, in a folder of their own."""
    return tmp_path_factory.mktemp("cache")


def test_a_job_is_stopped_when_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "TIME_LIMIT", 3.0)
    program = """
import time
for i in range(4):
    print(i, flush=True)
    time.sleep(1)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert [*map(int, job.lines_of(process))] == [0, 1, 2, 3]  # longer than the limit in all
        assert process.wait() == -signal.SIGALRM


def test_a_sanitizer_that_fails_is_no_bug_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "echo ThreadSanitizer: nested bug in the same thread, aborting. >&2"
    program = (
        f"""echo '{{"op": "a"}}'; echo '{{"Case": {{"name": "first", "death": null}}}}'; {said}"""
    )
    begun: list[list[str]] = []

    def start(self: job.Job, names: list[str], log: Path, errors: Any) -> Any:
        begun.append(names)
        shell = program.replace('"a"', f'"{names[0]}"')
        return subprocess.Popen(
            ["sh", "-c", shell], stdout=subprocess.PIPE, stderr=errors, text=True
        )

    monkeypatch.setattr(job.Job, "_start", start)
    monkeypatch.setattr(job, "missing_tool", lambda aspect: "")
    checked = job.Job("races", dict.fromkeys("ab"), FILE)  # type: ignore[arg-type]
    checked.run(lambda text: None)
    assert begun == [["a", "b"], ["a", "b"], ["b"], ["b"]]
    assert checked.findings == []
    assert checked.unchecked == [
        f"{name}: the sanitizer itself failed twice (first)" for name in "ab"
    ]


def test_a_compiler_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "TIME_LIMIT", 3.0)
    program = """
import subprocess, time
print(1, flush=True)
time.sleep(0.5)
subprocess.run(["sleep", "4"])
time.sleep(0.5)  # silent, and no compiler any more, for less than the limit
print(2)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert [*map(int, job.lines_of(process))] == [1, 2]
        assert process.wait() == 0


def test_a_crash_is_told_with_its_case(cache: Path, tmp_path: Path) -> None:
    options = ("--only", "values", "--framework", "numpy", "--op", "write_of_what_nobody_keeps")
    (found,) = findings(verdict(cache, tmp_path, FILE, *options))
    assert found["bug"] == "crashes"
    assert re.fullmatch(rf"signal 11 \({found['op']}-numpy-.+\)", found["text"])


def planted(aspects: set[str]) -> list[object]:
    return [pytest.param(*row, id=row[0]) for row in PLANTED if row[1] in aspects]


def check_planted(cache: Path, tmp_path: Path, op: str, aspect: str, bug: str) -> None:
    options = ("--only", aspect, "--op", op, "--framework", "numpy")
    said = verdict(cache, tmp_path, FILE, *options)
    assert (said["code"], said["ok"]) == (1, False), said["text"]
    (found,) = findings(said)
    assert (found["op"], found["bug"]) == (op, bug)
    place = Path(found["file"])
    assert place in (FILE, FOLDER / "planted.h")
    assert op in part_of_op(place, found["line"]), "the verdict points to another op"
    assert f"{place.name}:{found['line']}  {op}: {bug}" in said["text"]


def part_of_op(place: Path, line: int) -> str:
    """The lines of a file around a line, as far as they belong to one kernel or declaration."""
    parts = re.split(r"^(?=template <|@op\()", place.read_text(), flags=re.M)
    end = 0
    for part in parts:
        end += part.count("\n")
        if line <= end:
            return part
    return ""


@pytest.mark.parametrize(("op", "aspect", "bug"), planted({"gradient", "values", "threads"}))
def test_planted_mistake_is_found(
    cache: Path, tmp_path: Path, op: str, aspect: str, bug: str
) -> None:
    check_planted(cache, tmp_path, op, aspect, bug)


@pytest.mark.slow
@pytest.mark.races
@pytest.mark.parametrize(("op", "aspect", "bug"), planted({"races"}))
def test_planted_race_is_found(cache: Path, tmp_path: Path, op: str, aspect: str, bug: str) -> None:
    check_planted(cache, tmp_path, op, aspect, bug)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "aspect", "bug"), planted({"memory"}))
def test_planted_overrun_is_found(
    cache: Path, tmp_path: Path, op: str, aspect: str, bug: str
) -> None:
    check_planted(cache, tmp_path, op, aspect, bug)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "aspect", "bug"), planted({"large"}))
def test_planted_overflow_is_found(
    cache: Path, tmp_path: Path, op: str, aspect: str, bug: str
) -> None:
    check_planted(cache, tmp_path, op, aspect, bug)


@pytest.mark.parametrize(
    ("op", "bug", "line"),
    [
        ("rule_for_numpy_alone", "the gradient rule fails", "y.astype("),
        ("forgotten_alone", "wrong gradient", "@forgotten_alone.gradient"),
    ],
)
def test_rule_that_fails_in_a_framework_alone_is_pointed_to(
    cache: Path, tmp_path: Path, op: str, bug: str, line: str
) -> None:
    pytest.importorskip("torch")
    options = ("--only", "frameworks", "--framework", "torch", "--op", op)
    (found,) = findings(verdict(cache, tmp_path, FILE, *options))
    assert (found["bug"], found["file"]) == (bug, str(FILE))
    assert line in FILE.read_text().splitlines()[found["line"] - 1]


def test_race_points_to_the_line_without_its_barrier(cache: Path, tmp_path: Path) -> None:
    options = ("--only", "races", "--op", "missing_barrier")
    (found,) = findings(verdict(cache, tmp_path, FILE, *options))
    lines = (FOLDER / "planted.h").read_text().splitlines()
    first = next(i for i, line in enumerate(lines, 1) if "bug: no sync()" in line)
    assert f"lines {first + 1} and {first} " in found["text"] or (
        f"lines {first} and {first + 1} " in found["text"]
    )


@pytest.mark.slow
def test_what_begins_far_below_the_limit_is_no_overflow(cache: Path, tmp_path: Path) -> None:
    options = ("--only", "large", "--op", "sum_in_single_precision")
    (found,) = findings(verdict(cache, tmp_path, FILE, *options))
    assert "with `n` of 16777216. It is right with 2097152." in found["text"]


def test_right_kernels_have_no_bug(cache: Path, tmp_path: Path) -> None:
    options = ("--framework", "numpy", "--only", "values", "--only", "memory", "--only", "gradient")
    said = verdict(cache, tmp_path, FOLDER / "right.py", *options)
    assert (said["code"], findings(said)) == (0, []), said["text"]


@pytest.mark.slow
def test_right_kernels_have_no_bug_at_large_sizes(cache: Path, tmp_path: Path) -> None:
    said = verdict(cache, tmp_path, FOLDER / "right.py", "--only", "large")
    assert (said["code"], findings(said)) == (0, []), said["text"]
    words = " ".join(said["text"].split())
    assert "twice_by_reading_it along `n` (it reads results, which share memory here)" in words


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_templates_have_no_bug_in_any_aspect(cache: Path, tmp_path: Path, kind: str) -> None:
    assert command(cache, "new", "some_op", "--kind", kind, "-o", tmp_path).returncode == 0
    said = verdict(cache, tmp_path, tmp_path / "some_op.py", "--framework", "numpy")
    assert (said["code"], findings(said)) == (0, []), said["text"]
    states = {each["aspect"]: each["state"] for each in said["aspects"]}
    assert states.pop("cuda") in ("ok", "not checked")
    assert set(states.values()) == {"ok"}, said["text"]


def test_piped_verdict_has_no_colour_and_no_progress(cache: Path) -> None:
    done = command(cache, "check", FILE, "--only", "gradient", "--op", "wrong_sign")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.strip() == ""
    assert re.search(r"^FAILED +gradient ", done.stdout, re.M)
    assert "planted.py:" in done.stdout


def test_file_without_ops_is_told_in_one_sentence(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing_here.py").write_text("x = 1\n")
    done = command(cache, "check", tmp_path / "nothing_here.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "declares no op" in done.stderr
    done = command(cache, "check", tmp_path / "missing.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no file" in done.stderr


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("", "pip install 'nativeops[compiler]'"),
        ("/nowhere/g++", "the compiler `/nowhere/g++` cannot be run"),
        ("false", "is CXX a C++ compiler?"),
    ],
)
def test_without_a_compiler_the_way_out_is_told_and_no_bug_is_claimed(
    cache: Path, tmp_path: Path, compiler: str, said: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ziglang'] = None")
    (tmp_path / "false").symlink_to(str(shutil.which("false")))
    nothing = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path), "CXX": compiler}
    done = command(cache, "check", FILE, "--op", "product", **nothing)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert said in done.stderr


def test_gradient_is_checked_without_a_compiler(cache: Path, tmp_path: Path) -> None:
    options = ("--only", "gradient", "--op", "wrong_sign")
    done = command(cache, "check", FILE, *options, PATH=str(tmp_path), CXX="/nowhere/g++")
    assert done.returncode == 1
    assert "wrong sign" in done.stdout


@pytest.mark.parametrize("word", ["check", "build"])
def test_file_that_exits_is_no_success(cache: Path, tmp_path: Path, word: str) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    done = command(cache, word, tmp_path / "leaves.py")
    assert done.returncode == 2
    assert "leaves.py cannot be used: SystemExit" in done.stderr


def test_no_folder_for_the_verdict_is_told_before_the_check(cache: Path, tmp_path: Path) -> None:
    done = command(cache, "check", FILE, "--json", tmp_path / "none/verdict.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no folder" in done.stderr


def test_interrupted_check_ends_soon(cache: Path) -> None:
    own = {**os.environ, "NATIVEOPS_CACHE": str(cache)}
    # A shell that runs the tests in the background has told all of them to ignore the signal.
    python = ["env", "--default-signal=INT", sys.executable]
    program = [*python, "-m", "nativeops", "check", str(FILE)]
    with subprocess.Popen(
        program, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as running:
        time.sleep(6)  # jobs have begun, and many are left
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode != 0


def test_job_that_is_stopped_while_it_starts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = [], job.Job._start

    def start_too_late(self: job.Job, *names: Any) -> Any:
        started.append(start(self, *names))
        self.stop()
        return started[0]

    monkeypatch.setattr(job.Job, "_start", start_too_late)
    own = job.Job("values", {"product": nativeops.pairwise_l1}, FILE)
    own.run(lambda text: None)
    assert [process.returncode for process in started] == [-signal.SIGTERM]
    assert own.findings == []


def test_kernel_that_does_not_compile_is_a_finding_with_its_line(
    cache: Path, tmp_path: Path
) -> None:
    command(cache, "new", "broken", "-o", tmp_path)
    header = tmp_path / "broken.h"
    header.write_text(header.read_text().replace("1 + abs(value)", "1 + abs(valve)"))
    said = verdict(cache, tmp_path, tmp_path / "broken.py", "--only", "values")
    found = findings(said)[0]
    line = next(i for i, text in enumerate(header.read_text().splitlines(), 1) if "valve" in text)
    assert found["bug"] == "the kernel does not compile"
    assert (found["file"], found["line"]) == (str(header), line)
    assert "valve" in found["text"]


@pytest.mark.parametrize(
    "function",
    [
        lambda n: 3.0,
        lambda n: 2.5 * n,
        lambda n: 7.0 - n,
        lambda n: n**0.5,
        lambda n: 1.0 / n,
        lambda n: 4.0 + math.log(n),
    ],
)
def test_law_is_found_for_what_grows_evenly_or_as_a_power_or_logarithm(function: Any) -> None:
    found = law([function(n) for n in SMALL], 10**9)
    assert found == pytest.approx(function(10**9), rel=1e-6)


def test_no_law_is_claimed_where_there_is_none() -> None:
    assert law([float(n % 5) for n in SMALL], 10**9) is None
