# SPDX-License-Identifier: Apache-2.0
"""CTC in any framework: the loss with its conventions, and the best path."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from nativeops.arrays import (
    MOST,
    are_plain,
    cast,
    integers,
    is_compiling,
    known,
    like,
    namespace,
)
from nativeops.declare import Array
from nativeops.errors import ArgumentError, RangeError, ShapeError, message
from nativeops.layers._reduction import Reduction, check_reduction, reduced
from nativeops.lists import check_empty, is_list_of_integers
from nativeops.ops.ctc_best_path import CtcBestPath, ctc_best_path
from nativeops.ops.ctc_loss import ctc_losses

Lengths: TypeAlias = Array | Sequence[int] | None


def ctc_loss(
    logits: Array,
    targets: Array,
    input_lengths: Lengths[Array] = None,
    target_lengths: Lengths[Array] = None,
    *,
    blank: int = 0,
    reduction: Reduction = "mean",
    normalized: bool = False,
    label_loop: bool = True,
    zero_infinity: bool = False,
) -> Array:
    """Connectionist temporal classification: how improbable the targets are.

    The loss of a sequence is ``-log Σ_w Π_t p[t, b, w[t]]`` over all ways ``w`` of one class for
    each frame that say the target: those that become it when repeats are merged and then blanks
    removed. ``p = softmax(logits)`` over the classes.

    Args:
        logits: Un-normalised ``[t, b, c]``, in any strides: ``[b, t, c]`` with its first two axes
            swapped is not copied.
        targets: Labels ``int[b, s]``, or of all sequences one behind the other ``int[Σ s]``; from
            0 to ``c - 1`` without ``blank``.
        input_lengths: The number of frames of each sequence, as an array or a list, from 0 to
            ``t``; ``t`` if left away.
        target_lengths: The number of labels of each, likewise; needed for targets one behind the
            other. JAX must know these where it compiles: there a list, which PyTorch, too, compiles
            in one program only so.
        blank: The class that says nothing.
        reduction: ``"none"``: the losses ``[b]``; ``"sum"``: their sum; ``"mean"``: the mean of
            each divided by its number of labels (by 1 if it has none).
        normalized: ``logits`` are logarithms of probabilities already.
        label_loop: Whether repeats are merged. Without, each label takes exactly one frame (RNA).
        zero_infinity: 0 instead of infinity where no way says the target.

    Raises: ``ShapeError`` for arrays that do not fit; ``RangeError`` for a label or a length out of
        its range, on a GPU only for ``blank``: there labels and lengths are kept within bounds.
    NaN: stays in its own sequence.
    Gradient: for ``logits``, fused with the softmax; 0 beyond a length and where no way says
        the target.
    Cost: O(t·b·(c + s)) time; about t·b·(s + 1) numbers while it runs. Where a gradient is needed
        t·b·(s + 4) are kept, and t·b·s/2 doubles at most are needed on the way.
    Same as: ``torch.nn.functional.ctc_loss(log_softmax(logits, 2), ..)``.
    Source: Graves, Fernandez, Gomez & Schmidhuber 2006, Connectionist temporal classification.

    >>> even = np.zeros((2, 1, 3))  # nine ways, of which "1 1", "0 1" and "1 0" say the label 1
    >>> float(np.exp(-nativeops.ctc_loss(even, np.array([[1]]))).round(4))
    0.3333
    """
    check_reduction("ctc_loss", reduction)
    if is_list_of_integers(ctc_losses.signature.inputs[1], targets):
        targets = like(logits, targets, "int32")
    if getattr(targets, "ndim", 0) == 1:  # TensorFlow may not know it: then it must be 2
        late = is_compiling(targets) and target_lengths is not None
        if late and not are_plain(target_lengths):
            from nativeops.frameworks.torch_outside import outside

            targets = outside(_padded, logits, targets, target_lengths)
        else:
            targets = _padded(logits, targets, target_lengths)
    frames = lengths_of("ctc_loss", ctc_losses, "input_lengths", input_lengths, logits)
    labels = lengths_of("ctc_loss", ctc_losses, "target_lengths", target_lengths, logits)
    loss: Array = ctc_losses(
        logits, targets, frames, labels,
        blank=blank, normalized=normalized, label_loop=label_loop, zero_infinity=zero_infinity,
    ).loss  # fmt: skip
    if reduction == "mean":
        loss = _per_label(loss, labels, targets)
    return reduced(loss, reduction)


def ctc_greedy_decode(
    logits: Array,
    input_lengths: Lengths[Array] = None,
    *,
    blank: int = 0,
    label_loop: bool = True,
) -> CtcBestPath[Array]:
    """Greedy decoding of CTC: the best class of each frame, repeats merged, blanks removed.

    ``w[t] = argmax_c logits[t, b, c]``, the first of equals; ``labels[b]`` is what ``w`` says, and
    ``scores[b] = Σ_t log softmax(logits[t, b])[w[t]]``.

    Args:
        logits: Un-normalised ``[t, b, c]``, or logarithms of probabilities, in any strides.
        input_lengths: The number of frames of each sequence, as an array or a list, from 0 to
            ``t``; ``t`` if left away.
        blank: The class that says nothing.
        label_loop: Whether repeats are merged. Without, each frame with a label says one.

    Returns: ``labels int32[b, t]``, -1 behind the ``lengths int32[b]`` first, and ``scores [b]``.
    Raises: ``RangeError`` for a length or a blank out of its range.
    NaN: makes the score of its own sequence NaN; its frame says nothing.
    Gradient: none.
    Cost: O(t·b·c) time.
    Same as: ``tf.nn.ctc_greedy_decoder``, but for the score.
    Source: Graves et al. 2006, Connectionist temporal classification, section 3.2.

    >>> ways = np.eye(3)[[1, 1, 0, 1, 2]][:, None]  # the classes 1 1 0 1 2
    >>> nativeops.ctc_greedy_decode(ways).labels
    array([[ 1,  1,  2, -1, -1]], dtype=int32)
    """
    op = "ctc_greedy_decode"
    frames = lengths_of(op, ctc_losses, "input_lengths", input_lengths, logits)
    return ctc_best_path(logits, frames, blank=blank, label_loop=label_loop)


for _function in (ctc_loss, ctc_greedy_decode):
    vars(_function)["autograph_info__"] = True  # TensorFlow's AutoGraph leaves them as they are


def lengths_of(word: str, op: Any, name: str, values: Any, logits: Any) -> Any:
    """Lengths as an op takes them. None at all for some sequences would count as left away."""
    specs = {spec.name: spec for spec in op.signature.inputs}
    if not is_compiling(logits) and _is_empty(values):
        check_empty(word, specs[name], [(specs["logits"], logits)])
    return integers(word, name, values, logits)


def _is_empty(values: Any) -> bool:
    if isinstance(values, (list, tuple)):
        return not values
    sizes: Any = getattr(values, "shape", ())
    return getattr(sizes, "rank", 1) is not None and list(sizes) == [0]  # TensorFlow's may be None


def _per_label(loss: Any, labels: Any, targets: Any) -> Any:
    """Each loss divided by its number of labels, or by 1."""
    module = namespace(loss)
    late = hasattr(module, "RaggedTensor")  # TensorFlow may know the size only when it runs
    if labels is None and not late:
        size = targets.shape[1]
        if type(size) is int:  # else it is one of JAX's symbols
            return loss / max(size, 1)
        labels = like(loss, [size], "int32")
    labels = module.shape(targets)[1:] if labels is None else labels
    counts = module.maximum(labels, 1) if late else labels.clip(1)
    return loss / cast(counts, loss.dtype)


def _padded(logits: Any, targets: Any, lengths: Any) -> Any:
    """Targets that lie one behind the other, each in a row of its own."""
    if lengths is None:
        text = "`targets` has one axis, so `target_lengths` must say where each one ends."
        raise ArgumentError(message("ctc_loss", text, hint="give it, or `targets` as [b, s]."))
    counts = known("ctc_loss", "target_lengths", lengths)
    if counts is None:
        text = "`targets` has one axis, but `target_lengths` is not known while compiling."
        raise ArgumentError(message("ctc_loss", text, hint="give it as a list."))
    for place, count in enumerate(counts):
        if not 0 <= count <= MOST:
            text = f"`target_lengths[{place}]` is {count}, but must be from 0 to {MOST}."
            raise RangeError(message("ctc_loss", text))
    total, given, module = sum(counts), targets.shape[0], namespace(targets)
    wrong = f"`target_lengths` has the sum {total}, but `targets` has"
    late = hasattr(module, "RaggedTensor")
    if given is None:  # TensorFlow tells it when it runs
        told = message("ctc_loss", f"{wrong} another number of labels.")
        number = module.shape(targets, out_type=module.int64)[0]
        wanted = module.constant(min(total, 2**63 - 1), module.int64)
        fits = module.debugging.assert_equal(number, wanted, told)
        with module.control_dependencies([] if fits is None else [fits]):
            targets = module.identity(targets)
    elif total != given:
        raise ShapeError(message("ctc_loss", f"{wrong} {given} labels."))
    starts = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
    if hasattr(targets, "new_tensor"):
        first = module.tensor(starts, dtype=module.int64, device=targets.device)
        within = module.arange(max(counts, default=0), device=targets.device)
        return targets[(first[:, None] + within).clamp(max=max(total - 1, 0))]
    index = np.add.outer(np.array(starts, np.int64), np.arange(max(counts, default=0)))
    index = np.minimum(index, max(total - 1, 0))
    return module.gather(targets, index) if late else targets[index]
