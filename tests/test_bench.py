# SPDX-License-Identifier: Apache-2.0
"""The benchmark harness: who counts, in which order, and what is kept."""

import gc
import hashlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from nativeops.bench import aside, compare, history
from nativeops.bench.case import OURS, Bench, Known, Rival, spread_rows
from nativeops.bench.machine import machine_key
from nativeops.bench.measure import Effort, Runner, measure, reason_to_skip, settle
from nativeops.bench.measurement import Measurement, from_json
from nativeops.bench.place import Place
from nativeops.bench.run import Plan, WorkerError, run
from nativeops.cli.bench import OTHERS, modules

SHORT = Effort(seconds=1e-9, fewest=3, most=5, sample=1e-9)
ROOT = Path(__file__).resolve().parent.parent
SIZE = {"n": 4}
RUN = history.Run("op", "cpu", "machine", 2, "avx2", "g++ 12", "abc", "2026-11-01T00:00:00+00:00")
MXNET = aside.version_aside("mxnet")
SCHEMA = {
    "op", "device", "machine", "threads", "instructions", "compiler", "commit", "date", "case",
    "size", "dtype", "framework", "rival", "package", "version", "ours", "n", "min", "q1",
    "median", "q3", "limit", "fraction", "memory",
}  # fmt: skip


def rival(name: str, call: Callable[..., Any], package: str = "numpy", **more: Any) -> Rival:
    return Rival(name, lambda *arrays: lambda: call(*arrays), package, "numpy", **more)


def doubling(*rivals: Rival, **more: Any) -> Bench:
    return Bench(
        "double",
        "twice the input",
        sizes=[SIZE],
        inputs=lambda random, n: (random.standard_normal(n),),
        expected=lambda x: [Known(slice(None), 2 * x)],
        work=lambda n: 1.0 * n,
        rivals=rivals,
        **more,
    )


def figures(bench: Bench, effort: Effort = SHORT) -> dict[str, Measurement]:
    return {each.rival: each for each in measure(bench, bench.sizes, effort)}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: 2 * x + 1e-3, "wrong by 0.001"),
        (lambda x: np.where(x == x[0], math.nan, 2 * x), "wrong by nan"),
        (lambda x: 2 * x[:-1], "shape [3] instead of [4]"),
        (lambda x: (2 * x, x), "2 results where 1 are known"),
        (lambda x: x.no_such_method(), "AttributeError"),
    ],
)
def test_a_wrong_rival_is_an_error_without_a_time(wrong: Callable[..., Any], words: str) -> None:
    found = figures(doubling(rival("right", lambda x: x + x), rival("wrong", wrong)))
    assert found["right"].counts
    assert found["right"].n >= SHORT.fewest
    assert words in found["wrong"].error
    assert found["wrong"].n == 0
    assert math.isnan(found["wrong"].median)


def test_a_result_within_the_tolerance_counts() -> None:
    assert figures(doubling(rival("close", lambda x: 2 * x * (1 + 1e-7))))["close"].counts


def test_a_list_of_numbers_is_one_result() -> None:
    assert figures(doubling(rival("list", lambda x: (2 * x).tolist())))["list"].counts


def test_others_may_be_less_exact_where_the_bench_says_so() -> None:
    def close(x: Any) -> Any:
        return 2 * x * (1 + 1e-3)

    both = (rival("ours", close, OURS), rival("theirs", close))
    found = figures(doubling(*both, peer_tolerance=1e-2))
    assert found["theirs"].counts
    assert found["ours"].error.startswith("wrong by")


def test_every_rival_is_called_with_arrays_of_a_framework() -> None:
    paths = (ROOT / "src/nativeops/ops").glob("*_bench.py")
    benches = [import_module(f"nativeops.ops.{path.stem}").BENCHES for path in paths]
    rivals = [rival for some in benches for bench in some for rival in bench.rivals]
    assert len(rivals) > 50
    assert {each.framework for each in rivals} <= {"numpy", "torch", "jax", "tensorflow"}


def test_all_that_is_measured_is_measured_once() -> None:
    subjects = modules(None)
    paths = (ROOT / "src/nativeops/ops").glob("*_bench.py")
    files = {f"nativeops.ops.{path.stem}" for path in paths}
    found = [cases.module for cases in subjects.values()]
    assert sorted(found) == sorted(files | {cases.module for cases in OTHERS.values()})
    assert {"lstm_layer", "pairwise_l1", "native_lstm2"} <= set(subjects)


def test_a_gpu_has_a_name_and_rivals_of_its_own() -> None:
    gpu = Place("cuda")
    assert machine_key("NVIDIA H200") == "nvidia-h200"
    assert not gpu.takes(rival("numpy", np.copy))
    assert gpu.takes(replace(rival("torch", np.copy), framework="torch"))
    assert Place().takes(rival("numpy", np.copy))


def test_without_a_gpu_the_benchmark_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no NVIDIA GPU" in Place("cuda").missing()
    assert not Place().missing()


def test_rounds_alternate_and_measure_the_limit_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(Runner, "sample", lambda self, shortest: (
        order.append(self.rival.name), self.samples.append(1.0)))  # fmt: skip
    rivals = [rival(name, lambda x: x + x) for name in "abc"]
    found = figures(doubling(*rivals, limit=lambda: order.append("limit") or 8.0))
    assert order == ["limit", "limit", "a", "b", "c"] * 3  # the first limit is a warm-up
    assert found["a"].limit == 0.5  # 4 units of work at 8 a second
    assert found["a"].fraction == 0.5


def test_a_short_call_is_repeated_until_the_sample_is_long() -> None:
    calls: list[None] = []
    runner = Runner(rival("short", lambda: None), lambda: calls.append(None), once=0.001)
    runner.sample(0.01)
    assert len(calls) == 15  # five to warm up, ten that are timed
    assert len(runner.samples) == 1


def test_a_first_call_that_compiles_does_not_say_how_long_a_call_takes() -> None:
    calls: list[None] = []

    def compiled_at_first(x: Any) -> Any:
        time.sleep(0 if calls else 1.1)
        calls.append(None)
        return x + x

    figures(doubling(rival("r", compiled_at_first)), replace(SHORT, sample=0.1))
    assert len(calls) > 15  # in samples of one call each there would be less than ten


def test_a_sample_waits_for_threads_that_others_left_running() -> None:
    ended: list[float] = []

    def spin() -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # does not hold the interpreter's lock
        ended.append(time.perf_counter())

    thread = threading.Thread(target=spin)
    thread.start()
    time.sleep(0.05)  # so that it has the interpreter's lock behind it
    settle(longest=0.0)
    assert not ended
    settle(longest=60.0)
    assert ended or not thread.is_alive()
    thread.join()


def test_the_time_of_a_loop_is_divided_by_its_calls() -> None:
    one, many = (Runner(rival("r", print, calls=n), lambda: None, 1.0) for n in (1, 1000))
    for _ in range(50):
        one.sample(0.0)
        many.sample(0.0)
    assert min(many.samples) < min(one.samples) / 100


def test_quantiles_are_those_of_the_samples() -> None:
    blank = Measurement("c", SIZE, "float32", "numpy", "r", "numpy", "1")
    summary = blank.with_samples([5.0, 1.0, 2.0, 4.0, 3.0], limit=1.5)
    assert (summary.n, summary.min, summary.q1, summary.median) == (5, 1.0, 2.0, 3.0)
    assert (summary.q3, summary.fraction) == (4.0, 0.5)


def test_who_is_left_out_is_told_why() -> None:
    missing = rival("r", print, package="no-such-package")
    assert reason_to_skip(missing, SIZE, math.nan).startswith("no-such-package is not installed")
    ours = Rival("ours", print, OURS, "no-such-framework")
    assert reason_to_skip(ours, SIZE, math.nan).startswith("no-such-framework is not installed")
    huge = rival("r", print, memory=lambda n: n * 5e9)
    assert reason_to_skip(huge, SIZE, math.nan) == "would need 20 GB of memory (at most 12)"
    assert "would take about 60 s" in reason_to_skip(rival("r", print), SIZE, 60.0)
    assert reason_to_skip(rival("r", print), SIZE, math.nan) == ""
    assert reason_to_skip(rival("r", print, package=OURS), SIZE, 1.0) == ""


def test_a_slow_rival_is_left_out_at_the_next_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(self: Runner, shortest: float) -> None:
        self.samples.append(1.0 if self.rival.name == "slow" else 0.001)

    monkeypatch.setattr(Runner, "sample", sample)
    bench = doubling(rival("slow", lambda x: x + x), rival("fast", lambda x: x + x))
    sizes = [{"n": 4}, {"n": 400}]
    first, _, second, fast = measure(bench, sizes, SHORT)
    assert first.counts
    assert "would take about 100 s" in second.skipped
    assert fast.counts


def test_checked_rows_have_the_first_and_the_last() -> None:
    assert spread_rows(3).tolist() == [0, 1, 2]
    many = spread_rows(20000)
    assert len(many) == 256
    assert many[[0, -1]].tolist() == [0, 19999]


def test_history_lines_have_the_stated_fields_and_are_only_added(tmp_path: Path) -> None:
    measured = list(figures(doubling(rival("a", np.square), rival("b", lambda x: x + x))).values())
    path = tmp_path / "history" / "machine.jsonl"
    history.append(path, RUN, measured)
    first = path.read_text()
    history.append(path, RUN, measured)
    assert path.read_text() == first * 2
    (line, _) = history.read(path)
    assert set(line) == SCHEMA
    assert line["rival"] == "b"  # the wrong one is not kept
    assert line["min"] <= line["q1"] <= line["median"] <= line["q3"]
    assert line["version"] == np.__version__


def test_ratios_are_to_ours_in_the_same_framework_and_to_the_run_before() -> None:
    def line(name: str, framework: str, seconds: float, ours: bool = False) -> Measurement:
        blank = Measurement("c", SIZE, "float32", framework, name, "numpy", "1", ours)
        return blank.with_samples([seconds], None)

    def ratios(scale: float) -> list[Measurement]:
        return [
            line("ours", "numpy", 2.0, ours=True),
            line("ours, torch", "torch", 1.0, ours=True),
            line("scipy", "numpy", 6.0 * scale),
            line("cdist", "torch", 6.0 * scale),
            replace(line("none", "jax", 1.0), skipped="not here"),
        ]

    before = [history.record(RUN, each) for each in ratios(2.0) if each.counts]
    other = [{**each, "machine": "other", "median": 1.0} for each in before]
    rows = compare.rows(RUN, ratios(1.0), before + other)
    assert [row.ratio for row in rows] == [1, 1, 3, 6, None]
    assert [row.ratio_before for row in rows] == [1, 1, 6, 12, None]


def test_a_measurement_survives_json() -> None:
    timed = figures(doubling(rival("a", lambda x: x + x)))["a"]
    assert from_json(json.loads(json.dumps(timed.as_json()))) == timed
    wrong = figures(doubling(rival("a", np.square)))["a"]
    again = from_json(json.loads(json.dumps(wrong.as_json())))
    assert math.isnan(again.median)
    assert again.error == wrong.error


FAKE = """
import os
import numpy as np
from nativeops.bench.case import Bench, Known, Rival

def make(name, call):
    return Rival(name, lambda x: lambda: call(x), "numpy", "numpy")

def grow(x):
    return np.ones(40_000_000, np.uint8)[: len(x)] * x

def count_cpus(x):
    print("noise on standard output")
    assert len(os.sched_getaffinity(0)) == 1 and os.environ["SOME"] == "thing"
    return x

BENCHES = [
    Bench("same", "x", [{"n": 8}, {"n": 16}], lambda random, n: (np.ones(n, np.float32),),
          [make("grow", grow), make("cpus", count_cpus), make("wrong", np.zeros_like)],
          expected=lambda x: [Known(..., x)], memory_sizes=[{"n": 16}],
          environment={"SOME": "thing"}),
    Bench("dies", "x", [{"k": 1}], lambda random, k: (np.ones(k),),
          [make("exit", lambda x: os._exit(3))]),
]
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "fake_op_bench.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "fake_op_bench"


def test_workers_report_times_and_peak_memory_of_fresh_processes(fake: str) -> None:
    shares: list[float] = []
    plan = Plan(fake, threads=1, effort=SHORT, cases=("same",))
    measured = list(run(plan, lambda text, share: shares.append(share)))
    assert [each.rival for each in measured] == ["grow", "cpus", "wrong"] * 2
    assert [each.counts for each in measured] == [True, True, False] * 2
    assert [each.memory for each in measured[:3]] == [None, None, None]
    grown, still, wrong = (each.memory for each in measured[3:])
    assert grown is not None
    assert still is not None
    assert 38e6 < grown < 50e6
    assert still < 2e6
    assert wrong is None
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1


def test_a_worker_that_dies_is_an_error(fake: str) -> None:
    with pytest.raises(WorkerError, match="dies: exit status 3"):
        list(run(Plan(fake, threads=1, effort=SHORT, cases=("dies",))))


def test_given_sizes_go_to_the_cases_with_these_axes(fake: str) -> None:
    jobs = list(Plan(fake, threads=1, sizes=({"k": 7},)).jobs())
    assert [(bench.name, sizes) for bench, sizes in jobs] == [("dies", [{"k": 7}])]
    smallest = list(Plan(fake, threads=1, smallest=True).jobs())
    assert [sizes for _, sizes in smallest] == [[{"n": 8}], [{"k": 1}]]


PROGRAM = """
import hashlib, os, sys, threading
import numpy as np

folder, factor = sys.argv[1:]
x, calls = np.load(folder + "/0.npy"), 0

def spin():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_500_000)
    open(folder + "/spun", "w").close()

for line in sys.stdin:
    if line == "run\\n":
        calls += 1
        if factor == "spins":
            threading.Thread(target=spin).start()
        if factor == "dies":
            sys.exit("this is why")
        if factor == "killed":
            os.kill(os.getpid(), 9)
    else:
        results = [x * int(factor), x + calls]
        for number, result in enumerate(results):
            np.save(f"{folder}/result-{number}.npy", result)
    print(flush=True)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Which runs in an environment aside that has this process's packages."""
    python = tmp_path / "elsewhere/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(aside, "environment_of", lambda package: tmp_path / package)
    return tmp_path / "program.py"


def test_a_rival_aside_computes_with_each_call_and_ends_when_it_is_let_go(program: Path) -> None:
    x = np.arange(3.0)
    call = aside.prepare_aside("elsewhere", program, "7", [x], results=2)
    (process,) = (psutil.Process(each) for each in aside.process_ids())
    call()
    product, calls = call()
    np.testing.assert_array_equal(np.asarray(product), 7 * x)
    np.testing.assert_array_equal(np.asarray(calls), x + 2)
    folder = Path(process.cmdline()[-2])
    assert folder.is_dir()
    del call, product, calls
    gc.collect()
    assert not process.is_running()
    assert not folder.exists()
    assert not aside.process_ids()


def test_a_program_aside_that_ends_is_an_error_with_its_last_words(program: Path) -> None:
    call = aside.prepare_aside("elsewhere", program, "dies", [np.ones(3)], results=1)
    for _ in range(2):
        with pytest.raises(aside.AsideError, match=r"^this is why$"):
            call()
    call = aside.prepare_aside("elsewhere", program, "killed", [np.ones(3)], results=1)
    with pytest.raises(aside.AsideError, match=r"^exit status -9$"):
        call()


def test_a_sample_waits_for_threads_that_a_program_aside_left_running(program: Path) -> None:
    call = aside.prepare_aside("elsewhere", program, "spins", [np.ones(3)], results=1)
    call()
    (process,) = (psutil.Process(each) for each in aside.process_ids())
    spun = Path(process.cmdline()[-2], "spun")
    settle(longest=0.0)
    assert not spun.exists()
    settle(longest=60.0)
    assert spun.exists()


def test_a_rival_aside_has_the_version_of_its_environment(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = rival("r", print, package="elsewhere", aside=True)
    said = "elsewhere has no environment of its own here (`make rivals`)"
    assert reason_to_skip(there, SIZE, math.nan) == said
    about = tmp_path / "elsewhere/lib/python3.11/site-packages/elsewhere-1.2.dist-info/METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Name: elsewhere\nVersion: 1.2\n")
    assert aside.version_aside("elsewhere") == "1.2"
    assert reason_to_skip(there, SIZE, math.nan) == ""


@pytest.mark.parametrize("case", ["forward", "gradient"])
def test_the_expected_values_of_the_benchmark_agree_with_the_reference(case: str) -> None:
    from nativeops.ops import pairwise_l1_bench
    from nativeops.ops.pairwise_l1 import pairwise_l1, pairwise_l1_grad

    bench = next(each for each in pairwise_l1_bench.BENCHES if each.name == case)
    arrays = [array.astype(np.float64) for array in bench.arrays({"n": 5, "m": 7, "d": 3})]
    reference = (pairwise_l1 if case == "forward" else pairwise_l1_grad).reference(*arrays)
    results = [reference] if case == "forward" else list(reference)
    assert bench.expected is not None
    for result, (index, values) in zip(results, bench.expected(*arrays), strict=True):
        np.testing.assert_allclose(result[index], values, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["lstm", "gru", "rnn"])
def test_rivals_of_recurrent_layers_give_what_the_reference_gives(layer: str) -> None:
    module = import_module(f"nativeops.ops.{layer}_bench")
    op = getattr(import_module(f"nativeops.ops.{layer}"), f"{layer}_layer")
    size = {"t": 8, "b": 3, "i": 4, "h": 6}
    for bench in module.BENCHES:
        # What takes long to compile is tried in a test of its own.
        rivals = [rival for rival in bench.rivals if rival.name != "compiled"]
        found = list(measure(replace(bench, limit=None, rivals=rivals), [size], SHORT))
        assert [f"{each.rival}: {each.error}" for each in found if each.error] == []
        assert any(each.counts for each in found)
        assert {each.counts for each in found if each.package == "mxnet"} <= {MXNET is not None}
        if bench.name == "inference":
            arrays = bench.arrays(size)
            exact = op.reference(*(array.astype(np.float64) for array in arrays)).output
            (known,) = bench.expected(*arrays)
            np.testing.assert_allclose(known.values, exact, rtol=1e-12, atol=1e-14)
    gc.collect()
    left = [child.cmdline() for child in psutil.Process().children()]
    assert not [command for command in left if "sched_setaffinity" in str(command)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # Inductor's own
@pytest.mark.parametrize(
    ("layer", "case", "steps"),
    [("lstm", "training", 3), ("gru", "bf16, inference", 3), ("gru", "inference", 51)],
)
def test_compiled_loops_of_recurrent_layers_agree(layer: str, case: str, steps: int) -> None:
    cases = import_module(f"nativeops.ops.{layer}_bench").BENCHES
    (bench,) = (bench for bench in cases if bench.name == case)
    rival = bench.rival("compiled")
    bench = replace(bench, limit=None, rivals=[rival])
    (found,) = measure(bench, [{"t": steps, "b": 3, "i": 4, "h": 6}], SHORT)
    assert found.counts, found.error


@pytest.mark.parametrize("layer", ["lstm", "gru", "rnn"])
def test_compiled_loops_of_many_steps_have_no_gradient(layer: str) -> None:
    pytest.importorskip("torch")
    cases = {bench.name: bench for bench in import_module(f"nativeops.ops.{layer}_bench").BENCHES}
    for name in ("inference", "training", "bf16, inference", "bf16, training"):
        rival = cases[name].rival("compiled")
        assert not reason_to_skip(rival, {"t": 50, "b": 3}, math.nan)
        why = reason_to_skip(rival, {"t": 51, "b": 3}, math.nan)
        assert why == "51 steps take long to compile (at most 50)" * ("training" in name)


@pytest.mark.slow
def test_rivals_of_deep_layers_agree_and_mxnet_is_one_where_it_is_installed() -> None:
    deep = [bench for bench in import_module("nativeops.layers.stack_bench").BENCHES
            if "lengths" not in bench.name]  # fmt: skip
    assert len(deep) == 16
    for bench in deep:
        own = bench.sizes[0]["directions"]  # both, or one
        size = {"t": 5, "b": 3, "i": 4, "h": 6, "layers": 2, "directions": own}
        found = list(measure(replace(bench, limit=None), [size], SHORT))
        assert [f"{each.rival}: {each.error}" for each in found if each.error] == []
        assert [each.counts for each in found if each.package == "mxnet"] == [MXNET is not None] * 2
