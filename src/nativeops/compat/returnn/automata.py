# SPDX-License-Identifier: Apache-2.0
"""RETURNN's ops on automata, for PyTorch.

What differs in all of them: any floating dtype is computed in, and returned as, itself; wrong
states, classes, lengths and targets are errors on the CPU; frames may go beyond the longest
sequence; batches, times and targets may be empty; a sequence without any path has the cost +∞, not
0; NaN is not swallowed; no argument is written to. ``n_states`` is not needed.

The contracts are those of RETURNN of August 2026. RETURNN 1.20261022 differs in the sign of the
weights of `fast_viterbi`.
"""

from itertools import pairwise
from typing import Any

import torch

from nativeops import ops
from nativeops.arrays import integers
from nativeops.compat.returnn._checks import can_read, check_axes, check_tensors, whole
from nativeops.errors import RangeError, message
from nativeops.layers.ctc import ctc_loss as _ctc_loss

__all__ = [
    "ctc_best_path",
    "ctc_loss",
    "ctc_loss_packed",
    "fast_baum_welch",
    "fast_baum_welch_packed",
    "fast_viterbi",
    "get_ctc_fsa_fast_bw",
]

Tensor = torch.Tensor


def get_ctc_fsa_fast_bw(
    *,
    targets: Tensor,
    seq_lens: Tensor,
    blank_idx: int,
    label_loop: bool = True,
    edges_bound: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """CTC's automata: edges ``[4, E]``, weights ``[E]`` (-log), start and end states ``[2, B]``.

    Args:
        targets: ``[B, S]``.
        seq_lens: ``[B]``, of the targets.
        blank_idx: The class of the blank.
        label_loop: Whether a label may last longer than a frame.
        edges_bound: If given, the automata are packed into a list of that size, at least
            ``5 · Σ seq_lens + 5 · B``; else each has ``5 S + 5`` edges.
    """
    op = "get_ctc_fsa_fast_bw"
    check_tensors(op, targets=targets)
    lengths = integers(op, "seq_lens", seq_lens, targets)
    check_axes(op, targets=(targets, "b s"), seq_lens=(lengths, "b"))
    options: Any = {"blank": blank_idx, "label_loop": label_loop}
    if edges_bound is None:
        made = ops.ctc_fsa.ctc_fsa(targets, lengths, **options)
        return made.edges, made.weights, made.start_end_states
    inside = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
    packed = ops.ctc_fsa.ctc_fsa_packed(targets[inside], lengths, **options)
    missing = whole(op, "edges_bound", edges_bound) - packed.weights.shape[0]
    if missing < 0:
        needed = packed.weights.shape[0]
        text = f"`edges_bound` is {edges_bound}, but {needed} are needed."
        raise RangeError(message(op, text))
    edges = torch.nn.functional.pad(packed.edges, (0, missing))
    weights = torch.nn.functional.pad(packed.weights, (0, missing), value=float("inf"))
    return edges, weights, packed.start_end_states


def _lengths(seq_mask: Tensor, op: str) -> Tensor:
    """How many frames each sequence of a mask ``[T, B]`` has."""
    mask = seq_mask > 0.5 if seq_mask.is_floating_point() else seq_mask.bool()
    if can_read(mask) and (mask[1:] & ~mask[:-1]).any():
        text = "`seq_mask` has a gap: each sequence must be at the beginning."
        raise RangeError(message(op, text))
    return mask.sum(0, dtype=torch.int32)


def fast_baum_welch(
    *,
    am_scores: Tensor,
    seq_mask: Tensor,
    edges: Tensor,
    weights: Tensor,
    start_end_states: Tensor,
    n_states: int | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """-log of the posteriors ``[T, B, C]`` and of the sums over all paths ``[T, B]``.

    Args:
        am_scores: ``[T, B, C]``, -log.
        seq_mask: ``[T, B]``.
        edges: ``[4, E]``: from, to, class, sequence.
        weights: ``[E]``, -log.
        start_end_states: ``[2, B]``.
        n_states: Not used.
    """
    op = "fast_baum_welch"
    check_tensors(op, am_scores=am_scores, seq_mask=seq_mask, weights=weights)
    check_axes(op, am_scores=(am_scores, "t b c"), seq_mask=(seq_mask, "frames b"))
    lengths = _lengths(seq_mask, op).to(am_scores.device)
    weights = weights.to(am_scores.dtype)
    found = ops.fast_baum_welch.fast_baum_welch(
        am_scores, edges, weights, start_end_states, lengths
    )
    return found.fwdbwd, found.obs_scores


def fast_baum_welch_packed(
    *,
    am_scores: Tensor,
    seq_mask: Tensor,
    seq_starts: Tensor,
    edges: Tensor,
    weights: Tensor,
    start_end_states: Tensor,
    n_states: int | Tensor | None = None,
    edge_offsets: Tensor | None = None,
    max_seq_states: int | None = None,
) -> tuple[Tensor, Tensor]:
    """-log of the posteriors ``[N, C]`` and of the sums over all paths ``[T, B]``, without padding.

    Args:
        am_scores: ``[N, C]``, -log.
        seq_mask: ``[T, B]``, T being the longest sequence's.
        seq_starts: ``[B]``: frame t of sequence b is row ``seq_starts[b] + t``.
        edges: ``[4, E]``: from, to, class, sequence.
        weights: ``[E]``, -log.
        start_end_states: ``[2, B]``.
        n_states: Not used.
        edge_offsets: Not used, RETURNN 1.20261022 needs it: here an edge says its sequence.
        max_seq_states: Not used, likewise.
    """
    op = "fast_baum_welch_packed"
    check_tensors(op, am_scores=am_scores, seq_mask=seq_mask, weights=weights)
    starts = integers(op, "seq_starts", seq_starts, am_scores)
    check_axes(op, seq_starts=(starts, "b"), seq_mask=(seq_mask, "frames b"))
    lengths = _lengths(seq_mask, op).to(am_scores.device)
    fwdbwd, costs = ops.fast_baum_welch.fast_baum_welch_packed(
        am_scores, starts, lengths, edges, weights.to(am_scores.dtype), start_end_states
    )
    times = torch.arange(seq_mask.shape[0], device=lengths.device)[:, None]
    return fwdbwd, torch.where(times < lengths, costs, torch.zeros_like(costs))


def fast_viterbi(
    *,
    am_scores: Tensor,
    am_seq_len: Tensor,
    edges: Tensor,
    weights: Tensor,
    start_end_states: Tensor,
    mask_idx: int = 0,
    n_states: int | Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The best path's classes ``[T, B]`` and its score ``[B]``.

    A weight of +∞, as the packed automata of CTC have it, is no edge. A sequence without a whole
    path has no piece of one: its alignment is ``mask_idx``.

    Args:
        am_scores: ``[T, B, C]``, +log.
        am_seq_len: ``[B]``.
        edges: ``[4, E]``: from, to, class, sequence.
        weights: ``[E]``, +log, added: as in RETURNN of August 2026, and not as the -log weights of
            `fast_baum_welch`. RETURNN 1.20261022 takes -log weights here too: negate those.
        start_end_states: ``[2, B]``.
        mask_idx: What the alignment says beyond a sequence's end.
        n_states: Not used.
    """
    check_tensors("fast_viterbi", am_scores=am_scores, weights=weights)
    lengths = integers("fast_viterbi", "am_seq_len", am_seq_len, am_scores)
    check_axes("fast_viterbi", am_scores=(am_scores, "t b c"), am_seq_len=(lengths, "b"))
    scores = weights.to(am_scores.dtype)
    costs = torch.where(scores == float("inf"), scores, -scores)
    found = ops.fast_viterbi.fast_viterbi(
        am_scores, edges, costs, start_end_states, lengths, mask_idx=mask_idx
    )
    return found.alignment, found.scores


def _time_major(
    op: str, logits: Tensor, logits_seq_lens: Tensor, targets_seq_lens: Tensor, time_major: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A view ``[T, B, C]`` of the logits, and the lengths as our ops take them."""
    frames = integers(op, "logits_seq_lens", logits_seq_lens, logits)
    lengths = integers(op, "targets_seq_lens", targets_seq_lens, logits)
    check_axes(
        op, logits=(logits, "t b c" if time_major else "b t c"), logits_seq_lens=(frames, "b"),
        targets_seq_lens=(lengths, "b"),
    )  # fmt: skip
    return logits if time_major else logits.transpose(0, 1), frames, lengths


def _blank(op: str, logits: Tensor, blank_index: int) -> int:
    """The blank's class, counted from the last if negative."""
    classes = logits.shape[-1]
    if not -classes <= blank_index < classes:
        text = f"`blank_index` is {blank_index}, but must be from {-classes} to {classes - 1}"
        raise RangeError(message(op, f"{text}, the classes of `logits`, where -1 is the last."))
    return blank_index + classes if blank_index < 0 else blank_index


def ctc_best_path(
    *,
    logits: Tensor,
    logits_seq_lens: Tensor,
    targets: Tensor,
    targets_seq_lens: Tensor,
    label_loop: bool = True,
    logits_time_major: bool = False,
    logits_normalize: bool = True,
    blank_index: int = -1,
) -> Tensor:
    """The labels ``[T, B]`` (int32) of the best CTC path of the targets; blanks beyond the end.

    Of paths that are equally good it is the one that `nativeops.forced_align` takes; RETURNN's
    depends on the order of its edges. `get_ctc_fsa_fast_bw` has them in another order, so that of
    equally good paths on it `fast_viterbi` takes another, too.

    Args:
        logits: ``[B, T, C]``, or ``[T, B, C]`` if `logits_time_major`.
        logits_seq_lens: ``[B]``.
        targets: ``[B, S]``.
        targets_seq_lens: ``[B]``.
        label_loop: Whether a label may last longer than a frame.
        logits_time_major: The order of the axes.
        logits_normalize: Whether logits are not yet log-probabilities.
        blank_index: The class of the blank; from the last, if negative.
    """
    op = "returnn.ctc_best_path"  # our op of that name is another function
    check_tensors(op, logits=logits, targets=targets)
    scores, frames, lengths = _time_major(
        op, logits.detach(), logits_seq_lens, targets_seq_lens, logits_time_major
    )
    blank = _blank(op, logits, blank_index)
    scores = scores.log_softmax(-1) if logits_normalize else scores
    found = ops.forced_align.forced_align(
        scores, targets.to(scores.device), frames, lengths, blank=blank, label_loop=label_loop
    )
    return torch.where(found.labels < 0, blank, found.labels).to(torch.int32)


def ctc_loss(
    *,
    logits: Tensor,
    logits_seq_lens: Tensor,
    targets: Tensor,
    targets_seq_lens: Tensor,
    label_loop: bool = True,
    logits_time_major: bool = False,
    logits_normalize: bool = True,
    blank_index: int = -1,
    max_approx: bool = False,
) -> Tensor:
    """-log probability ``[B]`` of the targets, or of their best path, with gradient to the logits.

    A sequence without a path has the loss +∞ and the gradient 0, also with `max_approx`.

    Args:
        logits: ``[B, T, C]``, or ``[T, B, C]`` if `logits_time_major`.
        logits_seq_lens: ``[B]``.
        targets: ``[B, S]``.
        targets_seq_lens: ``[B]``.
        label_loop: Whether a label may last longer than a frame.
        logits_time_major: The order of the axes.
        logits_normalize: Whether logits are not yet log-probabilities.
        blank_index: The class of the blank; from the last, if negative.
        max_approx: The best path instead of all.
    """
    check_tensors("ctc_loss", logits=logits, targets=targets)
    scores, frames, lengths = _time_major(
        "ctc_loss", logits, logits_seq_lens, targets_seq_lens, logits_time_major
    )
    targets, blank = targets.to(scores.device), _blank("ctc_loss", logits, blank_index)
    if max_approx:
        return _best_path_loss(
            scores, targets, frames, lengths, blank, label_loop, logits_normalize
        )
    return _ctc_loss(
        scores, targets, frames, lengths, blank=blank, reduction="none",
        normalized=not logits_normalize, label_loop=label_loop,
    )  # fmt: skip


def _best_path_loss(
    scores: Tensor, targets: Tensor, frames: Tensor, lengths: Tensor,
    blank: int, label_loop: bool, logits_normalize: bool,
) -> Tensor:  # fmt: skip
    """`ctc_loss` with ``max_approx``, time-major."""
    if logits_normalize:  # of zeros beyond the end: there may be anything
        beyond = torch.arange(scores.shape[0], device=scores.device)[:, None] >= frames
        scores = scores.masked_fill(beyond[..., None], 0)
        nothing = (scores == -float("inf")).all(-1, keepdim=True)  # is possible there
        scores = scores.masked_fill(nothing, 0).log_softmax(-1).masked_fill(nothing, -float("inf"))
    found = ops.forced_align.forced_align(
        scores.detach(), targets, frames, lengths, blank=blank, label_loop=label_loop
    )
    picked = scores.gather(-1, found.labels.long().clamp(min=0)[..., None])[..., 0]
    said = torch.where(found.labels >= 0, picked, torch.zeros_like(picked)).sum(0)
    without_frames = (frames == 0) & (lengths > 0)  # such a sequence has no score that is -inf
    score = found.scores.sum(0).masked_fill(without_frames, -float("inf"))
    return torch.where(score.isfinite(), 0 - said, -score)


def ctc_loss_packed(
    *,
    logits: Tensor,
    seq_starts: Tensor,
    logits_seq_lens: Tensor,
    max_seq_len: int | None = None,
    targets: Tensor,
    targets_seq_lens: Tensor,
    label_loop: bool = True,
    logits_normalize: bool = True,
    blank_index: int = -1,
    edges_bound: int | None = None,
) -> Tensor:
    """`ctc_loss` ``[B]`` of sequences without padding, with gradient to the logits.

    The rows of no sequence have the gradient 0, whatever they are. The sequences are padded here:
    this takes memory for ``T · B · C`` more numbers, T being the longest one's frames.

    Args:
        logits: ``[N, C]``.
        seq_starts: ``[B]``: frame t of sequence b is row ``seq_starts[b] + t``. In any order; gaps
            are allowed, common rows not.
        logits_seq_lens: ``[B]``.
        max_seq_len: The longest one's frames, or more; if given, a GPU need not be waited for.
        targets: ``[B, S]``.
        targets_seq_lens: ``[B]``.
        label_loop: Whether a label may last longer than a frame.
        logits_normalize: Whether logits are not yet log-probabilities.
        blank_index: The class of the blank; from the last, if negative.
        edges_bound: Not used: there are no edges.
    """
    op = "ctc_loss_packed"
    check_tensors(op, logits=logits, targets=targets)
    starts = integers(op, "seq_starts", seq_starts, logits)
    frames = integers(op, "logits_seq_lens", logits_seq_lens, logits)
    lengths = integers(op, "targets_seq_lens", targets_seq_lens, logits)
    check_axes(
        op, logits=(logits, "n c"), seq_starts=(starts, "b"), logits_seq_lens=(frames, "b"),
        targets_seq_lens=(lengths, "b"),
    )  # fmt: skip
    _check_packed(len(logits), starts, frames, max_seq_len)
    if max_seq_len is None:
        max_seq_len = int(frames.max()) if len(frames) else 0
    times = torch.arange(min(max_seq_len, len(logits)), device=logits.device)[:, None]
    rows = (starts.to(times) + times).clamp(0, len(logits) - 1)  # beyond an end: any
    padded = logits.index_select(0, rows.flatten()).reshape(*rows.shape, logits.shape[1])
    return ctc_loss(
        logits=padded, logits_seq_lens=frames, targets=targets, targets_seq_lens=lengths,
        label_loop=label_loop, logits_time_major=True, logits_normalize=logits_normalize,
        blank_index=_blank(op, logits, blank_index),
    )  # fmt: skip


def _check_packed(
    rows: int, seq_starts: Tensor, logits_seq_lens: Tensor, max_seq_len: int | None
) -> None:
    """Refuses sequences that do not lie within the rows, or share some, where nobody waits."""
    if not can_read(seq_starts, logits_seq_lens):
        return
    op, starts, lengths = "ctc_loss_packed", seq_starts.tolist(), logits_seq_lens.tolist()
    for b, (start, n) in enumerate(zip(starts, lengths, strict=True)):
        if not 0 <= start <= rows:
            text = f"`seq_starts[{b}]` is {start}, but must be from 0 to {rows}"
            raise RangeError(message(op, f"{text}, the rows of `logits`."))
        if not 0 <= n <= rows - start:
            text = f"`logits_seq_lens[{b}]` is {n}, but must be from 0 to {rows - start}"
            raise RangeError(message(op, f"{text}, the rows of `logits` from its start on."))
        if max_seq_len is not None and n > max_seq_len:
            text = f"`max_seq_len` is {max_seq_len}, but `logits_seq_lens[{b}]` is {n}."
            raise RangeError(message(op, text))
    taken = sorted((start, n, b) for b, (start, n) in enumerate(zip(starts, lengths, strict=True)))
    for (start, n, b), (later, _, _) in pairwise(place for place in taken if place[1]):
        if start + n > later:
            text = f"`logits_seq_lens[{b}]` is {n}, but then row {later} belongs to two sequences."
            raise RangeError(message(op, text))
