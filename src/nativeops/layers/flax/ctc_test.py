# SPDX-License-Identifier: Apache-2.0
"""What Optax's function refuses; `layers/ctc_test.py` compares its numbers."""

import re

import jax.numpy as jnp
import pytest

from nativeops.errors import ShapeError
from nativeops.layers.flax.ctc import ctc_loss


@pytest.mark.parametrize(
    ("place", "shape", "text"),
    [
        (0, (2, 3), "`logits` must have 3 axes [b t k], but has 2."),
        (2, (3,), "`labels` must have 2 axes [b n], but has 1."),
        (1, (2, 4), "`logit_paddings` must have the shape [2, 5], the first two axes of `logits`"),
        (3, (2,), "`label_paddings` must have the shape [2, 3], the first two axes of `labels`"),
    ],
)
def test_optax_function_refuses_axes_that_do_not_fit(place, shape, text: str) -> None:
    shapes = [(2, 5, 4), (2, 5), (2, 3), (2, 3)]
    shapes[place] = shape
    with pytest.raises(ShapeError, match=re.escape(f"ctc_loss: {text}")):
        ctc_loss(*map(jnp.zeros, shapes))
