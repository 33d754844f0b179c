# SPDX-License-Identifier: Apache-2.0
"""What a gradient rule gave that is not one gradient for each input."""

from collections.abc import Mapping, Sequence
from typing import Any


def gradients_word(gradients: Sequence[Any]) -> str:
    """What a gradient rule gave that is not one gradient for each input."""
    if len(gradients) == 1 and (gradients[0] is None or isinstance(gradients[0], Mapping)):
        return "nothing" if gradients[0] is None else "a dict"
    return f"{len(gradients)} gradients"


def wrong_gradients(op: str, gradients: Sequence[Any], wanted: int) -> TypeError:
    """The error for a gradient rule that did not give one gradient for each of its inputs."""
    text = f"{op}: the gradient rule gave {gradients_word(gradients)} for {wanted} inputs"
    return TypeError(f"{text}: give one gradient for each, in order")
