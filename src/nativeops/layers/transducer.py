# SPDX-License-Identifier: Apache-2.0
"""The transducer loss of a batch, in any framework."""

from collections.abc import Sequence
from typing import Literal, cast

from nativeops.arrays import mean, total
from nativeops.declare import Array
from nativeops.errors import RangeError, message
from nativeops.ops.rnnt_loss import Topology, rnnt_costs

Reduction = Literal["none", "mean", "sum"]


def rnnt_loss(
    logits: Array,
    targets: Array,
    logit_lengths: Array | Sequence[int],
    target_lengths: Array | Sequence[int],
    blank: int = -1,
    clamp: float = -1.0,
    reduction: Reduction = "mean",
    fused_log_softmax: bool = True,
    *,
    topology: Topology = "rnnt",
) -> Array:
    """RNN transducer loss: ``-log`` of the probability of the targets, summed over all alignments.

    Args:
        logits: The joint network's outputs ``[b, t, u + 1, v]``.
        targets: The labels ``[b, u]``, int32 or int64.
        logit_lengths: The frames of each sequence ``[b]``: a list, or an array of integers.
        target_lengths: The labels of each sequence ``[b]``, likewise.
        blank: The blank among the ``v`` symbols; -1 is the last one.
        clamp: Bounds each number of a sequence's gradient to ``[-clamp, clamp]`` where above 0.
        reduction: "none" returns ``[b]``, "sum" and "mean" one number, over the sequences.
        fused_log_softmax: ``logits`` are to be normalised; else they are log-probabilities.
        topology: "rnnt" (Graves), or "monotonic" or "rna", where each frame gives one symbol.

    Returns: The loss; +inf of a sequence without an alignment, whose gradient is 0.
    Raises: As `rnnt_costs`, the op that computes it; ``RangeError`` for an unknown reduction.
    NaN: stays in its own sequence.
    Gradient: for ``logits``.
    Cost: As `rnnt_costs`.
    Same as: ``torchaudio.functional.rnnt_loss``, argument for argument.
    Source: Graves 2012, Sequence transduction with recurrent neural networks.

    >>> logits, targets = np.zeros((2, 3, 2, 4)), np.array([[1], [2]])
    >>> nativeops.rnnt_loss(logits, targets, [3, 2], [1, 1], reduction="none").round(4)
    array([4.4466, 3.4657])
    """
    if reduction not in ("none", "mean", "sum"):
        text = f'`reduction` must be "none", "mean" or "sum", but is {reduction!r}.'
        raise RangeError(message("rnnt_loss", text))
    costs: Array = rnnt_costs(
        logits, targets, cast(Array, logit_lengths), cast(Array, target_lengths),
        blank=blank, clamp=clamp, fused_log_softmax=fused_log_softmax, topology=topology,
    ).costs  # fmt: skip
    return costs if reduction == "none" else mean(costs) if reduction == "mean" else total(costs)


vars(rnnt_loss)["autograph_info__"] = True  # TensorFlow's AutoGraph leaves it as it is
