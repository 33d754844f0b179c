# SPDX-License-Identifier: Apache-2.0
"""From the losses of a batch to one number: what the argument `reduction` of losses asks for."""

from typing import Literal, get_args

from nativeops.arrays import mean, total
from nativeops.attributes import AttributeSpec
from nativeops.declare import Array

Reduction = Literal["none", "sum", "mean"]
_REDUCTION = AttributeSpec("reduction", str, choices=get_args(Reduction))


def check_reduction(name: str, reduction: Reduction) -> None:
    """An error in the name of the loss for what is none."""
    _REDUCTION.check(name, reduction)


def reduced(losses: Array, reduction: Reduction) -> Array:
    """The losses, their sum or their mean."""
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else total(losses)
