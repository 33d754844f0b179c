# SPDX-License-Identifier: Apache-2.0
"""CTC in NumPy, one sequence after the other, with logarithms: what the references share.

A target of n labels has 2n + 1 states: first the blanks before and after each label, then the
labels. A way comes from the first blank before the first frame, and goes to the last blank after
the last frame.
"""

from typing import Any, NamedTuple

import numpy as np


class Problem(NamedTuple):
    """What an op gets."""

    logits: Any
    targets: Any
    input_lengths: Any
    target_lengths: Any
    blank: int
    label_loop: bool

    def frames(self, b: int) -> int:
        """The length of a sequence."""
        return len(self.logits) if self.input_lengths is None else int(self.input_lengths[b])

    def labels(self, b: int) -> Any:
        """The target of a sequence."""
        lengths = self.target_lengths
        return self.targets[b] if lengths is None else self.targets[b, : int(lengths[b])]


def as_doubles(logits: Any) -> Any:
    """Logits as doubles that floats can be compared with: large ones as the nearest float."""
    wide, most = logits.astype(np.float64), float(np.finfo(np.float32).max)
    near = wide.clip(-most, most).astype(np.float32)
    return np.where(np.isfinite(wide) & (np.abs(wide) > 2**53), near, wide)


def log_sums(logits: Any) -> tuple[Any, Any]:
    """``log Σ exp`` over the classes as the largest and the rest; zeros where all are -inf."""
    most = logits.max(-1, initial=-np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.log(np.exp(logits - most[..., None]).sum(-1))
    none = most == -np.inf
    return np.where(none, 0, most), np.where(none, 0, rest)


def parts(largest: Any, rest: Any) -> Any:
    """Sums of both as three floats along a last axis, the largest and what is left of it."""
    high = largest.astype(np.float32)
    left = np.where(np.isfinite(high), largest - np.nan_to_num(high) + rest, 0)
    middle = left.astype(np.float32)
    return np.stack([high, middle, (left - middle).astype(np.float32)], -1)


class Ways:
    """The states of one sequence, and the sums over states before and after each."""

    def __init__(self, problem: Problem, b: int) -> None:
        self.frames, self.labels = problem.frames(b), problem.labels(b).astype(np.int64)
        self.n = n = len(self.labels)
        self.columns = np.concatenate([np.full(n + 1, problem.blank), self.labels])
        self.again = np.array([c in self.labels[:i] for i, c in enumerate(self.labels)], bool)
        self.loop = 0 if problem.label_loop else -np.inf
        other = self.labels[1:] != self.labels[:-1]
        may_skip = np.concatenate([[False], other | (not problem.label_loop)])[:n]
        self.skips = np.where(may_skip, 0, -np.inf)

    def start(self, state: int) -> Any:
        """All weight in one state."""
        return np.where(np.arange(2 * self.n + 1) == state, 0, -np.inf)

    def emissions(self, log_probs: Any, b: int, t: int) -> Any:
        """The logarithm of the probability of each state's label."""
        if not log_probs.shape[-1]:
            return np.full(2 * self.n + 1, -np.inf)
        return log_probs[t, b][self.columns]

    def before(self, row: Any) -> Any:
        """The sum over the states from which a way goes on to each."""
        blanks, labels = row[: self.n + 1], row[self.n + 1 :]
        earlier = np.concatenate([[-np.inf], labels])
        ways = np.logaddexp(labels + self.loop, blanks[: self.n])
        ways = np.logaddexp(ways, earlier[: self.n] + self.skips)
        return np.concatenate([np.logaddexp(blanks, earlier), ways])

    def after(self, row: Any) -> Any:
        """The sum over the states to which a way goes on from each."""
        blanks, labels = row[: self.n + 1], row[self.n + 1 :]
        later = np.concatenate([labels + self.skips, [-np.inf]])
        ways = np.logaddexp(np.logaddexp(labels + self.loop, blanks[1:]), later[1:])
        return np.concatenate([np.logaddexp(blanks, np.append(labels, -np.inf)), ways])


def relative(row: Any) -> tuple[Any, float]:
    """Weights relative to the largest, and its logarithm: what is near it loses no digits."""
    top = float(row.max())
    return (row, 0.0) if top == -np.inf else (row - top, top)


AGAIN = 2  # among slopes, which are differences of probabilities


def losses(problem: Problem, normalized: bool, zero_infinity: bool) -> tuple[Any, Any, Any]:
    """The losses, and what the gradient needs: sums of the frames, and slopes."""
    x = as_doubles(problem.logits)
    (steps, batch), most = x.shape[:2], problem.targets.shape[1]
    none = np.zeros((steps, batch))
    largest, rest = (none, none.copy()) if normalized else log_sums(x)
    slopes, scores = np.zeros((steps, batch, most + 1)), np.zeros(batch)
    log_probs = x - largest[..., None] - rest[..., None]
    for b in range(batch):
        ways = Ways(problem, b)
        largest[ways.frames :, b] = rest[ways.frames :, b] = 0
        if x.shape[2] and np.isnan(log_probs[: ways.frames, b][:, ways.columns]).any():
            scores[b] = largest[: ways.frames, b] = np.nan  # also where no way is at that class
            continue
        alphas, row = [], ways.start(0)
        for t in range(ways.frames):
            row, top = relative(row)
            scores[b] += top
            row = ways.before(row) + ways.emissions(log_probs, b, t)
            alphas.append(row)
        scores[b] += np.logaddexp(row[ways.n], row[-1] if ways.n else -np.inf)
        if not np.isfinite(scores[b]):
            largest[: ways.frames, b] = np.nan if np.isnan(scores[b]) else np.inf
            continue
        row = ways.start(ways.n)
        for t in reversed(range(ways.frames)):
            through = alphas[t] + ways.after(row)
            of_state = np.exp(through - np.logaddexp.reduce(through))
            of_class = np.zeros(x.shape[2])
            np.add.at(of_class, ways.columns, of_state)
            softmax = 0 if normalized else np.exp(log_probs[t, b])
            slope = (softmax - of_class)[ways.columns]
            slopes[t, b, 0] = slope[0]
            slopes[t, b, 1 : ways.n + 1] = np.where(ways.again, AGAIN, slope[ways.n + 1 :])
            row = relative(ways.after(row) + ways.emissions(log_probs, b, t))[0]
    loss = np.where((scores == -np.inf) & zero_infinity, 0, 0 - scores)
    return loss, parts(largest, rest), slopes


def gradient(problem: Problem, sums: Any, slopes: Any, normalized: bool) -> Any:
    """The gradients of the losses: softmax, and slopes where there are any."""
    x, (largest, *left) = as_doubles(problem.logits), np.moveaxis(sums, -1, 0)
    log_probs = x - largest[..., None] - sum(left)[..., None]
    found = np.zeros(x.shape) if normalized else np.exp(log_probs)
    for b in range(x.shape[1]):
        ways = Ways(problem, b)
        columns = [problem.blank, *ways.labels] if x.shape[2] else []
        for i, c in reversed(list(enumerate(columns))):
            found[:, b, c] = np.where(slopes[:, b, i] == AGAIN, found[:, b, c], slopes[:, b, i])
        found[np.isinf(largest[:, b]), b] = 0
        found[np.isnan(largest[:, b]), b] = np.nan
        found[ways.frames :, b] = 0
    return found


def example(random: Any, given: Any) -> dict[str, Any]:
    """Valid arguments with a target that can be said, where the sizes allow it.

    The logits are the same numbers in every dtype, so that what is kept of them fits.
    """
    t, b, c, s = (given[name] for name in "tbcs")
    logits = np.clip(np.round(16 * random.standard_normal((t, b, c))) / 16, -4, 4)
    labels = np.array([k for k in range(c) if k != given["blank"]])
    targets = np.zeros((b, s), np.int64)
    if len(labels):
        targets = random.choice(labels, (b, s))
    needed = np.arange(1, s + 1) + np.cumsum(targets == np.roll(targets, 1, 1), 1)
    needed -= (targets[:, :1] == targets[:, -1:]) if s else 0
    input_lengths = random.integers(np.minimum(needed[:, -1] if s else 0, t), t + 1, b)
    most = (needed <= input_lengths[:, None]).sum(1) if len(labels) else np.zeros(b, np.int64)
    return {
        "logits": logits,
        "targets": targets,
        "input_lengths": input_lengths.astype(np.int32),
        "target_lengths": random.integers((most + 1) // 2, most + 1).astype(np.int32),
    }
