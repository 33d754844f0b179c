# SPDX-License-Identifier: Apache-2.0
"""When is each word said? A folder of recordings, aligned with their transcripts by many processes.

The recordings here are the 25 minutes of speech that Debian ships for the Asterisk telephone
exchange (Allison Smith, CC-BY-SA-3.0). On Debian, as any user, this fetches them:

    apt-get download asterisk-core-sounds-en asterisk-core-sounds-en-wav
    for package in asterisk-core-sounds-en*.deb; do dpkg-deb --extract $package sounds; done

and this, after `pip install "nativeops[cli,ray,torch]"`, learns to spell them and aligns them:

    python examples/align_corpus.py sounds aligned

A small character LSTM is trained with CTC first; then Ray Data has `nativeops.forced_align` find
the most probable frames of every transcript, shard by shard. A shard's file appears at once and
whole, so whatever is killed, worker or all, nothing is lost and nothing is there twice: start the
same command again, and it goes on with the shards that are missing.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import re
import wave
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from rich.progress import track

import nativeops
from nativeops.layers.torch import LSTM, CTCLoss

LETTERS = " abcdefghijklmnopqrstuvwxyz'"  # the classes from 1 on; 0 is the blank
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
BANDS, STACKED = 40, 3  # numbers of a spectrum, and spectra that a frame of the model has
STEP = 0.01  # seconds between spectra


class Utterance(NamedTuple):
    """A recording and what is said in it."""

    name: str
    path: str
    words: list[str]

    def labels(self) -> list[int]:
        """The classes of its letters, with a space between words."""
        return [LETTERS.index(letter) + 1 for letter in " ".join(self.words)]


def corpus(folder: Path) -> list[Utterance]:
    """All recordings below a folder whose words a list of transcripts, `name: text`, tells."""
    paths = sorted(folder.rglob("*.wav"))
    root = os.path.commonpath([path.parent for path in paths]) if paths else folder
    recordings = {str(path.relative_to(root).with_suffix("")): str(path) for path in paths}
    found = {}
    for listed in sorted([*folder.rglob("*.txt"), *folder.rglob("*.txt.gz")]):
        read = gzip.open if listed.suffix == ".gz" else open
        with read(listed, "rt", encoding="utf-8", errors="replace") as lines:
            for name, text in re.findall(r"^([^;:\s]+):(.*)$", lines.read(), re.MULTILINE):
                words = spoken(text)
                if name in recordings and words:
                    found[name] = Utterance(name, recordings[name], words)
    return [found[name] for name in sorted(found)]


def spoken(text: str) -> list[str]:
    """The words of a transcript; none where it has something that we cannot spell."""
    if re.search(r"[\[\]<>@#*]|\d\d", text):  # a sound, a name yet to come, twelve or one two
        return []
    text = re.sub(r"\d", lambda digit: f" {DIGITS[int(digit[0])]} ", text.lower())
    return re.sub(r"[^a-z' ]", " ", text).split()


def features(path: str) -> Any:
    """Logarithms of the energies in mel bands ``[t, STACKED · BANDS]``, each with mean 0."""
    with wave.open(path) as file:
        rate = file.getframerate()
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            raise SystemExit(f"{path} must have one channel of 16 bits: convert it first.")
        signal = np.frombuffer(file.readframes(-1), "<i2").astype(np.float32) / 2**15
    size, step = round(2.5 * STEP * rate), round(STEP * rate)
    signal = np.pad(signal, (0, max(0, size - len(signal))))
    windows = np.lib.stride_tricks.sliding_window_view(signal, size)[::step]
    points = max(512, 1 << (size - 1).bit_length())  # fewer than a window has would cut its end off
    energy = np.abs(np.fft.rfft(windows * np.hanning(size), points)) ** 2
    mel = np.log(energy @ filters(rate, points).T + 1e-6).astype(np.float32)
    mel = (mel - mel.mean(0)) / (mel.std(0) + 1e-3)
    mel = np.pad(mel, ((0, -len(mel) % STACKED), (0, 0)))
    return mel.reshape(-1, STACKED * BANDS)


def filters(rate: int, points: int) -> Any:
    """Triangles over the spectrum of so many points, their corners equally far apart in mel."""
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, highest, BANDS + 2) / 2595) - 1)
    low, middle, high = (corners[i : i + BANDS, None] for i in range(3))
    frequency = np.fft.rfftfreq(points, 1 / rate)
    rising, falling = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    return np.clip(np.minimum(rising, falling), 0, None)


class Speller(torch.nn.Module):
    """From features to the logits of letters."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.lstm = LSTM(STACKED * BANDS, hidden, num_layers=2, bidirectional=True)
        self.output = torch.nn.Linear(2 * hidden, 1 + len(LETTERS))

    def forward(self, sounds: list[Any]) -> Any:
        """The logits ``[t, b, c]`` of arrays ``[t, STACKED · BANDS]``."""
        packed = torch.nn.utils.rnn.pack_sequence(
            [torch.from_numpy(sound) for sound in sounds], enforce_sorted=False
        )
        hidden, _ = torch.nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])
        return self.output(hidden)


def padded(utterances: list[Utterance]) -> tuple[Any, Any]:
    """The labels as one array, and how many there are of each."""
    labels = [utterance.labels() for utterance in utterances]
    rows = [torch.tensor(row, dtype=torch.int32) for row in labels]
    lengths = torch.tensor([len(row) for row in labels], dtype=torch.int32)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1), lengths


def frames_of(sounds: list[Any]) -> Any:
    return torch.tensor([len(sound) for sound in sounds], dtype=torch.int32)


def train(utterances: list[Utterance], path: Path, epochs: int) -> None:
    """Train a speller. The file has it after each epoch: there an interrupted training goes on."""
    torch.manual_seed(0)
    model, criterion = Speller(), CTCLoss(normalized=False, zero_infinity=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    state = torch.load(path, weights_only=True) if path.exists() else {"epoch": 0}
    if state["epoch"]:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    left = range(state["epoch"], epochs)
    sounds = [features(u.path) for u in utterances] if left else []
    # Lines of about the same length together: little of a batch is padding.
    order = sorted(range(len(sounds)), key=lambda i: len(sounds[i]))
    batches = [order[i : i + 16] for i in range(0, len(order), 16)]
    for epoch in track(left, "training"):
        total = 0.0
        for turn in np.random.default_rng(epoch).permutation(len(batches)):
            chosen = batches[turn]
            labels, lengths = padded([utterances[i] for i in chosen])
            own = [sounds[i] for i in chosen]
            optimizer.zero_grad()
            loss = criterion(model(own), labels, frames_of(own), lengths)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            total += loss.item() * len(chosen)
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        whole(path, lambda to, kept=kept, epoch=epoch: torch.save({**kept, "epoch": epoch + 1}, to))
        print(f"epoch {epoch + 1}: loss {total / len(order):.3f} a letter", flush=True)


def whole(path: Path, write: Any) -> None:
    """Have a file written under another name first: it is there whole, or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    write(unfinished)
    unfinished.replace(path)


class Aligner:
    """What a worker keeps: the model."""

    def __init__(self, model: str, out: str) -> None:
        nativeops.set_num_threads(1)  # there are as many workers as processors
        torch.set_num_threads(1)
        self.model, self.out = Speller().eval(), Path(out)
        self.model.load_state_dict(torch.load(model, weights_only=True)["model"])

    def __call__(self, shard: dict[str, Any]) -> dict[str, Any]:
        """Write the shard's file."""
        utterances = [Utterance(*each) for each in json.loads(shard["utterances"])]
        lines = "".join(json.dumps(found) + "\n" for found in self.align(utterances))
        whole(self.out / f"{shard['shard']:05}.jsonl", lambda to: to.write_text(lines))
        return {"shard": shard["shard"]}

    def align(self, utterances: list[Utterance]) -> list[dict[str, Any]]:
        """The words of each utterance with seconds and confidence; none if it is too short."""
        sounds = [features(u.path) for u in utterances]
        with torch.no_grad():
            log_probs = self.model(sounds).log_softmax(2)
        labels, lengths = padded(utterances)
        aligned = nativeops.forced_align(log_probs, labels, frames_of(sounds), lengths)
        found = []
        for b, utterance in enumerate(utterances):
            words, first = [], 0
            for word in utterance.words:
                own = slice(first, first + len(word))
                first += len(word) + 1  # the space
                start, end = int(aligned.starts[b, own][0]), int(aligned.ends[b, own][-1])
                if end >= 0:
                    seconds = [round(STEP * STACKED * frame, 2) for frame in (start, end)]
                    sure = round(float(aligned.confidence[b, own].mean()), 4)
                    words.append([word, *seconds, sure])
            found.append({"name": utterance.name, "words": words})
        return found


def shards(utterances: list[Utterance], out: Path, size: int, model: Path) -> list[dict[str, Any]]:
    """Those whose file is missing. The folder remembers what its shards are made of."""
    parts = [utterances[i : i + size] for i in range(0, len(utterances), size)]
    items = [{"shard": i, "utterances": json.dumps(part)} for i, part in enumerate(parts)]
    made_of = hashlib.sha256(json.dumps(items).encode() + model.read_bytes()).hexdigest()
    told = out / "made_of"
    if told.exists() and told.read_text() != made_of:
        raise SystemExit(f"{out} has shards of other recordings or of another model: remove it.")
    whole(told, lambda to: to.write_text(made_of))
    for unfinished in out.glob(".*.jsonl.*"):  # of a worker that was killed
        unfinished.unlink()
    return [item for item in items if not (out / f"{item['shard']:05}.jsonl").exists()]


def positive(text: str) -> int:
    """A number from 1 on; else argparse says which argument has none."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sounds", type=Path, help="recordings, and texts in .txt[.gz]")
    parser.add_argument("out", type=Path, help="where shards are written, and the model")
    parser.add_argument("--epochs", type=positive, default=40, help="of training")
    parser.add_argument("--shard", type=positive, default=16, help="utterances of a shard")
    parser.add_argument("--workers", type=positive, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()

    utterances = corpus(given.sounds)
    if not utterances:
        parser.error(f"{given.sounds} has no recording with a transcript.")
    given.out.mkdir(parents=True, exist_ok=True)
    model = given.out / "model.pt"
    train(utterances, model, given.epochs)

    missing = shards(utterances, given.out, given.shard, model)
    count = -(-len(utterances) // given.shard)
    print(f"{len(utterances)} utterances in {count} shards, {count - len(missing)} of them done")
    if missing:
        ray.init(num_cpus=given.workers, include_dashboard=False, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        done = ray.data.from_items(missing, override_num_blocks=len(missing)).map(
            Aligner,
            fn_constructor_args=(str(model.resolve()), str(given.out.resolve())),
            concurrency=given.workers,
        )
        for _ in track(done.iter_rows(), "aligning", len(missing)):
            pass
    report(given.out)


def report(out: Path) -> None:
    """What all shards together say."""
    texts = [path.read_text() for path in sorted(out.glob("*.jsonl"))]
    found = [json.loads(line) for text in texts for line in text.splitlines()]
    words = [word for utterance in found for word in utterance["words"]]
    short = [utterance["name"] for utterance in found if not utterance["words"]]
    sure = sum(word[3] for word in words) / max(1, len(words))
    print(f"{len(found)} utterances, {len(words)} words, mean confidence {sure:.3f}")
    print(f"too short for their transcripts: {', '.join(short) or 'none'}")


if __name__ == "__main__":
    main()
