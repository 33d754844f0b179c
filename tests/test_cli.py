# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, where, and its exit code."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

import nativeops
from nativeops import library
from nativeops.bench.history import read
from nativeops.bench.machine import package_version
from nativeops.bench.measurement import Measurement
from nativeops.bench.run import WorkerError
from nativeops.cli import bench as bench_command
from nativeops.cli import checks
from nativeops.cli import list as list_command
from nativeops.cli.app import app
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.registry import find
from nativeops.testing.probe import probe

SEQUENCE = re.compile(r"\x1b\[")
OPS = tuple(op.name for op in checks.public_ops())


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def answer(text: str, status: int = 0) -> subprocess.Popen[str]:
    """A process that says this and ends."""
    code = f"import sys; print({text!r}, end=''); print('the end', file=sys.stderr); exit({status})"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks are not tried: that takes ten seconds."""
    monkeypatch.setattr(checks, "start_probe", lambda *place: answer('{"value": ""}'))


def states() -> dict[str, str]:
    return {check.what: check.state for check in checks.all_checks()}


def test_list_has_a_line_per_op_and_one_per_framework() -> None:
    code, out, _ = run("list")
    assert code == 0
    lines = [line.split() for line in out.splitlines() if line.strip(" ─")]
    headers = [i for i, line in enumerate(lines) if line[0] in ("op", "function", "framework")]
    assert lines[0] == ["op", "gradient", "cpu", "cuda"]
    assert tuple(line[0] for line in lines[1 : headers[1]]) == OPS
    assert lines[1 + OPS.index("pairwise_l1")][2:4] == ["tuned", "kernel"]
    assert lines[headers[2]][:5] == ["framework", "here", "value", "gradient", "compiled"]
    functions = [line[0] for line in lines[headers[1] + 1 : headers[2]]]
    assert {"lstm", "ctc_loss", "accelerate"} <= set(functions)
    assert not {"lstm_layer", "set_num_threads"} & set(functions)
    assert [line[0] for line in lines[headers[2] + 1 :]] == list(FRAMEWORKS)


def test_list_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_command, "package_version", lambda name: None)
    _, out, _ = run("list")
    for name, about in FRAMEWORKS.items():
        assert re.search(rf"^ {name} +pip install {about.package} ", out, re.MULTILINE)


def test_show_tells_what_works_where() -> None:
    _, out, _ = run("show", "pairwise_l1")
    lines = [line for line in out.splitlines() if line.startswith("runs in ")]
    assert [line.split()[2] for line in lines] == [f"{name}:" for name in FRAMEWORKS]
    assert "numpy: value; on cpu" in lines[0]
    assert "gradient, jax.jit; on cpu" in lines[2]
    _, out, _ = run("show", "pairwise_l1_grad")
    assert "jax: value, jax.jit; on cpu" in out


def test_show_has_signature_documentation_and_files() -> None:
    code, out, _ = run("show", "pairwise_l1")
    assert code == 0
    assert out.count("pairwise_l1(x: Float[*b n d], y: Float[*b m d]) -> Float[*b n m]\n") == 1
    assert "Distance between every vector" in out
    paths = [Path(line.split()[-1]) for line in out.splitlines() if line.startswith("kernel ")]
    assert [path.name for path in paths] == ["pairwise_l1.h", "pairwise_l1_cpu.h"]
    assert all(path.exists() for path in paths)


def test_show_kernel_prints_the_source_and_nothing_else() -> None:
    code, out, _ = run("show", "pairwise_l1", "--kernel")
    assert code == 0
    source = Path(library.__file__).parent / "ops" / "pairwise_l1.h"
    assert source.read_text().strip() in out
    assert all(line.startswith("// ") for line in out.splitlines()[:2])


def test_tuned_kernels_for_all_devices_are_shown() -> None:
    _, out, _ = run("list")
    (line,) = (line for line in out.splitlines() if line.startswith(" lstm_layer "))
    assert "tuned kernel" in line
    _, out, _ = run("show", "lstm_layer")
    assert "lstm_tuned.h" in out


def test_show_tells_of_functions_too() -> None:
    code, out, _ = run("show", "ctc_loss")
    assert code == 0
    assert out.startswith("def ctc_loss(\n    logits: Array,")
    assert "Connectionist temporal classification" in out
    code, out, err = run("show", "lstm", "--kernel")
    assert (code, out) == (2, "")
    assert "lstm is a function that calls ops" in err


def test_version() -> None:
    assert run("--version")[:2] == (0, f"{nativeops.__version__}\n")


@pytest.mark.parametrize("command", ["show", "bench"])
def test_an_unknown_op_gives_a_hint_on_standard_error(command: str) -> None:
    code, out, err = run(command, "pairwise_l")
    assert (code, out) == (2, "")
    assert "pairwise_l: is not a declared op." in err
    assert "did you mean `pairwise_l" in err


@pytest.mark.slow
def test_doctor_finds_everything_needed() -> None:
    found = states()
    needed = {"nativeops", "compiled core", "numpy", *OPS, "instruction sets", "cpu", "threads"}
    needed |= {f"{name} on cpu" for name in FRAMEWORKS if package_version(name)}
    assert {what: found.get(what) for what in needed} == dict.fromkeys(needed, "ok")


def test_doctor_tells_what_a_framework_gives_and_what_is_wrong() -> None:
    def said(text: str, status: int = 0) -> tuple[str, str]:
        check = checks.probe_check("some on cpu", answer(text, status), "jax.jit")
        return check.state, check.found

    assert said('{"value": "", "compiled": ""}') == ("ok", "value, jax.jit: right")
    assert said('{"value": "", "compiled": "E: bad"}') == ("BROKEN", "jax.jit: E: bad")
    assert said("", 3) == ("BROKEN", "the end")


def test_doctor_does_not_wait_for_a_framework_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 0.1)
    hanging = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.PIPE, text=True
    )
    check = checks.probe_check("some on cpu", hanging, "jax.jit")
    assert (check.state, check.found) == ("BROKEN", "no answer after 0.1 s")
    assert hanging.returncode


@pytest.mark.parametrize("name", [n for n in FRAMEWORKS if package_version(n)])
def test_a_wrong_result_is_noticed_in_every_framework(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = find("pairwise_l1")
    assert probe(name, "cpu", [op])["value"] == ""
    right = op.reference
    monkeypatch.setattr(op, "reference", lambda x, y: right(x, y) + 1)
    assert "AssertionError: `out`" in probe(name, "cpu", [op])["value"]


def test_doctor_imports_no_framework() -> None:
    code = "import sys; from nativeops.cli import checks\n"
    code += "checks.works = lambda: iter(())  # other processes do\n"
    code += (
        "list(checks.all_checks()); names = ('torch', 'jax', 'tensorflow', 'scipy', 'sklearn')\n"
    )
    code += "print([name for name in names if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("quick_probes")
def test_doctor_fails_where_the_core_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise library.BuildError("the compiled core cannot be loaded.\n  hint: run `make setup`.")

    monkeypatch.setattr(library, "extension", missing)
    code, out, _ = run("doctor")
    assert code == 1
    lines = [line for line in out.splitlines() if line.startswith("BROKEN")]
    assert any("run `make setup`" in line for line in lines)


@pytest.mark.usefixtures("quick_probes")
def test_doctor_fails_where_a_kernel_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    op = find("pairwise_l1")
    monkeypatch.setattr(op, "reference", lambda x, y: op(x, y) + 1)
    code, out, _ = run("doctor")
    assert code == 1
    assert re.search(r"^BROKEN +pairwise_l1 +gives wrong results; run", out, re.MULTILINE)


def test_doctor_fails_where_a_framework_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "package_version", lambda name: "1.9.1")
    found = {check.what: check for check in checks.frameworks()}
    assert found["torch"].state == "BROKEN"
    assert found["torch"].help == "run `pip install --upgrade torch`"


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "package_version", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    found = {check.what: check for check in (*checks.frameworks(), *checks.tools())}
    assert found["numpy"].state == "BROKEN"
    assert found["torch"].state == found["g++"].state == found["nvcc"].state == "missing"
    assert all("install" in check.help for check in found.values())


def test_doctor_notices_a_stale_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "nativeops"
    (package / "ops").mkdir(parents=True)
    (tmp_path / "CMakeLists.txt").touch()
    built, source = tmp_path / "libnativeops_cpu_portable.so", package / "ops" / "some.h"
    built.touch()
    source.touch()
    monkeypatch.setattr(checks, "PACKAGE", package)
    monkeypatch.setattr(library, "kernel_libraries", lambda: [built])
    for age, state in ((-100, "ok"), (100, "BROKEN")):
        os.utime(source, (time.time() + age, time.time() + age))
        (check,) = checks.freshness()
        assert check.state == state


def test_doctor_notices_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATIVEOPS_THREADS", "3")
    monkeypatch.setenv("NATIVEOPS_DEBUG", "0")
    found = {check.what: check for check in checks.variables()}
    assert found["NATIVEOPS_THREADS"].help == "did you mean NATIVEOPS_NUM_THREADS?"
    assert found["NATIVEOPS_THREADS"].state == "BROKEN"
    assert found["NATIVEOPS_DEBUG"].found.endswith(": 0")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CXX", "nosuch", "the compiler `nosuch` cannot be run"),
        ("NATIVEOPS_CACHE_SIZE", "abc", "must be a number of MiB, but is 'abc'"),
        ("NATIVEOPS_CUDA", "maybe", "must be one of ['auto', 'on', 'off'], but is 'maybe'"),
        ("NATIVEOPS_CUDA_ARCHS", "80;foo", "architectures such as `80-real;90`, but has 'foo'"),
    ],
)
def test_doctor_notices_a_wrong_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    found = {check.what: check for check in checks.variables()}
    assert found[name].state == "BROKEN"
    assert said in found[name].found


@pytest.mark.usefixtures("quick_probes")
def test_doctor_shows_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    check = checks.Check("CXX", "BROKEN", "no [/compiler]", "`pip install 'nativeops[compiler]'`")
    monkeypatch.setattr("nativeops.cli.doctor.all_checks", lambda: [check])
    assert "no [/compiler]; `pip install 'nativeops[compiler]'`" in run("doctor")[1]


def test_doctor_as_json_has_a_state_for_each_check() -> None:
    _, out, _ = run("doctor", "--json")
    assert {check["state"] for check in json.loads(out)} <= {"ok", "missing", "BROKEN"}


@pytest.mark.slow
def test_a_pipe_gets_neither_colours_nor_cut_words() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    for command in ("list", "doctor"):
        done = subprocess.run(
            [sys.executable, "-m", "nativeops", command],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert done.stdout.startswith(("ok", "\n"))
        assert not SEQUENCE.search(done.stdout + done.stderr)
        assert "…" not in done.stdout
        assert done.stderr == ""


def test_without_typer_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from nativeops.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "pip install 'nativeops[cli]'" in done.stderr


def fake_run(plan: object, progress: object) -> list[Measurement]:
    size = {"n": 4, "m": 4, "d": 8}
    names = ("ours, NumPy", "numpy", "nativeops"), ("scipy", "numpy", "scipy")
    blank = [
        Measurement("forward", size, "float32", framework, rival, package, "1", i == 0)
        for i, (rival, framework, package) in enumerate(names)
    ]
    wrong = Measurement("forward", size, "float32", "torch", "bad", "torch", "2", error="wrong")
    return [blank[0].with_samples([0.5], 0.25), blank[1].with_samples([1.0], 0.25), wrong]


def test_bench_prints_ratios_and_keeps_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_command, "run", fake_run)
    figures = tmp_path / "figures.json"
    code, out, _ = run(
        "bench", "pairwise_l1", "--results", str(tmp_path), "--json", str(figures)
    )  # fmt: skip
    assert code == 1  # a rival was wrong
    scipy = next(line.split() for line in out.splitlines() if line.strip().startswith("scipy"))
    assert scipy[1:3] == ["1.00", "s"]
    assert "2x" in scipy
    assert "25%" in scipy
    assert "bad, n=4 m=4 d=8: ERROR: wrong" in out
    assert [line["rival"] for line in json.loads(figures.read_text())] == ["ours, NumPy", "scipy"]
    (history,) = (tmp_path / "history").iterdir()
    assert len(read(history)) == 2
    page = (tmp_path / "results" / history.stem / "pairwise_l1.md").read_text()
    assert page.startswith("# pairwise_l1\n")
    assert len({line.count("|") for line in page.splitlines() if line.startswith("|")}) == 1


def test_bench_draws_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench_command, "run", fake_run)
    run("bench", "pairwise_l1", "--results", str(tmp_path))
    (drawn,) = tmp_path.glob("results/*/pairwise_l1.svg")
    text = drawn.read_text()
    for shown in ("ours, NumPy", "500 ms", "scipy", "1.00 s", "n=4 m=4 d=8"):
        assert f">{shown}<" in text
    assert ">bad<" not in text  # it has no time
    page = drawn.with_suffix(".md")
    assert "](pairwise_l1.svg)" in page.read_text()
    run("bench", "pairwise_l1", "--results", str(tmp_path))
    assert drawn.read_text() == text  # not another file for the same figures
    monkeypatch.setattr(bench_command, "find_spec", lambda name: None)
    _, _, err = run("bench", "pairwise_l1", "--results", str(tmp_path))
    assert "pip install matplotlib" in err
    assert ".svg" not in page.read_text()


def test_bench_refuses_sizes_that_fit_no_case() -> None:
    code, _, err = run("bench", "pairwise_l1", "--sizes", "q=3")
    assert code == 2
    assert "no case fits: it has `forward` (n, m, d)" in err
    code, _, err = run("bench", "pairwise_l1", "--sizes", "n=x")
    assert code == 2
    assert "is not like n=1000" in err
    code, _, err = run("bench", "pairwise_l1", "--sizes", "n=0,m=3,d=2")
    assert code == 2
    assert "has a size below 1" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (", "cannot be used: SyntaxError: .*\n    at .*_bench.py:1$"),
        ("import nosuch", "cannot be used: ModuleNotFoundError: .*\n    at .*_bench.py:1$"),
        ("BENCHES = []", "has no cases: `BENCHES` lists them, each with its sizes.$"),
    ],
    ids=["syntax", "missing", "none"],
)
def test_bench_says_what_is_wrong_with_a_file(
    tmp_path: Path, request: pytest.FixtureRequest, text: str, said: str
) -> None:
    file = tmp_path / f"wrong_{request.node.callspec.id}_bench.py"
    file.write_text(text)
    code, _, err = run("bench", str(file), "--quick")
    assert code == 2
    assert re.search(f"^nativeops bench: wrong_.* {said}", err.strip(), re.M)


def test_bench_says_what_ended_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> Iterator[Measurement]:
        raise WorkerError("forward: exit status -11")
        yield

    monkeypatch.setattr(bench_command, "run", dies)
    code, _, err = run("bench", "pairwise_l1", "--quick")
    assert code == 1
    assert "nativeops bench: pairwise_l1: forward: exit status -11\n" in err


@pytest.mark.parametrize(
    "arguments", [("bench", "pairwise_l1", "--json"), ("demo", "l1", "--output")]
)
def test_missing_folder_is_told_before_anything_is_done(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    code, out, err = run(*arguments, str(tmp_path / "none/file.png"))
    assert (code, out) == (2, "")
    assert f"nativeops {arguments[0]}: there is no folder" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "pairwise_l1", "--json", "{folder}"),
        ("bench", "pairwise_l1", "--results", "{file}"),
        ("demo", "l1", "--output", "{folder}"),
        ("demo", "l1", "--output", "{folder}/picture.foo"),
        ("build", "{file}", "-o", "{file}/below"),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is_done(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    file = tmp_path / "file.py"
    file.touch()
    code, out, err = run(*(word.format(folder=tmp_path, file=file) for word in arguments))
    assert (code, out) == (2, "")
    assert err.startswith(f"nativeops {arguments[0]}: {tmp_path}")


def test_bench_takes_one_thread_at_least() -> None:
    code, _, err = run("bench", "pairwise_l1", "--threads", "0")
    assert code == 2
    assert "--threads" in err


def test_bench_shows_the_ratio_of_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_command, "run", fake_run)
    run("bench", "pairwise_l1", "--results", str(tmp_path))
    _, out, _ = run("bench", "pairwise_l1", "--results", str(tmp_path))
    assert next(line for line in out.splitlines() if line.startswith("   scipy")).count("2x") == 2


def test_bench_measures_for_real(tmp_path: Path) -> None:
    arguments = ("--quick", "--case", "portable", "--sizes", "n=8,m=8,d=4")
    code, out, _ = run("bench", "pairwise_l1", *arguments, "--results", str(tmp_path))
    assert code == 0, out
    (history,) = (tmp_path / "history").iterdir()
    lines = read(history)
    assert [line["rival"] for line in lines] == ["ours, NumPy", "scipy"]
    assert all(0 < line["min"] <= line["median"] < 1 for line in lines)


@pytest.mark.slow
def test_overhead_is_measured_in_all_frameworks(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    cases = [word for name in ("dispatch", "eager", "threads") for word in ("--case", name)]
    sizes = ("--sizes", "n=8,m=8,d=4", "--json", str(figures))
    code, out, _ = run("bench", "overhead", "--quick", *cases, *sizes)
    assert code == 0, out
    lines = json.loads(figures.read_text())
    present = {name for name in FRAMEWORKS if package_version(name)}
    for case in ("eager", "threads"):
        assert {line["framework"] for line in lines if line["case"] == case} == present
    assert all(0 < line["min"] < 1 for line in lines)
