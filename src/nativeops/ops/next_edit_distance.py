# SPDX-License-Identifier: Apache-2.0
"""Edit distance step by step: the next row of the table, for one label or many candidates."""

import math
from typing import Annotated, Any

import numpy as np

from nativeops.declare import Array, AtLeast, Int, Int32, Lengths, op
from nativeops.ops import _edits


@op(kernel="next_edit_distance.h", independent="batch")
def next_edit_distance_row(
    last_row: Int32[Array, "batch tb+1"],
    a: Int[Array, "batch"],
    a_n: Int32[Array, "batch"],
    a_ended: Int32[Array, "batch"],
    b: Int[Array, "batch tb"],
    b_len: Lengths[Array, "batch"] | None = None,
) -> Int32[Array, "batch tb+1"]:
    """The next row of an edit distance table: the first sequence grows by a label.

    ``out[0] = a_n + 1``,
    ``out[j] = min(last_row[j] + 1, out[j-1] + 1, last_row[j-1] + (a ≠ b[j]))``; where the sequence
    has ended, ``out = last_row``. In both cases ``out[j] = out[b_len]`` for ``j > b_len``, so that
    ``out[-1]`` is the distance.

    Args:
        last_row: The row before; the first one is 0, 1, 2, ...
        a: The new label of each sequence: any integer.
        a_n: How many labels the sequence had before, from 0 on.
        a_ended: Not 0 where the sequence has ended: the label does not count.
        b: The sequences to compare with.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.

    Raises: RangeError for a length that is none (on the CPU; kept within bounds on CUDA).
    Gradient: none; it is constant almost everywhere.
    Cost: O(tb) time for each sequence; no memory beyond the result.
    Same as: no equivalent.
    Source: Wagner & Fischer 1974, The string-to-string correction problem.

    >>> row, none = np.array([[0, 1, 2]], "int32"), np.zeros(1, "int32")
    >>> next_edit_distance_row(row, np.array([7]), none, none, np.array([[7, 8]]))
    array([[1, 0, 1]], dtype=int32)
    """
    b_len = _edits.lengths(b_len, b)
    grown = _edits.next_row(last_row.astype(np.int64), a_n.astype(np.int64) + 1, a, b)
    row = np.where(a_ended[:, None] != 0, last_row, grown)
    places = np.minimum(np.arange(row.shape[1]), b_len[:, None])
    repeated: Any = np.take_along_axis(row, places, 1)
    return repeated


@op(kernel="next_edit_distance.h", independent="n")
def next_edit_distance_reduce(
    last_row: Int32[Array, "*batch tb+1"],
    a: Int[Array, "*batch n"],
    a_n: Int32[Array, "*batch"],
    a_ended: Int32[Array, "*batch"],
    b: Int[Array, "*batch tb"],
    b_len: Lengths[Array, "*batch"],
    *,
    optimal_completion: bool = False,
    a_blank_idx: Annotated[int, AtLeast(-1)] = -1,
) -> Int32[Array, "*batch n"]:
    """The edit distance with each of several candidates for the next label.

    ``out = row[b_len]``, with ``row`` as `next_edit_distance_row` makes it of a candidate; with
    ``optimal_completion`` the minimum of ``row[j]`` over ``0 ≤ j ≤ b_len``. A blank candidate, and
    any in a sequence that has ended, leaves the row as it is.

    Args:
        last_row: The row before; the first one is 0, 1, 2, ...
        a: The candidates of each sequence: any integers. One row serves all sequences.
        a_n: How many labels the sequence had before, from 0 on.
        a_ended: Not 0 where the sequence has ended.
        b: The sequences to compare with.
        b_len: The number of labels of each ``b``, from 0 to ``tb``.
        optimal_completion: The distance after the best continuation, not that of now.
        a_blank_idx: The candidate that stands for no label; -1 if none does.

    Raises: RangeError for a length that is none (on the CPU; kept within bounds on CUDA).
    Gradient: none; it is constant almost everywhere.
    Cost: O(tb + n) time for each sequence, and n for each label that lowers the distance; memory
        O(tb) a thread.
    Same as: no equivalent.
    Source: Sabour, Chan & Norouzi 2018, Optimal Completion Distillation, arXiv 1810.01398.

    >>> row, none = np.array([[0, 1, 2]], "int32"), np.zeros(1, "int32")
    >>> b, b_len = np.array([[7, 8]]), np.array([2], "int32")
    >>> next_edit_distance_reduce(row, np.array([7, 8, 9]), none, none, b, b_len)
    array([[1, 1, 2]], dtype=int32)
    """
    lead = np.broadcast_shapes(*(x.shape[:-1] for x in (last_row, a, b)), a_n.shape, b_len.shape)
    lead = np.broadcast_shapes(lead, a_ended.shape)
    shape = (*lead, a.shape[-1])
    last = np.broadcast_to(last_row.astype(np.int64)[..., None, :], (*shape, b.shape[-1] + 1))
    first = np.broadcast_to(a_n.astype(np.int64)[..., None] + 1, shape)
    labels, lengths = np.broadcast_to(a, shape), np.broadcast_to(b_len[..., None], shape)
    grown = _edits.next_row(last, first, labels, b[..., None, :])
    still = (a_ended[..., None] != 0) | ((labels == a_blank_idx) & (a_blank_idx >= 0))
    row = np.where(still[..., None], last, grown)
    if optimal_completion:
        return _edits.inside(row, lengths).min(-1)
    ends: Any = np.take_along_axis(row, lengths[..., None].astype(np.int64), -1)
    return ends[..., 0]


def _example(random: Any, batch: int, tb: int) -> dict[str, Any]:
    whole = _edits.example(random, {"batch": batch, "ta": 7, "tb": tb})
    return {
        "last_row": _edits.last_rows(whole["a"], whole["b"], whole["a_len"]),
        "a_n": whole["a_len"],
        "a_ended": random.integers(0, 2, batch),
        "b": whole["b"],
        "b_len": whole["b_len"],
    }


@next_edit_distance_row.example
def _(random, given):  # type: ignore[no-untyped-def]
    batch = given["batch"]
    return {**_example(random, batch, given["tb"]), "a": random.integers(0, 4, batch)}


@next_edit_distance_reduce.example
def _(random, given):  # type: ignore[no-untyped-def]
    lead = given["batch"]
    batch = math.prod(lead)
    arrays = _example(random, batch, given["tb"])
    arrays["a"] = random.integers(0, 6, (batch, given["n"]))
    return {name: array.reshape((*lead, *array.shape[1:])) for name, array in arrays.items()}
