# SPDX-License-Identifier: Apache-2.0
"""The transducer loss as a module of PyTorch."""

import torch

from nativeops.layers._reduction import Reduction
from nativeops.layers._traced import Leaf
from nativeops.layers.transducer import rnnt_loss
from nativeops.ops.rnnt_loss import Topology


class RNNTLoss(Leaf):
    """Transducer loss with the arguments of `torchaudio.transforms.RNNTLoss`.

    Beyond them: int64 targets and lengths, float64 and half-precision logits, and `topology`.
    """

    def __init__(
        self,
        blank: int = -1,
        clamp: float = -1.0,
        reduction: Reduction = "mean",
        fused_log_softmax: bool = True,
        *,
        topology: Topology = "rnnt",
    ) -> None:
        super().__init__()
        self.blank = blank
        self.clamp = clamp
        self.reduction: Reduction = reduction
        self.fused_log_softmax = fused_log_softmax
        self.topology: Topology = topology

    def forward(
        self,
        logits: torch.Tensor,
        targets: torch.Tensor,
        logit_lengths: torch.Tensor,
        target_lengths: torch.Tensor,
    ) -> torch.Tensor:
        """The loss of ``logits [b, t, u + 1, v]``; see `nativeops.rnnt_loss`."""
        return rnnt_loss(
            logits, targets, logit_lengths, target_lengths, self.blank, self.clamp,
            self.reduction, self.fused_log_softmax, topology=self.topology,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Blank and reduction, and what differs from the defaults."""
        shown = [f"blank={self.blank}", f"reduction={self.reduction!r}"]
        shown += [f"clamp={self.clamp}"] * (self.clamp > 0)
        shown += ["fused_log_softmax=False"] * (not self.fused_log_softmax)
        return ", ".join(shown + [f"topology={self.topology!r}"] * (self.topology != "rnnt"))
