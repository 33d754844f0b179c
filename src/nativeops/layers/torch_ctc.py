# SPDX-License-Identifier: Apache-2.0
"""A drop-in for `torch.nn.CTCLoss`."""

from typing import Any, cast

import torch

from nativeops.layers._reduction import Reduction
from nativeops.layers._traced import Leaf
from nativeops.layers.ctc import ctc_loss


class CTCLoss(Leaf, torch.nn.CTCLoss):
    """`torch.nn.CTCLoss`, computed by `nativeops.ctc_loss`.

    Arguments and results are PyTorch's, for a batch or one sequence, with targets padded or one
    behind the other. What differs: the gradient is that of the loss, where PyTorch adds the
    softmax's, so behind `log_softmax` both are the same; it is 0 where no way says the target, not
    NaN; a length may be 0; half precision is taken; and a label that is ``blank``, or lengths with
    two axes, are refused.

    Args:
        blank: The class that says nothing.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        zero_infinity: 0 instead of infinity where no way says the target.
        normalized: False to give logits instead of the results of `log_softmax`: faster, and
            needs less memory.
        label_loop: False for targets whose every label takes exactly one frame.

    >>> from nativeops.layers.torch import CTCLoss
    >>> CTCLoss(blank=1)
    CTCLoss()
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        *,
        normalized: bool = True,
        label_loop: bool = True,
    ) -> None:
        super().__init__(blank, reduction, zero_infinity)
        self.normalized, self.label_loop = normalized, label_loop

    def forward(
        self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any
    ) -> torch.Tensor:
        """The loss; see `torch.nn.CTCLoss`."""
        if targets.dtype not in (torch.int32, torch.int64):  # as PyTorch's
            targets = targets.long()
        alone = log_probs.dim() == 2
        if alone:
            log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
            input_lengths, target_lengths = _one(input_lengths), _one(target_lengths)
        loss: torch.Tensor = ctc_loss(
            log_probs, targets, input_lengths, target_lengths,
            blank=self.blank, reduction=cast(Reduction, self.reduction),
            zero_infinity=self.zero_infinity,
            normalized=self.normalized, label_loop=self.label_loop,
        )  # fmt: skip
        return loss[0] if alone and self.reduction == "none" else loss

    def extra_repr(self) -> str:
        """What differs from PyTorch's loss."""
        shown = ["normalized=False"] * (not self.normalized)
        return ", ".join(shown + ["label_loop=False"] * (not self.label_loop))


def _one(length: Any) -> Any:
    """The length of one sequence as that of a batch."""
    return (
        length.reshape(1) if isinstance(length, torch.Tensor) else torch.as_tensor(length).view(1)
    )
