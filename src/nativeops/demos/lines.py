# SPDX-License-Identifier: Apache-2.0
"""A recogniser of handwritten lines: trained, decoded, aligned, and timed against PyTorch."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from nativeops.bench.measure import QUICK, Effort
from nativeops.bench.measurement import Measurement
from nativeops.bench.report import duration
from nativeops.bench.run import Plan as BenchPlan
from nativeops.bench.run import run
from nativeops.demos import lines_model as model
from nativeops.demos.lines_data import Lines, held_out_lines
from nativeops.demos.lines_picture import figure
from nativeops.demos.lines_train import Plan, Training, train

SPEED = "nativeops.demos.lines_speed"
HELD_OUT = 500  # lines
SEED = 1_000_000  # of those
SHOWN = 5  # lines in the picture
TRAINING = 0.6  # share of the time, roughly
PLAN = Plan()
SHORT = Plan(steps=1200)

Progress = Callable[[str, float], None]


class Reading(NamedTuple):
    """What became of the held-out lines."""

    lines: Lines
    probability: Any  # [t, b, c]
    greedy: list[list[int]]
    found: list[list[int]]  # by beam search
    aligned: list[model.Spans]

    def errors(self) -> dict[str, float]:
        """Edits by the number of digits, for each way to decode."""
        right = self.lines.labels()
        return {
            "best path": model.label_error(self.greedy, right),
            "beam search": model.label_error(self.found, right),
        }

    def shown(self) -> list[int]:
        """A long line that was read right, then those with most mistakes."""
        edits = model.edits(self.found, self.lines.labels())
        order = sorted(range(len(edits)), key=lambda i: -edits[i])
        right = [i for i in order if edits[i] == 0] or order
        longest = max(right, key=lambda i: int(self.lines.lengths[i]))
        return [longest, *(i for i in order if i != longest)][:SHOWN]


class Outcome(NamedTuple):
    """What the demo found."""

    training: Training
    seconds: float  # of the steps that were taken now
    reading: Reading
    speed: list[Measurement]


def demo(checkpoint: Path | None, *, quick: bool, progress: Progress) -> Outcome:
    """Train, read, measure.

    Args:
        checkpoint: Where training is kept, and taken up again.
        quick: A shorter training and few rounds of the measurement.
        progress: Hears what is being done, and the share that is done.
    """
    started = time.perf_counter()
    plan = SHORT if quick else PLAN
    training = train(plan, checkpoint, lambda text, share: progress(text, TRAINING * share))
    seconds = time.perf_counter() - started
    progress("reading held-out lines", TRAINING)
    reading = read(training.model, held_out_lines(SEED, HELD_OUT))
    threads = len(os.sched_getaffinity(0))
    bench = BenchPlan(SPEED, threads, QUICK if quick else Effort(seconds=12.0), memory=False)
    speed = list(run(bench, lambda text, share: progress(text, TRAINING + (1 - TRAINING) * share)))
    return Outcome(training, seconds, reading, speed)


def read(trained: Any, lines: Lines) -> Reading:
    """Decode by best path and by beam search, and align what that found."""
    log_probs, lengths = model.log_posterior(trained, lines), model.frames(lines.lengths)
    found = model.beam_search(log_probs, lengths)
    return Reading(
        lines,
        np.exp(log_probs.numpy()),
        model.best_paths(log_probs, lengths),
        found,
        model.spans(log_probs, found, lengths),
    )


def draw(outcome: Outcome) -> Any:
    """The picture, as a figure of matplotlib."""
    lines, probability, _, found, aligned = outcome.reading
    chosen = outcome.reading.shown()
    return figure(lines, probability, found, aligned, chosen, outcome.training.losses)


def findings(outcome: Outcome) -> list[str]:
    """What was found, in sentences."""
    reading, plan = outcome.reading, outcome.training.plan
    errors = ", ".join(f"{error:.2%} by {how}" for how, error in reading.errors().items())
    digits = int(reading.lines.target_lengths.sum())
    resumed = outcome.training.resumed
    before = f" after {resumed} taken up from the checkpoint" if resumed else ""
    confidence = np.array([sure for spans in reading.aligned for _, _, sure in spans])
    return [
        f"Trained in {outcome.seconds:.1f} s: {plan.steps - resumed} steps of "
        f"{plan.batch} lines{before}.",
        f"Label error on {len(reading.found)} held-out lines of {digits} digits: {errors}.",
        f"Forced alignment gives each digit its frames: on average {_frames(reading.aligned):.1f} "
        f"of them, with a confidence of {confidence.mean():.3f}.",
    ]


def _frames(aligned: Sequence[model.Spans]) -> float:
    return float(np.mean([end - start for spans in aligned for start, end, _ in spans]))


def rows(speed: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Who computes the step, how long, the quartiles, and how many times as long as ours."""
    ours = speed[0].median
    table: list[tuple[str, ...]] = []
    for each in speed:
        if not each.counts:
            table.append((each.rival, each.error or each.skipped, "", ""))
            continue
        quartiles = f"{duration(each.q1)} - {duration(each.q3)}"
        table.append((each.rival, duration(each.median), quartiles, f"{each.median / ours:.2f}x"))
    return table


COLUMNS = ("step of training with", "median", "quartiles", "times ours")


def table(speed: Sequence[Measurement]) -> Table:
    """The same for a terminal."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        result.add_column(column, justify="left" if column == COLUMNS[0] else "right")
    for row in rows(speed):
        result.add_row(*row)
    return result
