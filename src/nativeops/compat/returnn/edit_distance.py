# SPDX-License-Identifier: Apache-2.0
"""Edit distances as in ``returnn.torch.util.native_op``: names, argument order, int32 results.

One thing differs: a length beyond the array is an error, where RETURNN returns -1.
"""

from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from nativeops.compat.returnn._checks import can_read, check_axes, check_tensors, whole
from nativeops.errors import ArgumentError, DtypeError, RangeError, message
from nativeops.ops.edit_distance import edit_distance as _edit_distance
from nativeops.ops.next_edit_distance import (
    next_edit_distance_reduce as _next_edit_distance_reduce,
)
from nativeops.ops.next_edit_distance import next_edit_distance_row as _next_edit_distance_row
from nativeops.ops.optimal_completion import (
    optimal_completion_edit_distance as _optimal_completion_edit_distance,
)
from nativeops.ops.optimal_completion import (
    optimal_completion_edit_distance_per_successor as _per_successor,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "edit_distance",
    "edit_distance_via_next_edit_distance_row",
    "next_edit_distance_reduce",
    "next_edit_distance_row",
    "optimal_completion_edit_distance",
    "optimal_completion_edit_distance_per_successor",
    "optimal_completion_edit_distance_per_successor_via_next_edit_distance",
]


def _int32(x: "Tensor") -> "Tensor":
    """What 32 bits cannot hold stays too large, or too small, so that it is refused."""
    _check_integers(x)
    info = torch.iinfo(torch.int32)
    return (x.clamp(info.min, info.max) if x.dtype == torch.int64 else x).to(torch.int32)


def _check_integers(x: "Tensor") -> None:
    if not isinstance(x, torch.Tensor):
        text = f"labels and lengths must be tensors, not {type(x).__name__}."
        raise ArgumentError(message("edit_distance", text))
    if x.is_floating_point() or x.is_complex():
        kind = str(x.dtype).removeprefix("torch.")
        text = f"labels and lengths must be integers, not {kind}."
        raise DtypeError(message("edit_distance", text))


def _check_lengths(op: str, **given: "tuple[Tensor, Tensor]") -> None:
    """Refuses lengths that the labels do not have, where that makes nobody wait."""
    for name, (lengths, labels) in given.items():
        if not can_read(lengths):
            continue
        for place, length in enumerate(lengths.tolist()):
            if not 0 <= length <= labels.shape[1]:
                text = f"`{name}_len[{place}]` is {length}, but must be from 0 to"
                text += f" {labels.shape[1]}, the labels of `{name}`."
                raise RangeError(message(op, text))


def _labels(*given: "Tensor") -> "tuple[Tensor, ...]":
    """Labels in a dtype that holds all of them."""
    for x in given:
        _check_integers(x)
    wide = torch.int32 if all(x.dtype == torch.int32 for x in given) else torch.int64
    return tuple(x.to(wide) for x in given)


def _check(op: str, a: "Tensor", a_len: "Tensor", b: "Tensor", b_len: "Tensor") -> None:
    """Refuses labels and lengths that do not belong together."""
    check_axes(
        op, a=(a, "batch ta"), a_len=(a_len, "batch"), b=(b, "batch tb"), b_len=(b_len, "batch")
    )


def _each(op: str, successors: "Tensor | int", a: "Tensor") -> "Tensor":
    """The labels that may follow."""
    if isinstance(successors, (int, np.integer)) and not isinstance(successors, bool):
        if successors < 0:
            text = f"`successors` is {successors}, but must be at least 0."
            raise RangeError(message(op, text))
        return torch.arange(successors, device=a.device)
    check_tensors(op, successors=successors)
    return cast("Tensor", successors)


def edit_distance(a: "Tensor", a_len: "Tensor", b: "Tensor", b_len: "Tensor") -> "Tensor":
    """Levenshtein distances ``[B]`` of ``a`` ``[B, Ta]`` and ``b`` ``[B, Tb]``."""
    _check("edit_distance", a, a_len, b, b_len)
    a, b = _labels(a, b)
    return _edit_distance(a, b, _int32(a_len), _int32(b_len))


def optimal_completion_edit_distance(
    a: "Tensor", a_len: "Tensor", b: "Tensor", b_len: "Tensor"
) -> "Tensor":
    """The distances ``[B]`` of the best continuations of the prefixes ``a`` to ``b``."""
    _check("optimal_completion_edit_distance", a, a_len, b, b_len)
    a, b = _labels(a, b)
    return _optimal_completion_edit_distance(a, b, _int32(a_len), _int32(b_len))


def optimal_completion_edit_distance_per_successor(
    a: "Tensor", a_len: "Tensor", b: "Tensor", b_len: "Tensor", successors: "Tensor | int"
) -> "Tensor":
    """The same with each successor behind ``a``, ``[B, N]``; an int is that many, from 0 on."""
    op = "optimal_completion_edit_distance_per_successor"
    _check(op, a, a_len, b, b_len)
    lengths = _int32(a_len), _int32(b_len)
    a, b, labels = _labels(a, b, _each(op, successors, a))
    return _per_successor(a, b, labels, *lengths)


def next_edit_distance_row(
    last_row: "Tensor", a: "Tensor", a_n: "Tensor", a_ended: "Tensor", b: "Tensor", b_len: "Tensor"
) -> "Tensor":
    """The next row ``[B, Tb + 1]`` of the table, when each ``a`` grows by a label ``[B]``."""
    a, b = _labels(a, b)
    given = _int32(a_n), _int32(a_ended), b, _int32(b_len)
    return _next_edit_distance_row(_int32(last_row), a, *given)


def next_edit_distance_reduce(
    last_row: "Tensor",
    a: "Tensor",
    a_n: "Tensor",
    a_ended: "Tensor",
    b: "Tensor",
    b_len: "Tensor",
    optimal_completion: bool = False,
    a_blank_idx: int | None = None,
) -> "Tensor":
    """The distances ``[B, N]`` with each candidate ``a`` ``[B or 1, N]`` for the next label."""
    blank = -1 if a_blank_idx is None else a_blank_idx
    blank = whole("next_edit_distance_reduce", "a_blank_idx", blank)
    a, b = _labels(a, b)
    given = _int32(a_n), _int32(a_ended), b, _int32(b_len)
    return _next_edit_distance_reduce(
        _int32(last_row),
        a,
        *given,
        optimal_completion=bool(optimal_completion),
        a_blank_idx=blank,
    )


def edit_distance_via_next_edit_distance_row(
    a: "Tensor",
    a_len: "Tensor",
    b: "Tensor",
    b_len: "Tensor",
    optimal_completion: bool = False,
    full_row_output: bool = False,
) -> "Tensor":
    """`edit_distance` label by label; or the last rows, or the least entry of each."""
    op = "edit_distance_via_next_edit_distance_row"
    _check(op, a, a_len, b, b_len)
    a_len, b_len = _int32(a_len), _int32(b_len)
    _check_lengths(op, a=(a_len, a), b=(b_len, b))
    last = b_len[:, None]
    places = torch.arange(b.shape[1] + 1, dtype=torch.int32, device=b.device)
    row = torch.minimum(places.expand(len(b), -1), last)  # beyond the length, its end again
    for i in range(a.shape[1]):
        ended = _int32(i >= a_len)
        row = next_edit_distance_row(row, a[:, i], torch.full_like(ended, i), ended, b, b_len)
    if full_row_output:
        return row
    return row.min(1).values if optimal_completion else row[:, -1]


def optimal_completion_edit_distance_per_successor_via_next_edit_distance(
    a: "Tensor", a_len: "Tensor", b: "Tensor", b_len: "Tensor", successors: "Tensor | int"
) -> "Tensor":
    """`optimal_completion_edit_distance_per_successor` label by label."""
    op = "optimal_completion_edit_distance_per_successor_via_next_edit_distance"
    labels = _each(op, successors, a)[None]
    row = edit_distance_via_next_edit_distance_row(a, a_len, b, b_len, full_row_output=True)
    still = torch.zeros_like(_int32(a_len))
    return next_edit_distance_reduce(row, labels, a_len, still, b, b_len, optimal_completion=True)
