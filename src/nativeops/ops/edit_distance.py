# SPDX-License-Identifier: Apache-2.0
"""Edit distance (Levenshtein) of pairs of sequences, and of all pairs of two sets."""

from typing import Annotated, Any

import numpy as np

from nativeops.declare import Array, AtLeast, AtMost, Float32, Int, Int32, Lengths, op
from nativeops.ops import _edits

# Capped distances are one more than this at most.
Limit = Annotated[int, AtLeast(-1), AtMost(2**31 - 2)]


@op(kernel="edit_distance.h", independent="batch")
def edit_distance(
    a: Int[Array, "batch ta"],
    b: Int[Array, "batch tb"],
    a_len: Lengths[Array, "batch"] | None = None,
    b_len: Lengths[Array, "batch"] | None = None,
    *,
    max_distance: Limit = -1,
) -> Int32[Array, "batch"]:
    """Fewest insertions, deletions and substitutions that make ``a`` to ``b``.

    ``out = D[a_len, b_len]`` with ``D[i, 0] = i``, ``D[0, j] = j``,
    ``D[i, j] = min(D[i-1, j] + 1, D[i, j-1] + 1, D[i-1, j-1] + (a[i] ≠ b[j]))``.

    Args:
        a: Sequences of labels: any integers.
        b: The sequences to compare them with, pair by pair.
        a_len: The number of labels of each ``a``, from 0 to ``ta``; ``ta`` if left away.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.
        max_distance: Distances above are not told apart: they are ``max_distance + 1``, and cost
            less to find out. -1 is no limit.

    Returns: the distance; with ``normalize=True`` that of `normalized_edit_distance`.
    Raises: RangeError for a length that is none (on the CPU; kept within bounds on CUDA).
    Gradient: none; it is constant almost everywhere.
    Cost: O(a_len·b_len / 64) word operations on the CPU, with a limit at most
        O(a_len·(max_distance + 512) / 64), and few where sequences have little in common; memory
        O(ta + tb) a thread. On CUDA one block a pair, O(a_len + b_len) steps.
    Same as: ``rapidfuzz.distance.Levenshtein.distance``, ``tf.edit_distance(normalize=False)``.
    Source: Levenshtein 1966; Myers 1999, A fast bit-vector algorithm; Hyyrö 2003, A bit-vector
        algorithm for computing Levenshtein and Damerau edit distances; Ukkonen 1985 (the limit).

    >>> edit_distance(np.array([[1, 2, 3]]), np.array([[1, 3, 4]]))
    array([2], dtype=int32)
    """
    a_len, b_len = _edits.lengths(a_len, a), _edits.lengths(b_len, b)
    found = _edits.last_rows(a, b, a_len)[np.arange(len(a)), b_len]
    return found if max_distance < 0 else np.minimum(found, max_distance + 1)


@op(kernel="edit_distance.h", independent="batch")
def normalized_edit_distance(
    a: Int[Array, "batch ta"],
    b: Int[Array, "batch tb"],
    a_len: Lengths[Array, "batch"] | None = None,
    b_len: Lengths[Array, "batch"] | None = None,
    *,
    max_distance: Limit = -1,
) -> Float32[Array, "batch"]:
    """Edit distance per label of ``b``: `edit_distance` with ``normalize=True``.

    ``out = edit_distance(a, b) / b_len``; of an empty ``b``: 0 if ``a`` is empty, too, else ∞.

    Args:
        a: Sequences of labels: any integers.
        b: The sequences to compare them with, whose lengths count.
        a_len: The number of labels of each ``a``, from 0 to ``ta``; ``ta`` if left away.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.
        max_distance: Distances above count as ``max_distance + 1``. -1 is no limit.

    Gradient: none; it is constant almost everywhere.
    Cost: that of `edit_distance`.
    Same as: ``tf.edit_distance(normalize=True)``.
    Source: see `edit_distance`.

    >>> normalized_edit_distance(np.array([[1, 2, 3]]), np.array([[1, 3, 4, 2]]))
    array([0.75], dtype=float32)
    """
    found: Any = edit_distance.reference(a, b, a_len, b_len, max_distance=max_distance)
    many = _edits.lengths(b_len, b)
    of_none: Any = np.where(found > 0, np.inf, 0.0)
    rate: Any = np.where(many > 0, found / np.maximum(many, 1), of_none)
    return rate


edit_distance.instead(normalize=normalized_edit_distance)


@op(kernel="edit_distance.h", independent="n m")
def pairwise_edit_distance(
    a: Int[Array, "n ta"],
    b: Int[Array, "m tb"],
    a_len: Lengths[Array, "n"] | None = None,
    b_len: Lengths[Array, "m"] | None = None,
    *,
    max_distance: Limit = -1,
) -> Int32[Array, "n m"]:
    """Edit distance between every sequence of ``a`` and every sequence of ``b``.

    ``out[i, j] = edit_distance(a[i], b[j])``.

    Args:
        a: First set: ``n`` sequences of labels: any integers.
        b: Second set: ``m`` sequences of labels.
        a_len: The number of labels of each ``a``, from 0 to ``ta``; ``ta`` if left away.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.
        max_distance: Distances above are ``max_distance + 1``. -1 is no limit.

    Raises: RangeError for a length that is none (on the CPU; kept within bounds on CUDA).
    Gradient: none; it is constant almost everywhere.
    Cost: n·m times that of `edit_distance`; memory O(n·ta + m·tb) beyond the result.
    Same as: ``rapidfuzz.process.cdist(a, b, scorer=Levenshtein.distance)``.
    Source: see `edit_distance`; the first paper with many pairs in one register is Hyyrö,
        Fredriksson & Navarro 2005, Increased bit-parallelism for approximate string matching.

    >>> pairwise_edit_distance(np.array([[1, 2], [2, 2]]), np.array([[1, 2], [3, 3]]))
    array([[0, 2],
           [1, 2]], dtype=int32)
    """
    a_len, b_len = _edits.lengths(a_len, a), _edits.lengths(b_len, b)
    i, j = (index.ravel() for index in np.indices((len(a), len(b))))
    out = edit_distance.reference(a[i], b[j], a_len[i], b_len[j], max_distance=max_distance)
    return out.reshape(len(a), len(b))


@edit_distance.example
@normalized_edit_distance.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _edits.example(random, given)


@pairwise_edit_distance.example
def _(random, given):  # type: ignore[no-untyped-def]
    first = _edits.example(random, {**given, "batch": given["n"]})
    second = _edits.example(random, {**given, "batch": given["m"]})
    return {name: (first if name[0] == "a" else second)[name] for name in first}
