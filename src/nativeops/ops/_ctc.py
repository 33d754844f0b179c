# SPDX-License-Identifier: Apache-2.0
"""CTC in NumPy, one sequence after the other, with logarithms: what the references share.

A target of n labels has 2n + 1 states: first the blanks before and after each label, then the
labels. A way comes from the first blank before the first frame, and goes to the last blank after
the last frame.
"""

from typing import Any, NamedTuple

import numpy as np

BLOCK = 16  # frames from one row of weights that is kept to the next


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


def log_sums(logits: Any) -> Any:
    """``log Σ exp`` over the classes; 0 where all are -inf."""
    most = logits.max(-1, initial=-np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = most + np.log(np.exp(logits - most[..., None]).sum(-1))
    return np.where(most == -np.inf, 0, found)


class Kept(NamedTuple):
    """What the gradient needs, in double precision."""

    log_sums: Any
    alphas: Any
    betas: Any
    scores: Any


def parts(numbers: Any) -> Any:
    """Doubles as sums of three floats, along a last axis."""
    left, found = np.asarray(numbers, np.float64), []
    for _ in range(3):
        found.append(left.astype(np.float32))
        left = np.where(np.isfinite(left), left - np.nan_to_num(found[-1]), 0)
    return np.stack(found, -1)


def joined(three: Any) -> Any:
    """The doubles again."""
    return three.astype(np.float64).sum(-1)


class Ways:
    """The states of one sequence, and the sums over states before and after each."""

    def __init__(self, problem: Problem, b: int) -> None:
        self.frames, self.labels = problem.frames(b), problem.labels(b).astype(np.int64)
        self.n = n = len(self.labels)
        self.columns = np.concatenate([np.full(n + 1, problem.blank), self.labels])
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


def losses(problem: Problem, normalized: bool, zero_infinity: bool) -> tuple[Any, ...]:
    """The losses, and what is kept."""
    x = problem.logits.astype(np.float64)
    (steps, batch), n = x.shape[:2], problem.targets.shape[1]
    sums = np.zeros((steps, batch)) if normalized else log_sums(x)
    shape = ((steps + BLOCK - 1) // BLOCK, batch, 2 * n + 1)
    kept = Kept(sums, np.zeros(shape), np.zeros(shape), np.zeros(batch))
    log_probs = x - sums[..., None]
    for b in range(batch):
        ways = Ways(problem, b)
        sums[ways.frames :, b] = 0
        row, score = ways.start(0), 0.0
        for t in range(ways.frames):
            row, top = relative(row)
            score += top
            if t % BLOCK == 0:
                kept.alphas[t // BLOCK, b, : len(row)] = row
            row = ways.before(row) + ways.emissions(log_probs, b, t)
        kept.scores[b] = score + np.logaddexp(row[ways.n], row[-1] if ways.n else -np.inf)
        row = ways.start(ways.n)
        for t in reversed(range(ways.frames)):
            row, _ = relative(row)
            if t == ways.frames - 1 or (t + 1) % BLOCK == 0:
                kept.betas[t // BLOCK, b, : len(row)] = row
            row = ways.after(row) + ways.emissions(log_probs, b, t)
    loss = np.where((kept.scores == -np.inf) & zero_infinity, 0, 0 - kept.scores)
    return loss, *(parts(numbers) for numbers in kept)


def gradient(problem: Problem, kept: Kept, normalized: bool) -> Any:
    """The gradients of the losses, block by block from the rows that are kept at both ends."""
    x = problem.logits.astype(np.float64)
    log_probs = x - kept.log_sums[..., None]
    found = np.zeros(x.shape) if normalized else np.exp(log_probs)
    for b in range(x.shape[1]):
        ways, score = Ways(problem, b), kept.scores[b]
        found[ways.frames :, b] = 0
        if not score > -np.inf:  # NaN, or impossible
            found[: ways.frames, b] = np.nan if np.isnan(score) else 0
            continue
        for first in range(0, ways.frames, BLOCK):
            times = range(first, min(first + BLOCK, ways.frames))
            alpha = [kept.alphas[first // BLOCK, b, : 2 * ways.n + 1]]
            for t in times:
                row = ways.before(alpha[-1]) + ways.emissions(log_probs, b, t)
                alpha.append(relative(row)[0])
            beta = kept.betas[first // BLOCK, b, : 2 * ways.n + 1]
            for t in reversed(times):
                through = alpha[t - first + 1] + ways.after(beta)
                occupied = np.exp(through - np.logaddexp.reduce(through))
                np.subtract.at(found[t, b], ways.columns, occupied)
                beta = relative(ways.after(beta) + ways.emissions(log_probs, b, t))[0]
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
