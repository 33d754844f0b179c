# SPDX-License-Identifier: Apache-2.0
"""The corpus aligned by Ray: right times, and each recording once whatever is killed."""

import contextlib
import importlib.util
import json
import os
import random
import runpy
import subprocess
import sys
import time
import wave
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

psutil = pytest.importorskip("psutil")
pytest.importorskip("torch")
if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is missing", allow_module_level=True)

EXAMPLE = Path(__file__).resolve().parent.parent / "examples/align_corpus.py"
WORDS = ["a", "bad", "cab", "fed", "dab", "face", "bead"]
RATE, LETTER, PAUSE = 8000, 0.15, 0.3  # seconds of each letter's tone, and of the silence of spaces
UTTERANCES, COPIES = 24, 10

pytestmark = pytest.mark.slow


def sound(text: str) -> bytes:
    """Each letter a tone of its own, spaces silent."""
    parts = []
    for letter in f" {text} ":
        time_ = np.arange(round(RATE * (PAUSE if letter == " " else LETTER))) / RATE
        tone = 0.0 if letter == " " else np.sin(2 * np.pi * 300 * (ord(letter) - 96) * time_)
        parts.append(tone * np.hanning(len(time_)))
    return (2**14 * np.concatenate(parts)).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder of recordings, and the texts."""
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(0)
    texts = {f"say-{i}": " ".join(draw.choices(WORDS, k=4)) for i in range(UTTERANCES)}
    for name, text in texts.items():
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(sound(text))
    told = "".join(f"{name}: {text.capitalize()}.\n" for name, text in texts.items())
    (folder / "texts.txt").write_text(f"; transcripts\n{told}missing: Nobody said this.\n")
    return folder, texts


def command(folder: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, str(EXAMPLE), str(folder), str(out), *options]


def run(folder: Path, out: Path, *options: str) -> str:
    done = subprocess.run(
        command(folder, out, *options), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(out: Path) -> list[dict]:
    files = sorted(out.glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def aligned(made, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("aligned")
    return out, run(made[0], out, "--epochs", "40", "--shard", "5", "--workers", "2")


def test_words_are_found_where_they_were_said(made, aligned) -> None:
    out, said = aligned
    assert "24 utterances in 5 shards, 0 of them done" in said
    assert len(list(out.glob("*.jsonl"))) == 5
    found = {line["name"]: line["words"] for line in lines(out)}
    assert found.keys() == made[1].keys()
    for name, text in made[1].items():
        assert [word for word, *_ in found[name]] == text.split()
        start = PAUSE
        for word, first, last, sure in found[name]:
            end = start + LETTER * len(word)
            assert first == pytest.approx(start, abs=LETTER), (name, word)
            assert last == pytest.approx(end, abs=LETTER), (name, word)
            assert 0.3 < sure <= 1
            start = end + PAUSE


@pytest.mark.parametrize("option", ["--epochs", "--shard", "--workers"])
def test_numbers_of_nothing_are_refused_before_the_training(option: str, tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, tmp_path, option, "0"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"argument {option}: invalid positive value: '0'" in done.stderr


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
def test_features_see_whole_windows_at_any_rate(rate: int, tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLE))
    click = np.zeros(rate, "<i2")
    click[round(0.12083 * rate)] = 2**14  # it lies in the windows that begin at 0.10, 0.11 and 0.12
    with wave.open(str(tmp_path / "click.wav"), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(click.tobytes())
    spectra = example["features"](str(tmp_path / "click.wav")).reshape(-1, example["BANDS"])
    assert np.flatnonzero(spectra.max(1) > 0.5).tolist() == [10, 11, 12]


def test_what_is_done_is_not_done_again_nor_mixed_with_another_corpus(made, aligned) -> None:
    out, _ = aligned
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.jsonl")}
    assert "5 shards, 5 of them done" in run(made[0], out, "--epochs", "40", "--shard", "5")
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*.jsonl")}
    other = subprocess.run(
        command(made[0], out, "--epochs", "40", "--shard", "6"),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert other.returncode == 1
    assert "has shards of other recordings or of another model" in other.stderr


@pytest.fixture
def many(made, aligned, tmp_path: Path) -> tuple[Path, Path]:
    """A corpus that takes some seconds, and a folder with a trained model."""
    folder, out = tmp_path / "many", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    told = []
    for copy in range(COPIES):
        for name, text in made[1].items():
            os.link(made[0] / f"{name}.wav", folder / f"{name}-{copy}.wav")
            told.append(f"{name}-{copy}: {text}\n")
    (folder / "texts.txt").write_text("".join(told))
    os.link(aligned[0] / "model.pt", out / "model.pt")
    return folder, out


def started(many: tuple[Path, Path]) -> subprocess.Popen[str]:
    """The example at work: it has written some shards, but not nearly all."""
    options = ("--epochs", "40", "--shard", "1", "--workers", "2")
    process = subprocess.Popen(
        command(*many, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while len(list(many[1].glob("*.jsonl"))) < 10 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def workers(process: subprocess.Popen[str]) -> Iterator[psutil.Process]:
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.name().startswith("ray::") and "Map" in child.name():
            yield child


def check_once(out: Path) -> None:
    """Every recording is there, and none twice."""
    names = Counter(line["name"] for line in lines(out))
    assert len(names) == UTTERANCES * COPIES
    assert set(names.values()) == {1}


def test_a_killed_worker_loses_and_doubles_nothing(many) -> None:
    process = started(many)
    next(workers(process)).kill()
    assert len(list(many[1].glob("*.jsonl"))) < UTTERANCES * COPIES
    said, complaint = process.communicate(timeout=240)
    assert process.returncode == 0, complaint
    assert f"{UTTERANCES * COPIES} utterances, " in said
    check_once(many[1])


def test_what_was_killed_goes_on_with_what_is_missing(many) -> None:
    process = started(many)
    children = psutil.Process(process.pid).children(recursive=True)
    for each in (process, *children):  # what would end by itself, only later
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(children)
    process.communicate()
    done = len(list(many[1].glob("*.jsonl")))
    assert 10 <= done < UTTERANCES * COPIES
    said = run(*many, "--epochs", "40", "--shard", "1", "--workers", "2")
    assert f"{UTTERANCES * COPIES} shards, {done} of them done" in said
    check_once(many[1])
