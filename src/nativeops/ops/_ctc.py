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


class Rows:
    """The weights of one sequence's states: ``alpha[t]`` before frame t, ``beta[t]`` after it."""

    def __init__(self, problem: Problem, log_probs: Any, b: int) -> None:
        frames, self.labels = problem.frames(b), problem.labels(b)
        n = len(self.labels)
        self.loop = 0 if problem.label_loop else -np.inf
        may_skip = self.labels[1:] != self.labels[:-1] if problem.label_loop else np.ones(max(n - 1, 0))
        self.skips = np.where(np.concatenate([np.zeros(min(n, 1)), may_skip]), 0, -np.inf)
        columns = np.concatenate([np.full(n + 1, problem.blank), self.labels]).astype(np.int64)
        classes = log_probs.shape[-1]
        nothing = np.full((frames, len(columns)), -np.inf)
        emissions = log_probs[:frames, b][:, columns] if classes else nothing
        self.alpha = np.full((frames + 1, 2 * n + 1), -np.inf)
        self.beta = self.alpha.copy()
        self.alpha[0, 0] = self.beta[frames, n] = 0
        for t in range(frames):
            self.alpha[t + 1] = emissions[t] + self.before(self.alpha[t])
        for t in reversed(range(frames)):
            self.beta[t] = emissions[t] + self.after(self.beta[t + 1])
        self.score = np.logaddexp(self.alpha[-1, n], self.alpha[-1, -1] if n else -np.inf)

    def before(self, row: Any) -> Any:
        """The sum over the states from which a way goes on to each."""
        n = len(self.labels)
        blanks, labels = row[: n + 1], row[n + 1 :]
        earlier = np.concatenate([[-np.inf], labels])
        ways = np.logaddexp(labels + self.loop, blanks[:n])
        ways = np.logaddexp(ways, earlier[:n] + self.skips)
        return np.concatenate([np.logaddexp(blanks, earlier), ways])

    def after(self, row: Any) -> Any:
        """The sum over the states to which a way goes on from each."""
        n = len(self.labels)
        blanks, labels = row[: n + 1], row[n + 1 :]
        later = np.concatenate([labels + self.skips, [-np.inf]])
        ways = np.logaddexp(np.logaddexp(labels + self.loop, blanks[1:]), later[1:])
        return np.concatenate([np.logaddexp(blanks, np.append(labels, -np.inf)), ways])


def _log_probs(problem: Problem, normalized: bool) -> tuple[Any, Any]:
    x = problem.logits.astype(np.float64)
    sums = np.zeros(x.shape[:2]) if normalized else log_sums(x)
    return x - sums[..., None], sums


def words(numbers: Any) -> Any:
    """Doubles as two words each."""
    numbers = np.ascontiguousarray(numbers, np.float64)
    return numbers.view(np.int32).reshape(*numbers.shape, 2)


def losses(problem: Problem, normalized: bool, zero_infinity: bool) -> tuple[Any, ...]:
    """The losses, and what is kept."""
    log_probs, sums = _log_probs(problem, normalized)
    (steps, batch), n = problem.logits.shape[:2], problem.targets.shape[1]
    shape = ((steps + BLOCK - 1) // BLOCK, batch, 2 * n + 1)
    alphas, betas, scores = np.zeros(shape), np.zeros(shape), np.zeros(batch)
    for b in range(batch):
        rows, frames = Rows(problem, log_probs, b), problem.frames(b)
        for k in range((frames + BLOCK - 1) // BLOCK):
            states = rows.alpha.shape[1]
            alphas[k, b, :states] = rows.alpha[k * BLOCK]
            betas[k, b, :states] = rows.beta[min((k + 1) * BLOCK, frames)]
        scores[b] = rows.score
    loss = np.where((scores == -np.inf) & zero_infinity, 0, 0 - scores)
    return loss, words(sums), words(alphas), words(betas), words(scores)


def gradient(problem: Problem, normalized: bool) -> Any:
    """The gradients of the losses."""
    log_probs, _ = _log_probs(problem, normalized)
    found = np.zeros(problem.logits.shape) if normalized else np.exp(log_probs)
    for b in range(problem.logits.shape[1]):
        rows, frames = Rows(problem, log_probs, b), problem.frames(b)
        found[frames:, b] = 0
        if not rows.score > -np.inf:  # NaN, or impossible
            found[:frames, b] = np.nan if np.isnan(rows.score) else 0
            continue
        for t in range(frames):
            occupied = np.exp(rows.alpha[t + 1] + rows.after(rows.beta[t + 1]) - rows.score)
            n = len(rows.labels)
            found[t, b, problem.blank] -= occupied[: n + 1].sum()
            np.subtract.at(found[t, b], rows.labels.astype(np.int64), occupied[n + 1 :])
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
