# SPDX-License-Identifier: Apache-2.0
"""Optimal completion against RETURNN, where that is installed, and a loop over rows."""

from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import Bench, Known, NdArray
from nativeops.bench.forms import ours_in, torch_rival

SIZES = [{"batch": 32, "length": 100, "kinds": 80}]


def prefixes(
    random: np.random.Generator, batch: int, length: int, kinds: int
) -> tuple[NdArray, ...]:
    """Two batches of labels."""
    return tuple(random.integers(0, kinds, (2, batch, length)).astype(np.int32))


def with_successors(
    random: np.random.Generator, batch: int, length: int, kinds: int
) -> tuple[NdArray, ...]:
    """The same, and all labels."""
    return (*prefixes(random, batch, length, kinds), np.arange(kinds, dtype=np.int32))


def least(a: NdArray, b: NdArray) -> list[Known]:
    """By the definition."""
    return [Known(slice(None), nativeops.optimal_completion_edit_distance.reference(a, b))]


def least_of_each(a: NdArray, b: NdArray, successors: NdArray) -> list[Known]:
    """By the definition."""
    op = nativeops.optimal_completion_edit_distance_per_successor
    return [Known(slice(None), op.reference(a, b, successors))]


def torch_rows(a: Any, b: Any) -> Any:
    """A row of all tables at a time, with a running minimum along it."""
    import torch

    places = torch.arange(b.shape[1] + 1, device=b.device)
    row = places.expand(len(b), -1)
    for i in range(a.shape[1]):
        across = torch.minimum(row[:, 1:] + 1, row[:, :-1] + (a[:, i : i + 1] != b))
        ways = torch.cat([row.new_full((len(b), 1), i + 1), across], 1)
        row = torch.cummin(ways - places, 1).values + places
    return row.min(1).values


def returnn(a: Any, b: Any) -> Any:
    """The native op of RETURNN."""
    import torch
    from returnn.torch.util.native_op import optimal_completion_edit_distance

    lengths = torch.full((len(a),), a.shape[1], dtype=torch.int32)
    return optimal_completion_edit_distance(a, lengths, b, lengths)


def returnn_each(a: Any, b: Any, successors: Any) -> Any:
    """The same for successors."""
    import torch
    from returnn.torch.util.native_op import optimal_completion_edit_distance_per_successor

    lengths = torch.full((len(a),), a.shape[1], dtype=torch.int32)
    return optimal_completion_edit_distance_per_successor(a, lengths, b, lengths, successors)


BENCHES = [
    Bench(
        "prefixes",
        "the least distance of all continuations",
        sizes=SIZES,
        inputs=prefixes,
        expected=least,
        work=lambda batch, length, kinds: batch * length**2,
        dtype="int32",
        tolerance=0,
        rivals=[
            *ours_in(nativeops.optimal_completion_edit_distance, "numpy", "torch"),
            torch_rival(torch_rows),
            torch_rival(returnn, "returnn", name="RETURNN"),
        ],
    ),
    Bench(
        "successors",
        "the same with each of all labels behind the prefix",
        sizes=SIZES,
        inputs=with_successors,
        expected=least_of_each,
        work=lambda batch, length, kinds: batch * length**2,
        dtype="int32",
        tolerance=0,
        rivals=[
            *ours_in(nativeops.optimal_completion_edit_distance_per_successor, "numpy", "torch"),
            torch_rival(returnn_each, "returnn", name="RETURNN"),
        ],
    ),
]
