# SPDX-License-Identifier: Apache-2.0
"""Optional inputs in JAX that are absent: see `absent`."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

_made: dict[Any, Any] = {}  # by rank, dtype, and whether there are 64-bit numbers here


def nothing(rank: int, dtype: Any, arrays: Sequence[Any]) -> Any:
    """The empty array. It is never a traced one, so that all programs can share it."""
    key = rank, dtype, jax.config.jax_enable_x64
    if key not in _made:
        with jax.ensure_compile_time_eval():
            # Without 64-bit numbers it has 32; the dtype of an absent array is not looked at.
            _made[key] = jax.device_put(np.zeros((0,) * rank, dtype))
    return _made[key]
