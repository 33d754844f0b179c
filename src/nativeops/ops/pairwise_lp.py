# SPDX-License-Identifier: Apache-2.0
"""Pairwise Lp (Minkowski) distance between two sets of vectors."""

from typing import Annotated, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, Float, op

Power = Annotated[float, AtLeast(1)]


@op(kernel="pairwise_lp.h", independent="n m")
def pairwise_lp(
    x: Float[Array, "*b n d"], y: Float[Array, "*b m d"], *, p: Power = 2.0
) -> Float[Array, "*b n m"]:
    """Minkowski distance between every vector of ``x`` and every vector of ``y``.

    ``out[i, j] = (Σ_k |x[i, k] - y[j, k]|^p)^(1/p)``,
    for ``p = inf`` the limit ``max_k |x[i, k] - y[j, k]|``.

    Args:
        x: First set: ``n`` vectors of ``d`` numbers, in any unit.
        y: Second set: ``m`` vectors of ``d`` numbers, in the same unit.
        p: The power, from 1 to infinity. 1, 2 and infinity are fastest.

    NaN: a NaN in a vector makes all distances from it NaN, and no others.
    Gradient: for ``x`` and ``y``; 0 where two vectors are equal. For ``p = inf`` it is shared
        equally among the numbers that attain the maximum.
    Accuracy: for p = 1 and 2 as that of `pairwise_l1`.
    Cost: O(n·m·d) time; no memory beyond the result, at most 32 MB of workspace; n·m numbers of it
        for bf16 and float16 where p is not 1, 2 or infinity.
    Same as: ``scipy.spatial.distance.cdist(x, y, "minkowski", p=p)``, ``torch.cdist(x, y, p=p)``;
        without overflow where only a power of a difference would overflow.
    Source: the definition; see Deza & Deza, Encyclopedia of Distances (2009), section 5.1.

    >>> pairwise_lp(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]), p=2.0)
    array([[5.]])
    """
    difference = np.abs(x[..., :, None, :] - y[..., None, :, :])
    largest = difference.max(-1, initial=0)
    if np.isinf(p):
        return largest
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1)
    return scale * ((difference / scale[..., None]) ** p).sum(-1) ** (1 / p)


class PairwiseLpGrad(NamedTuple, Generic[Array]):
    """The gradients of both arguments of `pairwise_lp`."""

    d_x: Float[Array, "*b n d"] | None
    d_y: Float[Array, "*b m d"] | None


@op(kernel="pairwise_lp.h", independent="n m")
def pairwise_lp_grad(
    x: Float[Array, "*b n d"],
    y: Float[Array, "*b m d"],
    out: Float[Array, "*b n m"],
    d_out: Float[Array, "*b n m"],
    *,
    p: Power = 2.0,
) -> PairwiseLpGrad[Array]:
    """What flows back through `pairwise_lp` into its arguments.

    ``d_x[i, k] = Σ_j d_out[i, j] · sign(e) · (|e| / out[i, j])^(p-1)``, ``e = x[i, k] - y[j, k]``,
    and ``d_y[j, k]`` is minus the same, summed over ``i``. A term is 0 where ``out`` is 0. Where
    vectors are farther apart than the dtype holds, terms are 0 too: for p = 2 where ``out`` is
    infinite, for other p than 1 and infinity where a difference is.

    Args:
        x: As given to `pairwise_lp`.
        y: As given to `pairwise_lp`.
        out: The distances that `pairwise_lp` returned.
        d_out: The gradient that arrives at the distances.
        p: As given to `pairwise_lp`.

    Returns: ``d_x`` and ``d_y``; ``only(["d_x"])`` of the op makes one, the other is None.
    NaN: where a difference is NaN its terms are NaN.
    Gradient: none.
    Cost: O(n·m·d) time; beyond the results n·m numbers of workspace for ``p = inf``, on the CPU
        for 2 as well if that is at most 256 MB, and 2·n·m for other p than 1, where ``out`` is not
        read: distances are formed again.
    Same as: the gradient of ``torch.cdist(x, y, p=p)``.

    >>> x, y = np.zeros((1, 2)), np.array([[3.0, 4.0]])
    >>> pairwise_lp_grad(x, y, np.array([[5.0]]), np.ones((1, 1))).d_x
    array([[-0.6, -0.8]])
    """
    e = x[..., :, None, :] - y[..., None, :, :]
    distance = np.where(out == 0, 1, out)[..., None]
    if np.isinf(p):
        attained = np.abs(e) == distance
        share = attained / np.maximum(attained.sum(-1, keepdims=True), 1)
    else:
        if p not in (1, 2):  # again, as its rounding would be magnified
            distance = pairwise_lp.reference(x, y, p=p)[..., None]
        flat = (distance == 0) | (np.isinf(distance) & (p != 1)) | (e == 0)
        # By logarithms: the quotient itself may be lost.
        logs = np.log(np.where(flat, 1, np.abs(e))) - np.log(np.where(flat, 1, distance))
        share = np.where(flat, 0, np.exp((p - 1) * logs))
    terms = d_out[..., None] * np.where(out[..., None] == 0, 0, np.sign(e) * share)
    return PairwiseLpGrad(terms.sum(-2), -terms.sum(-3))


@pairwise_lp_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    x = random.standard_normal((*given["b"], given["n"], given["d"]))
    y = random.standard_normal((*given["b"], given["m"], given["d"]))
    out = pairwise_lp.reference(x, y, p=given["p"])
    return {"x": x, "y": y, "out": out, "d_out": random.standard_normal(out.shape)}


@pairwise_lp.gradient
def _(x, y, out, d_out, p, needs):  # type: ignore[no-untyped-def]
    return pairwise_lp_grad.only(needs)(x, y, out, d_out, p=p)
