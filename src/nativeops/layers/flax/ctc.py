# SPDX-License-Identifier: Apache-2.0
"""CTC with the arguments of `optax.ctc_loss`."""

from typing import Any

import jax.numpy as jnp

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
    lengths = (jnp.sum(1 - jnp.asarray(p, jnp.int32), 1) for p in (logit_paddings, label_paddings))
    time_major = jnp.swapaxes(jnp.asarray(logits), 0, 1)
    return ctc_losses(time_major, jnp.asarray(labels, jnp.int32), *lengths, blank=blank_id).loss
