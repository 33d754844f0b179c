# SPDX-License-Identifier: Apache-2.0
"""CTC with the arguments of `optax.ctc_loss`."""

from typing import Any

import jax.numpy as jnp

from nativeops.arrays import check_rank
from nativeops.errors import ShapeError, message
from nativeops.ops.ctc_loss import ctc_losses


def ctc_loss(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    *,
    blank_id: int = 0,
    log_epsilon: Any = -1e5,
) -> Any:
    """The losses ``[b]``, as `optax.ctc_loss` has them, computed by `nativeops.ctc_loss`.

    What differs: where no way says the target the loss is infinite and its gradient 0, where
    Optax, with its ``log_epsilon`` for zero, gives a large number. The losses have the dtype of the
    logits. Paddings must be trailing: they are only counted.

    Args:
        logits: ``[b, t, k]``.
        logit_paddings: ``[b, t]``: 1 behind the frames of each sequence, else 0.
        labels: ``int[b, n]``.
        label_paddings: ``[b, n]``: 1 behind the labels of each, else 0.
        blank_id: The class that says nothing.
        log_epsilon: Changes nothing: no logarithm of zero is needed, since impossible ways are
            exactly impossible.
    """
    x, targets = jnp.asarray(logits), jnp.asarray(labels, jnp.int32)
    check_rank("ctc_loss", "logits", x, "b t k")
    check_rank("ctc_loss", "labels", targets, "b n")
    frames = _lengths("logit_paddings", logit_paddings, "logits", x)
    counts = _lengths("label_paddings", label_paddings, "labels", targets)
    return ctc_losses(jnp.swapaxes(x, 0, 1), targets, frames, counts, blank=blank_id).loss


def _lengths(name: str, paddings: Any, other: str, array: Any) -> Any:
    """The sizes that paddings leave. Paddings of fewer frames would leave those frames alone."""
    paddings = jnp.asarray(paddings, jnp.int32)
    if paddings.shape != array.shape[:2]:
        text = f"`{name}` must have the shape {list(array.shape[:2])}, the first two axes of "
        text += f"`{other}`, but has {list(paddings.shape)}."
        raise ShapeError(message("ctc_loss", text))
    return jnp.sum(1 - paddings, 1)
