# SPDX-License-Identifier: Apache-2.0
"""Small sparse ops: numbers at places (time, sequence, label) of a dense array ``[t, b, d]``.

Entries are given per sequence: entry ``i`` of sequence ``b`` has a time, a label and a weight; a
mask says which entries take part. One that does must lie within the array.
"""

from typing import Any, Generic, NamedTuple, cast

import numpy as np

from nativeops.declare import Array, Bool, Float, Int, op


@op(kernel="sparse.h", autocast="keep")
def subtensor_batched_index(
    x: Float[Array, "t b d"], index: Int[Array, "t b"]
) -> Float[Array, "t b"]:
    """One number of each vector, picked by its index.

    ``out[t, b] = x[t, b, index[t, b]]``.

    Args:
        x: The vectors.
        index: Which number, from 0 to ``d - 1``. Of vectors without numbers it is 0 that is picked.

    NaN: of the numbers that are picked only. On CUDA also where the index is out of range; on the
        CPU that is an error.
    Gradient: for ``x``.
    Cost: O(t·b) time; no memory beyond the result.
    Same as: ``numpy.take_along_axis``, ``torch.gather``. RETURNN's ``SubtensorBatchedIndex``.
    Source: the definition; RETURNN's native ops (Zeyer et al. 2018, RETURNN as a generic flexible
        neural toolkit with application to translation and speech recognition).

    >>> subtensor_batched_index(np.array([[[1.0, 2.0], [3.0, 4.0]]]), np.array([[1, 0]]))
    array([[2., 3.]])
    """
    if x.shape[2] == 0:
        return cast(Any, np.zeros(index.shape, x.dtype))
    return cast(Any, np.take_along_axis(x, index[..., None], -1)[..., 0])


@op(kernel="sparse.h", autocast="keep")
def subtensor_batched_index_grad(
    index: Int[Array, "t b"], d_picked: Float[Array, "t b"], *, d: int
) -> Float[Array, "t b d"]:
    """What flows back through `subtensor_batched_index`.

    ``d_x[t, b, j] = d_picked[t, b]`` where ``j = index[t, b]``, else 0.

    Args:
        index: As given to `subtensor_batched_index`.
        d_picked: The gradient that arrives at the picked numbers.
        d: The size of a vector.

    Gradient: for ``d_picked``: `subtensor_batched_index`.
    Cost: O(t·b·d) time; no memory beyond the result.
    Same as: ``numpy.put_along_axis`` into zeros.

    >>> subtensor_batched_index_grad(np.array([[1]]), np.array([[5.0]]), d=3)
    array([[[0., 5., 0.]]])
    """
    return cast(Any, np.where(np.arange(d) == index[..., None], d_picked[..., None], 0))


@subtensor_batched_index.gradient
def _(x, index, d_out):  # type: ignore[no-untyped-def]
    return subtensor_batched_index_grad(index, d_out, d=x.shape[2])


@subtensor_batched_index_grad.gradient
def _(index, d_out):  # type: ignore[no-untyped-def]
    return subtensor_batched_index(d_out, index)


@op(kernel="sparse.h", autocast="keep", reuse={"out": "initial"})
def sparse_to_dense(
    initial: Float[Array, "t b d"],
    time: Int[Array, "n b"],
    label: Int[Array, "n b"],
    weight: Float[Array, "n b"],
    mask: Bool[Array, "n b"] | None = None,
) -> Float[Array, "t b d"]:
    """Entries at places (time, sequence, label), added to a dense array.

    ``out[t, b, j] = initial[t, b, j] + Σ_i weight[i, b]`` over the entries of sequence ``b`` with
    ``time[i, b] = t`` and ``label[i, b] = j``. Several entries at one place are added up in their order, so the result is the same every time.

    Args:
        initial: What they are added to.
        time: The first index of each entry, from 0 to ``t - 1``.
        label: The last index of each entry, from 0 to ``d - 1``.
        weight: What is added.
        mask: Which entries take part. All if left away.

    NaN: stays at its own place. On CUDA an entry out of range makes the nearest place NaN; on the
        CPU it is an error.
    Gradient: for ``initial`` and ``weight``.
    Cost: O(t·b·d + n·b) time; a workspace of b·(t + n) integers.
    Same as: ``scipy.sparse.coo_array``, ``torch.Tensor.index_put_(.., accumulate=True)``. RETURNN's
        ``SparseToDense``.
    Source: the definition; RETURNN's native ops (Zeyer et al. 2018, RETURNN as a generic flexible
        neural toolkit with application to translation and speech recognition).

    >>> zeros, once = np.zeros((2, 1, 2)), np.array([[1], [1]])
    >>> sparse_to_dense(zeros, once, np.array([[0], [0]]), np.array([[2.0], [3.0]]))[:, 0]
    array([[0., 0.],
           [5., 0.]])
    """
    out = np.array(initial)
    for i, b in _entries(mask, time):
        out[time[i, b], b, label[i, b]] += weight[i, b]
    return out


def _entries(mask: Any, like: Any) -> Any:
    """The entries that take part, in their order."""
    return np.argwhere(np.ones(like.shape, bool) if mask is None else mask)


@op(kernel="sparse.h", autocast="keep")
def sparse_to_dense_grad(
    d_dense: Float[Array, "t b d"],
    time: Int[Array, "n b"],
    label: Int[Array, "n b"],
    mask: Bool[Array, "n b"] | None = None,
) -> Float[Array, "n b"]:
    """What flows back through `sparse_to_dense` into its weights.

    ``d_weight[i, b] = d_dense[time[i, b], b, label[i, b]]``.

    Args:
        d_dense: The gradient that arrives at the dense array.
        time: As given to `sparse_to_dense`.
        label: As given to `sparse_to_dense`.
        mask: As given to `sparse_to_dense`; an entry that takes no part gets 0.

    NaN: as in `subtensor_batched_index`.
    Gradient: none.
    Cost: O(n·b) time; no memory beyond the result.
    Same as: ``d_dense[time, numpy.arange(b), label]``.

    >>> sparse_to_dense_grad(np.ones((2, 1, 2)), np.array([[1]]), np.array([[0]]))
    array([[1.]])
    """
    d_weight = np.zeros(time.shape, d_dense.dtype)
    for i, b in _entries(mask, time):
        d_weight[i, b] = d_dense[time[i, b], b, label[i, b]]
    return d_weight


@sparse_to_dense.gradient
def _(time, label, mask, d_out):  # type: ignore[no-untyped-def]
    return d_out, sparse_to_dense_grad(d_out, time, label, mask)


class Largest(NamedTuple, Generic[Array]):
    """What `max_and_argmax_sparse` finds."""

    largest: Float[Array, "t b"]
    argmax: Int[Array, "t b"]


@op(kernel="sparse.h", autocast="keep", reuse={"largest": "initial", "argmax": "initial_argmax"})
def max_and_argmax_sparse(
    time: Int[Array, "n b"],
    label: Int[Array, "n b"],
    weight: Float[Array, "n b"],
    initial: Float[Array, "t b"],
    initial_argmax: Int[Array, "t b"],
    mask: Bool[Array, "n b"] | None = None,
) -> Largest[Array]:
    """The entry of the largest weight in each frame, and its label.

    ``largest[t, b] = max(initial[t, b], weight[i, b], ..)`` over the entries of that frame; of equal
    ones the first counts, and the initial one before all.

    Args:
        time: The frame of each entry, from 0 to ``t - 1``.
        label: What is returned for it.
        weight: What is compared.
        initial: What must be exceeded; -inf if nothing.
        initial_argmax: The label where nothing exceeds that.
        mask: Which entries take part. All if left away.

    NaN: exceeds every number, as in ``numpy.max``; the first one counts.
    Gradient: none.
    Cost: O((t + n)·b) time; a workspace of b·(t + n) integers.
    Same as: ``numpy.argmax`` over the entries of a frame. RETURNN's ``MaxAndArgmaxSparse``.
    Source: the definition; RETURNN's native ops (Zeyer et al. 2018, RETURNN as a generic flexible
        neural toolkit with application to translation and speech recognition).

    >>> time, label, weight = np.array([[0], [0]]), np.array([[4], [7]]), np.array([[1.0], [2.0]])
    >>> max_and_argmax_sparse(time, label, weight, np.zeros((2, 1)), np.full((2, 1), -1))
    Largest(largest=array([[2.],
           [0.]]), argmax=array([[ 7],
           [-1]]))
    """
    largest, argmax = np.array(initial), np.array(initial_argmax)
    for i, b in _entries(mask, time):
        t, w = time[i, b], weight[i, b]
        if w > largest[t, b] or (w != w and largest[t, b] == largest[t, b]):
            largest[t, b], argmax[t, b] = w, label[i, b]
    return Largest(largest, argmax)


class CrossEntropy(NamedTuple, Generic[Array]):
    """The loss, its gradient, and the largest logits of `cross_entropy_softmax_..._sparse`."""

    loss: Float[Array, "t b"]
    grad_z: Float[Array, "t b d"]
    max_z: Float[Array, "t b"]


@op(kernel="sparse.h")
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
    NaN: stays in its own frame. Logits that are all -inf have no softmax, so NaN. On CUDA a target
        out of range makes the loss of the nearest frame NaN; on the CPU it is an error.
    Gradient: for ``z`` and ``weight``, also through ``grad_z`` and ``max_z``.
    Cost: O(t·b·d + n·b) time; a workspace of b·(t + n) integers.
    Same as: ``torch.nn.functional.cross_entropy`` with dense target probabilities. RETURNN's
        ``CrossEntropySoftmaxAndGradientZSparse`` where weights sum to 1 and all frames have some.
    Source: the definition; RETURNN's native ops (Zeyer et al. 2018, RETURNN as a generic flexible
        neural toolkit with application to translation and speech recognition).

    >>> one = np.zeros((1, 1), int)
    >>> made = cross_entropy_softmax_and_gradient_sparse(np.zeros((1, 1, 2)), one, one, one + 1.0)
    >>> made.loss.round(4), made.grad_z
    (array([[0.6931]]), array([[[-0.5,  0.5]]]))
    """
    largest, log_sum = z.max(-1, initial=-np.inf), _log_sum(z)
    grad_z, loss = np.zeros_like(z), np.zeros(z.shape[:2], z.dtype)
    for i, b in _entries(mask, time):
        t, j, w = time[i, b], label[i, b], weight[i, b]
        if z_mask is None or z_mask[t, b]:
            loss[t, b] += w * (log_sum[t, b] - z[t, b, j])
            grad_z[t, b] += w * np.exp(z[t, b] - log_sum[t, b])
            grad_z[t, b, j] -= w
    return CrossEntropy(loss, grad_z, largest)


def _log_sum(z: Any) -> Any:
    largest = z.max(-1, initial=-np.inf)
    return largest + np.log(np.exp(z - largest[..., None]).sum(-1))


class CrossEntropyGrad(NamedTuple, Generic[Array]):
    """The gradients of `cross_entropy_softmax_and_gradient_sparse`."""

    d_z: Float[Array, "t b d"]
    d_weight: Float[Array, "n b"]


@op(kernel="sparse.h")
def cross_entropy_softmax_and_gradient_sparse_grad(
    z: Float[Array, "t b d"],
    time: Int[Array, "n b"],
    label: Int[Array, "n b"],
    weight: Float[Array, "n b"],
    d_loss: Float[Array, "t b"],
    d_grad_z: Float[Array, "t b d"],
    d_max_z: Float[Array, "t b"],
    mask: Bool[Array, "n b"] | None = None,
    z_mask: Bool[Array, "t b"] | None = None,
) -> CrossEntropyGrad[Array]:
    """What flows back through `cross_entropy_softmax_and_gradient_sparse`.

    ``d_z = d_loss · (W·p - Σ_i weight[i]·onehot(label[i])) + W · p·(v - p·v)``, and ``d_max_z`` at
    the first largest logit; ``d_weight[i] = -d_loss · log p[label[i]] + p·v - v[label[i]]``. Here
    ``p = softmax(z[t, b])``, ``W = Σ_i weight[i]`` of the frame and ``v = d_grad_z[t, b]``.

    Args:
        z: As given to the op.
        time: As given to the op.
        label: As given to the op.
        weight: As given to the op.
        d_loss: The gradient that arrives at the losses.
        d_grad_z: The gradient that arrives at ``grad_z``.
        d_max_z: The gradient that arrives at ``max_z``.
        mask: As given to the op.
        z_mask: As given to the op.

    NaN: stays in its own frame.
    Gradient: none.
    Cost: O(t·b·d + n·b) time; a workspace of b·(t + n) integers.
    Same as: the gradient of ``torch.nn.functional.cross_entropy`` where only ``d_loss`` arrives.

    >>> one, zero = np.ones((1, 1)), np.zeros((1, 1), int)
    >>> given = (np.zeros((1, 1, 2)), zero, zero, one, one)
    >>> cross_entropy_softmax_and_gradient_sparse_grad(*given, np.zeros((1, 1, 2)), 0 * one).d_z
    array([[[-0.5,  0.5]]])
    """
    log_sum = _log_sum(z)
    p = np.exp(z - log_sum[..., None])
    pv = (p * d_grad_z).sum(-1)
    d_z, d_weight = np.zeros_like(z), np.zeros_like(weight)
    for i, b in _entries(mask, time):
        t, j, w = time[i, b], label[i, b], weight[i, b]
        if z_mask is None or z_mask[t, b]:
            d_z[t, b] += w * p[t, b] * (d_loss[t, b] + d_grad_z[t, b] - pv[t, b])
            d_z[t, b, j] -= w * d_loss[t, b]
            d_weight[i, b] = d_loss[t, b] * (log_sum[t, b] - z[t, b, j])
            d_weight[i, b] += pv[t, b] - d_grad_z[t, b, j]
    if z.shape[2]:
        first = np.arange(z.shape[2]) == z.argmax(-1)[..., None]
        d_z += first * d_max_z[..., None]
    return CrossEntropyGrad(d_z, d_weight)


@cross_entropy_softmax_and_gradient_sparse.gradient
def _(  # type: ignore[no-untyped-def]
    z, time, label, weight, mask, z_mask, d_loss, d_grad_z, d_max_z
):  # fmt: skip
    return cross_entropy_softmax_and_gradient_sparse_grad(
        z, time, label, weight, d_loss, d_grad_z, d_max_z, mask, z_mask
    )  # fmt: skip


def _places(random: Any, given: Any) -> dict[str, Any]:
    """Entries within the array; without frames or labels there can be none that take part."""
    t, b, d, n = (given.get(name, 5) for name in ("t", "b", "d", "n"))
    places: dict[str, Any] = {
        "time": random.integers(0, max(t, 1), (n, b)),
        "label": random.integers(0, max(d, 1), (n, b)),
    }
    return {**places, "mask": (random.random((n, b)) < 0.8) & (t > 0) & (d > 0)}


def _numbers(random: Any, given: Any, **axes: str) -> dict[str, Any]:
    return {
        name: random.standard_normal([given[axis] for axis in words]) for name, words in axes.items()
    }


@subtensor_batched_index.example
def _(random, given):  # type: ignore[no-untyped-def]
    shape, most = (given["t"], given["b"]), max(given["d"], 1)
    return {**_numbers(random, given, x="tbd"), "index": random.integers(0, most, shape)}


@subtensor_batched_index_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    shape, most = (given["t"], given["b"]), max(given["d"], 1)
    return {**_numbers(random, given, d_picked="tb"), "index": random.integers(0, most, shape)}


@sparse_to_dense.example
def _(random, given):  # type: ignore[no-untyped-def]
    return {**_numbers(random, given, initial="tbd", weight="nb"), **_places(random, given)}


@sparse_to_dense_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    return {**_numbers(random, given, d_dense="tbd"), **_places(random, given)}


@max_and_argmax_sparse.example
def _(random, given):  # type: ignore[no-untyped-def]
    frames = np.full((given["t"], given["b"]), -1)
    places = _places(random, given) | {"initial_argmax": frames}
    return {**_numbers(random, given, weight="nb", initial="tb"), **places}


@cross_entropy_softmax_and_gradient_sparse.example
def _(random, given):  # type: ignore[no-untyped-def]
    frames = random.random((given["t"], given["b"])) < 0.8
    places = _places(random, given) | {"z_mask": frames}
    return {**_numbers(random, given, z="tbd", weight="nb"), **places}


@cross_entropy_softmax_and_gradient_sparse_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    words = {"z": "tbd", "weight": "nb", "d_loss": "tb", "d_grad_z": "tbd", "d_max_z": "tb"}
    numbers = _numbers(random, given, **words)
    frames = random.random((given["t"], given["b"])) < 0.8
    return {**numbers, **_places(random, given), "z_mask": frames}
