# SPDX-License-Identifier: Apache-2.0
"""CTC prefix beam search in NumPy: the reference, and the search with a scorer of one's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nativeops.arrays import to_numpy
from nativeops.errors import DtypeError, RangeError, ShapeError, message

Prefix = tuple[int, ...]
Scorer = Callable[[Sequence[Prefix]], Any]


@dataclass(frozen=True)
class Options:
    """What a search is told."""

    width: int
    blank: int
    threshold: float
    bonus: float
    weight: float = 1.0  # of the scorer


class Ways(NamedTuple):
    """Paths of a prefix: log of their sum, the best one, and when its labels begin."""

    sum: float = -np.inf
    best: float = -np.inf
    times: Prefix = ()


NO_WAYS = Ways()


@dataclass
class Hypothesis:
    """A prefix with its paths that end in a blank, or in its last label."""

    prefix: Prefix
    blank: Ways = NO_WAYS
    label: Ways = NO_WAYS
    extra: float = 0.0  # of scorer and bonus
    next_scores: Any = field(default=None, repr=False)  # the scorer's, weighted, of next labels

    @property
    def sum(self) -> float:
        """Log-probability of all paths."""
        return float(np.logaddexp(self.blank.sum, self.label.sum))

    def before(self, label: int) -> tuple[float, Ways]:
        """The paths that a label may follow, and where the best of them is."""
        if self.prefix[-1:] == (label,):
            return self.blank.sum, self.blank
        return self.sum, self.blank if self.blank.best >= self.label.best else self.label


def log_softmax(x: Any) -> Any:
    """Log-probabilities of the last axis; rows of -inf stay."""
    largest = x.max(-1, keepdims=True, initial=-np.inf)
    with np.errstate(all="ignore"):
        shifted = x - largest
        return np.where(largest == -np.inf, x, shifted - np.log(np.exp(shifted).sum(-1))[..., None])


def search(
    log_probs: Any, options: Options, scorer: Scorer | None = None
) -> list[tuple[Prefix, float, Prefix]]:
    """Labels, score and frames of the prefixes left after all frames, the best one first."""
    beam = [Hypothesis((), Ways(0.0, 0.0))]
    blank = options.blank % max(1, log_probs.shape[1])
    for t, frame in enumerate(log_probs):
        if not len(frame) or not (frame < np.inf).all():
            return []
        if scorer is not None and options.weight != 0:  # 0 · -inf would be NaN
            _ask(scorer, beam, len(frame), blank, options.weight)
        beam = _step(beam, frame, t, blank, options)
    last = [(h.prefix, h.sum + h.extra, h.before(-1)[1].times) for h in beam]
    return [found for found in last if found[1] > -np.inf]


def search_batch(
    x: Any, lengths: Any, n_best: int, normalized: bool, options: Options, scorer: Any = None
) -> tuple[Any, ...]:
    """Tokens, lengths, scores and frames of a batch of outputs ``[t, b, c]``."""
    steps, batch, _ = x.shape
    tokens = np.full((batch, n_best, steps), -1, np.int32)
    frames, counts = tokens.copy(), np.zeros((batch, n_best), np.int32)
    scores = np.full((batch, n_best), -np.inf, x.dtype)
    for b in range(batch):
        own = x[: steps if lengths is None else lengths[b], b].astype(np.float64)
        found = search(own if normalized else log_softmax(own), options, scorer)
        for n, (labels, score, times) in enumerate(found[:n_best]):
            counts[b, n], scores[b, n] = len(labels), score
            tokens[b, n, : len(labels)], frames[b, n, : len(labels)] = labels, times
        if not (own < np.inf).all():
            scores[b] = np.nan
    return tokens, counts, scores, frames


def _ask(scorer: Scorer, beam: list[Hypothesis], classes: int, blank: int, weight: float) -> None:
    """Have all prefixes scored that are new in this frame, at once."""
    fresh = [h for h in beam if h.next_scores is None]
    if fresh:
        prefixes = [h.prefix for h in fresh]
        given = to_numpy(scorer(prefixes))
        if given.dtype.kind in "SUOMmc":  # bf16 of JAX is of a kind of its own
            text = f"`scorer` must return numbers, but they have dtype {given.dtype}."
            raise DtypeError(message("ctc_beam_search", text))
        scores = given.astype(np.float64)
        if scores.shape != (len(fresh), classes):
            text = f"`scorer` must return an array of shape {(len(fresh), classes)}, one row for "
            text += f"each prefix, but it has the shape {scores.shape}."
            raise ShapeError(message("ctc_beam_search", text))
        for h, row in zip(fresh, _weighted(scores, prefixes, blank, weight), strict=True):
            h.next_scores = row


def _weighted(scores: Any, prefixes: list[Prefix], blank: int, weight: float) -> Any:
    """A scorer's scores by their weight, if the search can put prefixes in order by them."""
    with np.errstate(over="ignore"):
        weighted = weight * scores
    wrong = ~(weighted < np.inf)  # also NaN
    wrong[:, blank] = False
    if wrong.any():
        row, label = np.argwhere(wrong)[0].tolist()
        text = f"`scorer` gives label {label} after the prefix {prefixes[row]} the score "
        text += f"{scores[row, label]}, which times `scorer_weight`, {weight}, must be a number or "
        text += "-inf."
        hint = "to forbid a label, give -inf, or inf if `scorer_weight` is negative."
        raise RangeError(message("ctc_beam_search", text, hint=hint))
    return weighted


def _step(
    beam: list[Hypothesis], frame: Any, t: int, blank: int, options: Options
) -> list[Hypothesis]:
    stays = [_stay(h, frame, blank) for h in beam]
    with np.errstate(divide="ignore"):
        allowed = (frame >= np.log(options.threshold)) & (frame > -np.inf)
    allowed[blank] = False
    place = {h.prefix: r for r, h in enumerate(beam)}
    fresh = np.repeat(allowed[None], len(beam), 0)  # which extensions are not in the beam
    for h in stays:
        origin = place.get(h.prefix[:-1]) if h.prefix else None
        if origin is not None:
            label = h.prefix[-1]
            if allowed[label]:
                _merge(h, beam[origin], label, frame[label], t)
            fresh[origin, label] = False
    return _select(beam, stays, frame, t, fresh, options)


def _stay(h: Hypothesis, frame: Any, blank: int) -> Hypothesis:
    better = h.before(-1)[1]
    same = Hypothesis(h.prefix, extra=h.extra, next_scores=h.next_scores)
    same.blank = Ways(h.sum + frame[blank], better.best + frame[blank], better.times)
    if h.prefix:
        own = frame[h.prefix[-1]]
        same.label = Ways(h.label.sum + own, h.label.best + own, h.label.times)
    return same


def _merge(longer: Hypothesis, origin: Hypothesis, label: int, own: float, t: int) -> None:
    total, ways = origin.before(label)
    best, times = longer.label.best, longer.label.times
    if ways.best + own > best:
        best, times = ways.best + own, (*ways.times, t)
    longer.label = Ways(float(np.logaddexp(longer.label.sum, total + own)), best, times)


def _select(
    beam: list[Hypothesis],
    stays: list[Hypothesis],
    frame: Any,
    t: int,
    fresh: Any,
    options: Options,
) -> list[Hypothesis]:
    """The best of those that stay and of all new extensions, in the order of the op."""
    sums = np.array([h.sum for h in beam])[:, None] + np.where(fresh, frame, -np.inf)
    for r, h in enumerate(beam):
        if h.prefix and fresh[r, h.prefix[-1]]:
            sums[r, h.prefix[-1]] = h.blank.sum + frame[h.prefix[-1]]
    extras = np.array([h.extra for h in beam])[:, None] + options.bonus + np.zeros_like(sums)
    for r, h in enumerate(beam):
        if h.next_scores is not None:
            extras[r] += h.next_scores
    with np.errstate(invalid="ignore"):
        ranks = np.where(sums == -np.inf, -np.inf, sums + extras)
    order = np.argsort(-frame, kind="stable")  # the more probable label first
    flat = np.concatenate([[h.sum + h.extra for h in stays], ranks[:, order].ravel()])
    chosen = []
    for place in np.argsort(-flat, kind="stable")[: options.width]:
        if flat[place] == -np.inf:
            break
        if place < len(stays):
            chosen.append(stays[place])
            continue
        r, k = divmod(int(place) - len(stays), len(frame))
        label = int(order[k])
        total, ways = beam[r].before(label)
        longer = Hypothesis((*beam[r].prefix, label), extra=float(extras[r, label]))
        longer.label = Ways(total + frame[label], ways.best + frame[label], (*ways.times, t))
        chosen.append(longer)
    return chosen
