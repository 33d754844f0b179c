# SPDX-License-Identifier: Apache-2.0
"""Optimal completion: how few edits remain if a prefix is continued as well as can be."""

from typing import Annotated, Any

import numpy as np

from nativeops.declare import Array, AtLeast, Bool, Int, Int32, Lengths, op
from nativeops.ops import _edits


@op(kernel="optimal_completion.h", independent="batch")
def optimal_completion_edit_distance(
    a: Int[Array, "batch ta"],
    b: Int[Array, "batch tb"],
    a_len: Lengths[Array, "batch"] | None = None,
    b_len: Lengths[Array, "batch"] | None = None,
) -> Int32[Array, "batch"]:
    """Edit distance to ``b`` of the best continuation of the prefix ``a``.

    ``out = min D[a_len, j]`` over ``0 ≤ j ≤ b_len``, with ``D`` as in `edit_distance`: whatever
    prefix of ``b`` fits best to ``a``, what remains of ``b`` is appended to it.

    Args:
        a: Prefixes: labels are any integers.
        b: The sequences that they shall become.
        a_len: The number of labels of each ``a``, from 0 to ``ta``; ``ta`` if left away.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.

    Raises: RangeError for a length that is none (on the CPU; kept within bounds on CUDA).
    Gradient: none; it is constant almost everywhere.
    Cost: O(a_len·b_len / 64) word operations on the CPU; memory O(ta + tb) a thread.
    Same as: no equivalent.
    Source: Sabour, Chan & Norouzi 2018, Optimal Completion Distillation, arXiv 1810.01398.

    >>> optimal_completion_edit_distance(np.array([[1, 5]]), np.array([[1, 2, 3, 4]]))
    array([1], dtype=int32)
    """
    a_len, b_len = _edits.lengths(a_len, a), _edits.lengths(b_len, b)
    return _edits.inside(_edits.last_rows(a, b, a_len), b_len).min(-1)


@op(kernel="optimal_completion.h", independent="batch n")
def optimal_completion_edit_distance_per_successor(
    a: Int[Array, "batch ta"],
    b: Int[Array, "batch tb"],
    successors: Int[Array, "n"],
    a_len: Lengths[Array, "batch"] | None = None,
    b_len: Lengths[Array, "batch"] | None = None,
) -> Int32[Array, "batch n"]:
    """Optimal completion distance of the prefix ``a`` with each successor.

    ``out[v] = min(a_len + 1, D[a_len, b_len] + 1, min D[a_len, j-1] + (successors[v] ≠ b[j]))``
    over ``1 ≤ j ≤ b_len``, with ``D`` as in `edit_distance`.

    Args:
        a: Prefixes: labels are any integers.
        b: The sequences that they shall become.
        successors: The labels that may follow, the same for all pairs.
        a_len: The number of labels of each ``a``, from 0 to ``ta``; ``ta`` if left away.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.

    Raises: RangeError for a length that is none (on the CPU; kept within bounds on CUDA).
    Gradient: none; it is constant almost everywhere.
    Cost: O(a_len·b_len / 64 + n) word operations on the CPU, and n for each optimal label; memory
        O(ta + tb) a thread beyond the result.
    Same as: no equivalent.
    Source: Sabour, Chan & Norouzi 2018, Optimal Completion Distillation, arXiv 1810.01398.

    >>> pair = np.array([[1, 5]]), np.array([[1, 2, 3, 4]])
    >>> optimal_completion_edit_distance_per_successor(*pair, np.arange(5))
    array([[2, 2, 1, 1, 2]], dtype=int32)
    """
    a_len, b_len = _edits.lengths(a_len, a), _edits.lengths(b_len, b)
    row = _edits.last_rows(a, b, a_len)[:, None]
    following = _edits.next_row(row, row[..., 0] + 1, successors[None], b[:, None])
    return _edits.inside(following, b_len[:, None]).min(-1)


@op(kernel="optimal_completion.h", independent="batch")
def ocd_targets(
    a: Int[Array, "batch ta"],
    b: Int[Array, "batch tb"],
    a_len: Lengths[Array, "batch"] | None = None,
    b_len: Lengths[Array, "batch"] | None = None,
    *,
    n_labels: Annotated[int, AtLeast(2)],
    end: Annotated[int, AtLeast(-1)] = -1,
) -> Bool[Array, "batch ta+1 n_labels"]:
    """The labels that may follow each prefix of ``a`` at the least final distance.

    ``out[i, v]`` is true where ``b[j+1] = v`` for a ``j`` with ``D[i, j] = min D[i, :b_len+1]``,
    for all prefixes ``a[:i]``, ``0 ≤ i ≤ a_len``; ``D`` as in `edit_distance`. Where ``j = b_len``
    is such a ``j``, the sequence may end: then ``out[i, end]`` is true.

    Args:
        a: What a model said: labels are any integers.
        b: What it should have said: labels from 0 to ``n_labels - 1``.
        a_len: The number of labels of each ``a``, from 0 to ``ta``; ``ta`` if left away.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.
        n_labels: How many labels there are.
        end: The label that ends a sequence; -1 if none does.

    Returns: nothing true beyond ``a_len``. With an ``end`` each other row has a label at least.
    Raises: RangeError for a length or label that is none (on the CPU; left out on CUDA).
    Gradient: none; it is constant almost everywhere. The training loss is a cross entropy with
        ``out / out.sum(-1)`` as its target.
    Cost: O(a_len·b_len) time and the time to write the result; memory O(ta + tb) a thread.
    Same as: no equivalent.
    Source: Sabour, Chan & Norouzi 2018, Optimal Completion Distillation, section 3.2 at
        temperature 0.

    >>> ocd_targets(np.array([[1]]), np.array([[1, 2]]), n_labels=4, end=0).astype(int)
    array([[[0, 1, 0, 0],
            [0, 0, 1, 0]]])
    """
    a_len, b_len = _edits.lengths(a_len, a), _edits.lengths(b_len, b)
    out: Any = np.zeros((len(a), a.shape[1] + 1, n_labels), bool)
    for i, row in enumerate(_edits.rows(a, b)):
        known = _edits.inside(row, b_len)
        best = (known == known.min(-1, keepdims=True)) & (a_len >= i)[:, None]
        for item, j in zip(*np.nonzero(best), strict=True):
            label = end if j == b_len[item] else b[item, j]
            if label >= 0:
                out[item, i, label] = True
    return out


@optimal_completion_edit_distance.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _edits.example(random, given)


@optimal_completion_edit_distance_per_successor.example
def _(random, given):  # type: ignore[no-untyped-def]
    return {**_edits.example(random, given), "successors": random.integers(0, 6, given["n"])}


@ocd_targets.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _edits.example(random, given, given["n_labels"])
