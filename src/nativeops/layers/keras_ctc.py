# SPDX-License-Identifier: Apache-2.0
"""A drop-in for `keras.losses.CTC` of Keras 3, with PyTorch, JAX and TensorFlow behind Keras."""

from typing import Any

import keras
from keras import ops

from nativeops.arrays import check_rank
from nativeops.ops.ctc_loss import ctc_losses


@keras.saving.register_keras_serializable("nativeops")
class CTC(keras.losses.CTC):  # type: ignore[misc]
    """`keras.losses.CTC`, computed by `nativeops.ctc_loss`: 0 is the blank, and pads labels.

    What differs: where no way says the target the loss is infinite and its gradient 0, where Keras
    has a large number, which is another one in each backend.

    XLA in TensorFlow runs no ops from outside, and Keras chooses it where TensorFlow has a GPU:
    there give `Model.compile` ``jit_compile=False``.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The losses of labels ``[b, s]`` and logits ``[b, t, c]``."""
        labels = ops.cast(y_true, "int32")
        lengths = ops.sum(ops.cast(ops.not_equal(labels, 0), "int32"), axis=-1)
        logits = ops.convert_to_tensor(y_pred)
        check_rank("CTC", "y_pred", logits, "b t c")
        logits = ops.transpose(logits, (1, 0, 2))
        return ctc_losses(logits, labels, None, ops.cast(lengths, "int32")).loss
