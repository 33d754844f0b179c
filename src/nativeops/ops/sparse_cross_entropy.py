# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of softmax against sparse targets, with its gradient."""

from typing import Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Bool, Float, Int, op
from nativeops.ops.sparse import entries_of, numbers_of, places


class CrossEntropy(NamedTuple, Generic[Array]):
    """The loss, its gradient, and the largest logits of `cross_entropy_softmax_..._sparse`."""

    loss: Float[Array, "t b"]
    grad_z: Float[Array, "t b d"]
    max_z: Float[Array, "t b"]


@op(kernel="sparse_cross_entropy.h")
def cross_entropy_softmax_and_gradient_sparse(
    z: Float[Array, "t b d"],
    time: Int[Array, "n b"],
    label: Int[Array, "n b"],
    weight: Float[Array, "n b"],
    mask: Bool[Array, "n b"] | None = None,
    z_mask: Bool[Array, "t b"] | None = None,
) -> CrossEntropy[Array]:
    """Cross entropy of softmax against sparse targets, with its gradient, in one pass.

    ``loss[t, b] = -Σ_i weight[i] · log softmax(z[t, b])[label[i]]`` over the entries of frame
    ``t``, and ``grad_z = softmax(z) · Σ_i weight[i] - Σ_i weight[i] · onehot(label[i])``.

    Args:
        z: Logits.
        time: The frame of each target, from 0 to ``t - 1``.
        label: The label of each target, from 0 to ``d - 1``.
        weight: The probability of each target; the weights of a frame need not sum to one.
        mask: Which targets take part. All if left away.
        z_mask: Which frames take part: loss and gradient are 0 elsewhere. All if left away.

    Returns: ``loss``, ``grad_z``, and ``max_z``, the largest logit of each frame.
    NaN: stays in its own frame. A label without any probability costs infinity, or nothing with the
        weight 0. Logits that are all -inf have no softmax, so NaN. On CUDA a target
        out of range makes the loss of the nearest frame NaN; on the CPU it is an error.
    Gradient: for ``z`` and ``weight``, also through ``grad_z`` and ``max_z``.
    Cost: O(t·b·d + n·b) time; a workspace of b·(t + n) integers.
    Same as: ``torch.nn.functional.cross_entropy`` with dense target probabilities. RETURNN's
        ``CrossEntropySoftmaxAndGradientZSparse`` where weights sum to 1, all frames have some, and
        no probability is below 1e-30.
    Source: the definition; RETURNN's native ops (Zeyer et al. 2018, RETURNN as a generic flexible
        neural toolkit with application to translation and speech recognition).

    >>> one = np.zeros((1, 1), int)
    >>> made = cross_entropy_softmax_and_gradient_sparse(np.zeros((1, 1, 2)), one, one, one + 1.0)
    >>> made.loss.round(4), made.grad_z
    (array([[0.6931]]), array([[[-0.5,  0.5]]]))
    """
    largest, log_sum = z.max(-1, initial=-np.inf), _log_sum(z)
    grad_z, loss = np.zeros_like(z), np.zeros(z.shape[:2], z.dtype)
    for i, b in entries_of(mask, time):
        t, j, w = time[i, b], label[i, b], weight[i, b]
        if z_mask is None or z_mask[t, b]:
            loss[t, b] += _weighed(w, log_sum[t, b] - z[t, b, j])
            grad_z[t, b] += w * np.exp(z[t, b] - log_sum[t, b])
            grad_z[t, b, j] -= w
    return CrossEntropy(loss, grad_z, largest)


def _weighed(weight: Any, x: Any) -> Any:
    return 0 if weight == 0 and x == np.inf else weight * x


def _log_sum(z: Any) -> Any:
    largest = z.max(-1, initial=-np.inf)
    return largest + np.log(np.exp(z - largest[..., None]).sum(-1))


class CrossEntropyGrad(NamedTuple, Generic[Array]):
    """The gradients of `cross_entropy_softmax_and_gradient_sparse`."""

    d_z: Float[Array, "t b d"] | None
    d_weight: Float[Array, "n b"] | None


@op(kernel="sparse_cross_entropy.h")
def cross_entropy_softmax_and_gradient_sparse_grad(
    z: Float[Array, "t b d"],
    time: Int[Array, "n b"],
    label: Int[Array, "n b"],
    weight: Float[Array, "n b"],
    grad_z: Float[Array, "t b d"],
    d_loss: Float[Array, "t b"],
    d_grad_z: Float[Array, "t b d"],
    d_max_z: Float[Array, "t b"],
    mask: Bool[Array, "n b"] | None = None,
    z_mask: Bool[Array, "t b"] | None = None,
) -> CrossEntropyGrad[Array]:
    """What flows back through `cross_entropy_softmax_and_gradient_sparse`.

    ``d_z = d_loss · grad_z + W · p·(v - p·v)``, and ``d_max_z`` at the first largest logit;
    ``d_weight[i] = -d_loss · log p[label[i]] + p·v - v[label[i]]``. Here ``p = softmax(z[t, b])``,
    ``W = Σ_i weight[i]`` of the frame and ``v = d_grad_z[t, b]``.

    Args:
        z: As given to the op.
        time: As given to the op.
        label: As given to the op.
        weight: As given to the op.
        grad_z: As the op returned it.
        d_loss: The gradient that arrives at the losses.
        d_grad_z: The gradient that arrives at ``grad_z``.
        d_max_z: The gradient that arrives at ``max_z``.
        mask: As given to the op.
        z_mask: As given to the op.

    NaN: stays in its own frame.
    Gradient: none.
    Cost: O(t·b·d + n·b) time, without exponentials where ``d_grad_z`` is 0 and ``d_weight`` is not
        wanted; a workspace of b·(t + n) integers.
    Same as: the gradient of ``torch.nn.functional.cross_entropy`` where only ``d_loss`` arrives.

    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1), int)
    >>> given = (np.zeros((1, 1, 2)), zero, zero, one, np.array([[[-0.5, 0.5]]]), one)
    >>> cross_entropy_softmax_and_gradient_sparse_grad(*given, np.zeros((1, 1, 2)), 0 * one).d_z
    array([[[-0.5,  0.5]]])
    """
    log_sum = _log_sum(z)
    p = np.exp(z - log_sum[..., None])
    pv = (p * d_grad_z).sum(-1)
    d_z, d_weight = d_loss[..., None] * grad_z, np.zeros_like(weight)
    for i, b in entries_of(mask, time):
        t, j, w = time[i, b], label[i, b], weight[i, b]
        if z_mask is None or z_mask[t, b]:
            d_z[t, b] += w * p[t, b] * (d_grad_z[t, b] - pv[t, b])
            d_weight[i, b] = _weighed(d_loss[t, b], log_sum[t, b] - z[t, b, j])
            d_weight[i, b] += pv[t, b] - d_grad_z[t, b, j]
    if z.shape[2]:
        first = np.arange(z.shape[2]) == z.argmax(-1)[..., None]
        d_z += first * d_max_z[..., None]
    return CrossEntropyGrad(d_z, d_weight)


@cross_entropy_softmax_and_gradient_sparse.gradient
def _(  # type: ignore[no-untyped-def]
    z, time, label, weight, grad_z, mask, z_mask, d_loss, d_grad_z, d_max_z, needs
):  # fmt: skip
    return cross_entropy_softmax_and_gradient_sparse_grad.only(needs)(
        z, time, label, weight, grad_z, d_loss, d_grad_z, d_max_z, mask, z_mask
    )  # fmt: skip


@cross_entropy_softmax_and_gradient_sparse.example
def _(random, given):  # type: ignore[no-untyped-def]
    frames = random.random((given["t"], given["b"])) < 0.8
    numbers = numbers_of(random, given, z="tbd", weight="nb")
    return {**numbers, **places(random, given), "z_mask": frames}


@cross_entropy_softmax_and_gradient_sparse_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    words = {"z": "tbd", "weight": "nb", "grad_z": "tbd", "d_loss": "tb", "d_grad_z": "tbd"}
    numbers = numbers_of(random, given, **words, d_max_z="tb")
    frames = random.random((given["t"], given["b"])) < 0.8
    return {**numbers, **places(random, given), "z_mask": frames}
