# SPDX-License-Identifier: Apache-2.0
"""The transducer loss of a batch, in any framework."""

from collections.abc import Sequence
from typing import cast

from nativeops.declare import Array
from nativeops.layers._reduction import Reduction, check_reduction, reduced
from nativeops.ops.rnnt_loss import Topology, rnnt_costs


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
    check_reduction("rnnt_loss", reduction)
    costs: Array = rnnt_costs(
        logits, targets, cast(Array, logit_lengths), cast(Array, target_lengths),
        blank=blank, clamp=clamp, fused_log_softmax=fused_log_softmax, topology=topology,
    ).costs  # fmt: skip
    return reduced(costs, reduction)


vars(rnnt_loss)["autograph_info__"] = True  # TensorFlow's AutoGraph leaves it as it is
