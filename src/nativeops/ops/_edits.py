# SPDX-License-Identifier: Apache-2.0
"""Edit distances in NumPy, a batch at a time: what references and examples share."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def lengths(given: Any, x: Any) -> Any:
    """The lengths of padded sequences: as given, or all of the array's."""
    return np.full(len(x), x.shape[1]) if given is None else np.asarray(given).astype(np.int64)


def next_row(row: Any, first: Any, label: Any, b: Any) -> Any:
    """The row of the table that follows when the prefix of `a` grows by a label.

    A row has the distances of that prefix to all prefixes of `b`. The last of the three ways to an
    entry, from the one before it, is a running minimum once a step along the row costs nothing.
    """
    steps = np.arange(row.shape[-1])
    across = np.minimum(row[..., 1:] + 1, row[..., :-1] + (label[..., None] != b))
    start = np.broadcast_to(first[..., None], (*across.shape[:-1], 1))
    ways = np.concatenate([start, across], -1)
    return np.minimum.accumulate(ways - steps, -1) + steps


def rows(a: Any, b: Any) -> Iterator[Any]:
    """The rows of the tables of all pairs, from that of the empty prefix of `a` on."""
    row = np.broadcast_to(np.arange(b.shape[-1] + 1), (*b.shape[:-1], b.shape[-1] + 1))
    yield row
    for i in range(a.shape[-1]):
        row = next_row(row, np.full(row.shape[:-1], i + 1), a[..., i], b)
        yield row


def last_rows(a: Any, b: Any, a_len: Any) -> Any:
    """The row of each whole `a`."""
    found = np.zeros((*b.shape[:-1], b.shape[-1] + 1), np.int64)
    for i, row in enumerate(rows(a, b)):
        found[a_len == i] = row[a_len == i]
    return found


def inside(row: Any, b_len: Any) -> Any:
    """The entries of rows that are within the lengths; beyond them more than any distance."""
    return np.where(np.arange(row.shape[-1]) <= b_len[..., None], row, 1 << 40)


def example(random: Any, given: Any, labels: int = 4) -> dict[str, Any]:
    """Two batches of sequences that have much in common, and lengths from 0 on."""
    batch, ta, tb = (given[name] for name in ("batch", "ta", "tb"))
    return {
        "a": random.integers(0, labels, (batch, ta)),
        "b": random.integers(0, labels, (batch, tb)),
        "a_len": random.integers(0, ta + 1, batch, np.int32),
        "b_len": random.integers(0, tb + 1, batch, np.int32),
    }
