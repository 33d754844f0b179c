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
    x: Float[Array, "t b d"], index: Int[Array, "t b"], d_picked: Float[Array, "t b"]
) -> Float[Array, "t b d"]:
    """What flows back through `subtensor_batched_index`.

    ``d_x[t, b, j] = d_picked[t, b]`` where ``j = index[t, b]``, else 0.

    Args:
        x: As given to `subtensor_batched_index`; only its sizes are read.
        index: As given to `subtensor_batched_index`.
        d_picked: The gradient that arrives at the picked numbers.

    Gradient: for ``d_picked``: `subtensor_batched_index`.
    Cost: O(t·b·d) time; no memory beyond the result.
    Same as: ``numpy.put_along_axis`` into zeros.

    >>> subtensor_batched_index_grad(np.zeros((1, 1, 3)), np.array([[1]]), np.array([[5.0]]))
    array([[[0., 5., 0.]]])
    """
    labels = np.arange(x.shape[2])
    return cast(Any, np.where(labels == index[..., None], d_picked[..., None], 0))


@subtensor_batched_index.gradient
def _(x, index, d_out):  # type: ignore[no-untyped-def]
    return subtensor_batched_index_grad(x, index, d_out)


@subtensor_batched_index_grad.gradient
def _(index, d_out):  # type: ignore[no-untyped-def]
    return None, subtensor_batched_index(d_out, index)


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
    ``time[i, b] = t`` and ``label[i, b] = j``. Several entries at one place are
    added up in their order, so the result is the same every time.

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
    out: Any = np.array(initial)
    for i, b in entries_of(mask, time):
        out[time[i, b], b, label[i, b]] += weight[i, b]
    return out


def entries_of(mask: Any, like: Any) -> Any:
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
    d_weight: Any = np.zeros(time.shape, d_dense.dtype)
    for i, b in entries_of(mask, time):
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

    ``largest[t, b] = max(initial[t, b], weight[i, b], ..)`` over the entries of that frame; of
    equal ones the first counts, and the initial one before all.

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
    largest: Any = np.array(initial)
    argmax: Any = np.array(initial_argmax)
    for i, b in entries_of(mask, time):
        t, w = time[i, b], weight[i, b]
        if w > largest[t, b] or (w != w and largest[t, b] == largest[t, b]):
            largest[t, b], argmax[t, b] = w, label[i, b]
    return Largest(largest, argmax)


def places(random: Any, given: Any) -> dict[str, Any]:
    """Entries within the array; without frames or labels there can be none that take part."""
    t, b, d, n = (given.get(name, 5) for name in ("t", "b", "d", "n"))
    places: dict[str, Any] = {
        "time": random.integers(0, max(t, 1), (n, b)),
        "label": random.integers(0, max(d, 1), (n, b)),
    }
    return {**places, "mask": (random.random((n, b)) < 0.8) & (t > 0) & (d > 0)}


def numbers_of(random: Any, given: Any, **axes: str) -> dict[str, Any]:
    """Arrays of random numbers with these axes."""
    return {
        name: random.standard_normal([given[axis] for axis in words])
        for name, words in axes.items()
    }


@subtensor_batched_index.example
def _(random, given):  # type: ignore[no-untyped-def]
    shape, most = (given["t"], given["b"]), max(given["d"], 1)
    return {**numbers_of(random, given, x="tbd"), "index": random.integers(0, most, shape)}


@subtensor_batched_index_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    shape, most = (given["t"], given["b"]), max(given["d"], 1)
    numbers = numbers_of(random, given, x="tbd", d_picked="tb")
    return {**numbers, "index": random.integers(0, most, shape)}


@sparse_to_dense.example
def _(random, given):  # type: ignore[no-untyped-def]
    return {**numbers_of(random, given, initial="tbd", weight="nb"), **places(random, given)}


@sparse_to_dense_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    return {**numbers_of(random, given, d_dense="tbd"), **places(random, given)}


@max_and_argmax_sparse.example
def _(random, given):  # type: ignore[no-untyped-def]
    frames = np.full((given["t"], given["b"]), -1)
    numbers = numbers_of(random, given, weight="nb", initial="tb")
    return {**numbers, **places(random, given), "initial_argmax": frames}
