# SPDX-License-Identifier: Apache-2.0
"""Pairwise L1 (Manhattan) distance between two sets of vectors."""

from typing import Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, op


@op(kernel="pairwise_l1.h", independent="n m")
def pairwise_l1(x: Float[Array, "*b n d"], y: Float[Array, "*b m d"]) -> Float[Array, "*b n m"]:
    """Distance between every vector of ``x`` and every vector of ``y``.

    ``out[i, j] = Σ_k |x[i, k] - y[j, k]|``, in the unit of ``x``.

    Args:
        x: First set: ``n`` vectors of ``d`` numbers, in any unit.
        y: Second set: ``m`` vectors of ``d`` numbers, in the same unit.

    NaN: a NaN in a vector makes all distances from it NaN, and no others.
    Gradient: for ``x`` and ``y``, in one pass; ``sign(0) = 0`` where two numbers are equal.
    Accuracy: in float32 and float64 each distance within about 8·√d + 8 units of its own last
        place unless its numbers are all alike, also that of close vectors of large numbers; float16
        and bfloat16 are rounded once. The last digits may depend on what else is in the call.
    Cost: O(n·m·d) time; no memory beyond the result, at most 32 MB of workspace.
    Same as: ``scipy.spatial.distance.cdist(x, y, "cityblock")``, ``torch.cdist(x, y, p=1)``.
    Source: the definition; see Deza & Deza, Encyclopedia of Distances (2009), section 5.1.

    >>> pairwise_l1(np.array([[0.0, 0.0]]), np.array([[1.0, 2.0], [0.0, 3.0]]))
    array([[3., 3.]])
    """
    return np.abs(x[..., :, None, :] - y[..., None, :, :]).sum(-1)


class PairwiseL1Grad(NamedTuple, Generic[Array]):
    """The gradients of both arguments of `pairwise_l1`."""

    d_x: Float[Array, "*b n d"] | None
    d_y: Float[Array, "*b m d"] | None


@op(kernel="pairwise_l1.h", independent="n m")
def pairwise_l1_grad(
    x: Float[Array, "*b n d"], y: Float[Array, "*b m d"], d_out: Float[Array, "*b n m"]
) -> PairwiseL1Grad[Array]:
    """What flows back through `pairwise_l1` into its arguments.

    ``d_x[i, k] =  Σ_j d_out[i, j] · sign(x[i, k] - y[j, k])``
    ``d_y[j, k] = -Σ_i d_out[i, j] · sign(x[i, k] - y[j, k])``

    Args:
        x: As given to `pairwise_l1`.
        y: As given to `pairwise_l1`.
        d_out: The gradient that arrives at the distances.

    Returns: ``d_x`` and ``d_y``; ``only(["d_x"])`` of the op makes one, the other is None.
    NaN: where a difference is NaN its sign is NaN.
    Gradient: none; it is constant almost everywhere.
    Cost: O(n·m·d) time for both together; no memory beyond the results, at most 32 MB workspace.
    Same as: the gradient of ``torch.cdist(x, y, p=1)``.

    >>> pairwise_l1_grad(np.array([[0.0]]), np.array([[2.0]]), np.array([[10.0]])).d_x
    array([[-10.]])
    """
    signs = np.sign(x[..., :, None, :] - y[..., None, :, :])
    d_x = (d_out[..., None] * signs).sum(-2)
    return PairwiseL1Grad(d_x, -(d_out[..., None] * signs).sum(-3))


@pairwise_l1.gradient
def _(x, y, d_out, needs):  # type: ignore[no-untyped-def]
    return pairwise_l1_grad.only(needs)(x, y, d_out)
