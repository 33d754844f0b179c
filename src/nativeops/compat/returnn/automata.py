# SPDX-License-Identifier: Apache-2.0
"""RETURNN's ops on automata, for PyTorch.

What differs in all of them: any floating dtype is computed in, and returned as, itself; wrong
states, classes, lengths and targets are errors on the CPU; frames may go beyond the longest
sequence; batches, times and targets may be empty; a sequence without any path has the cost +∞, not
0; NaN is not swallowed; no argument is written to. ``n_states`` is not needed.
"""

from typing import Any

import torch

from nativeops import ops

__all__ = [
    "ctc_best_path",
    "ctc_loss",
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
    lengths = seq_lens.to(targets.device, targets.dtype)
    options: Any = {"blank": blank_idx, "label_loop": label_loop}
    if edges_bound is None:
        every = ops.ctc_fsa.ctc_fsa(targets, lengths, **options)
        return every.edges, every.weights, every.start_end_states
    inside = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
    packed = ops.ctc_fsa.ctc_fsa_packed(targets[inside], lengths, **options)
    missing = edges_bound - packed.weights.shape[0]
    if missing < 0:
        needed = packed.weights.shape[0]
        raise ValueError(
            f"get_ctc_fsa_fast_bw: `edges_bound` is {edges_bound}, but {needed} are needed."
        )
    edges = torch.nn.functional.pad(packed.edges, (0, missing))
    weights = torch.nn.functional.pad(packed.weights, (0, missing), value=float("inf"))
    return edges, weights, packed.start_end_states


def _lengths(seq_mask: Tensor, op: str) -> Tensor:
    """How many frames each sequence of a mask ``[T, B]`` has."""
    mask = seq_mask > 0.5 if seq_mask.is_floating_point() else seq_mask.bool()
    if mask.device.type == "cpu" and mask.shape[0] > 1 and (mask[1:] & ~mask[:-1]).any():
        raise ValueError(f"{op}: `seq_mask` has a gap: each sequence must be at the beginning.")
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
    lengths = _lengths(seq_mask, "fast_baum_welch").to(am_scores.device)
    weights = weights.to(am_scores.dtype)
    fwdbwd, costs = ops.fast_baum_welch.fast_baum_welch(
        am_scores, edges, weights, start_end_states, lengths
    )
    return fwdbwd, costs


def fast_baum_welch_packed(
    *,
    am_scores: Tensor,
    seq_mask: Tensor,
    seq_starts: Tensor,
    edges: Tensor,
    weights: Tensor,
    start_end_states: Tensor,
    n_states: int | Tensor | None = None,
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
    """
    lengths = _lengths(seq_mask, "fast_baum_welch_packed").to(am_scores.device)
    fwdbwd, costs = ops.fast_baum_welch.fast_baum_welch_packed(
        am_scores, seq_starts.to(lengths), lengths, edges, weights.to(am_scores.dtype),
        start_end_states,
    )  # fmt: skip
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
) -> tuple[Tensor, Tensor]:
    """The best path's classes ``[T, B]`` and its score ``[B]``.

    A weight of +∞, as the packed automata of CTC have it, is no edge. A sequence without a whole
    path has no piece of one: its alignment is ``mask_idx``.

    Args:
        am_scores: ``[T, B, C]``, +log.
        am_seq_len: ``[B]``.
        edges: ``[4, E]``: from, to, class, sequence.
        weights: ``[E]``, +log: these are not the -log weights of `fast_baum_welch`.
        start_end_states: ``[2, B]``.
        mask_idx: What the alignment says beyond a sequence's end.
    """
    scores = weights.to(am_scores.dtype)
    costs = torch.where(scores == float("inf"), scores, -scores)
    lengths = am_seq_len.to(am_scores.device, torch.int32)
    alignment, best = ops.fast_viterbi.fast_viterbi(
        am_scores, edges, costs, start_end_states, lengths, mask_idx=mask_idx
    )
    return alignment, best


def _time_major(
    logits: Tensor, logits_time_major: bool, logits_normalize: bool, blank_index: int
) -> tuple[Tensor, int]:
    """Log-probabilities ``[T, B, C]``, and the blank's class, counted from the last if negative."""
    scores = logits if logits_time_major else logits.transpose(0, 1)
    scores = scores.log_softmax(-1) if logits_normalize else scores
    return scores, blank_index + scores.shape[-1] if blank_index < 0 else blank_index


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
    scores, blank = _time_major(logits.detach(), logits_time_major, logits_normalize, blank_index)
    kind = targets.to(scores.device)
    lengths = (n.to(scores.device, targets.dtype) for n in (logits_seq_lens, targets_seq_lens))
    found = ops.forced_align.forced_align(
        scores, kind, *lengths, blank=blank, label_loop=label_loop
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
    scores, blank = _time_major(
        logits, logits_time_major, logits_normalize and max_approx, blank_index
    )
    targets = targets.to(scores.device)
    frames, lengths = (n.to(targets) for n in (logits_seq_lens, targets_seq_lens))
    if max_approx:
        found = ops.forced_align.forced_align(
            scores.detach(), targets, frames, lengths, blank=blank, label_loop=label_loop
        )
        picked = scores.gather(-1, found.labels.long().clamp(min=0)[..., None])[..., 0]
        said = torch.where(found.labels >= 0, picked, torch.zeros_like(picked)).sum(0)
        none = found.scores.detach().sum(0) == -float("inf")
        return torch.where(none, torch.full_like(said, float("inf")), -said)
    fsa = ops.ctc_fsa.ctc_fsa(targets, lengths, blank=blank, label_loop=label_loop)
    weights = fsa.weights.to(scores.dtype)
    return ops.fsa_loss.fsa_loss(
        scores, fsa.edges, weights, fsa.start_end_states, frames.to(torch.int32),
        normalized=not logits_normalize,
    )  # fmt: skip
