# SPDX-License-Identifier: Apache-2.0
"""The same map and the same sum, as text for CUDA and with the loops of this package."""

import numpy as np

from nativeops.declare import Array, Float32, op


@op(kernel="cuda_style.h")
def softsign_raw(x: Float32[Array, "n"]) -> Float32[Array, "n"]:
    """``out[i] = x[i] / (1 + |x[i]|)``, with a stride over the whole grid."""
    return x / (1 + np.abs(x))


@op(kernel="cuda_style.h")
def softsign_range(x: Float32[Array, "n"]) -> Float32[Array, "n"]:
    """The same, with ``range``."""
    return x / (1 + np.abs(x))


@op(kernel="cuda_style.h")
def softsign_each(x: Float32[Array, "n"]) -> Float32[Array, "n"]:
    """The same, with ``for_each``."""
    return x / (1 + np.abs(x))


@op(kernel="cuda_style.h")
def total_raw(x: Float32[Array, "n"]) -> Float32[Array, ""]:
    """``out = Σ x[i]``, with shuffles, shared memory and an atomic sum."""
    return x.sum()


@op(kernel="cuda_style.h")
def total_team(x: Float32[Array, "n"]) -> Float32[Array, ""]:
    """The same, with teams."""
    return x.sum()
