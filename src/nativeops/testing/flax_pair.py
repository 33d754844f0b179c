# SPDX-License-Identifier: Apache-2.0
"""What the tests of layers of Flax, and of ours in their place, share: sizes, numbers, checks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

STEPS, BATCH, INPUTS, UNITS = 5, 4, 3, 6
CELLS = ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell"]
LENGTHS = jnp.array([5, 3, 1, 2])
every_cell = pytest.mark.parametrize("cell", CELLS)


def normal(*shape: int, seed: int = 0) -> Any:
    """Random numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def assert_close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Two trees have the same structure, shapes and dtypes, and nearly the same numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=tolerance, atol=tolerance)


def without_padding(outputs: Any, lengths: Any = LENGTHS) -> Any:
    """Zeros where Flax computes with the padding; of outputs with the batch first."""
    inside = jnp.arange(outputs.shape[-2]) < lengths[..., None]
    return jnp.where(inside[..., None], outputs, 0)
