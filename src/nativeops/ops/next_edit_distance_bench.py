# SPDX-License-Identifier: Apache-2.0
"""Edit distances step by step against RETURNN, and against the frameworks' running minima."""

from typing import Any

import numpy as np

from nativeops.bench.case import Bench, Known, NdArray
from nativeops.bench.forms import jax_rival, numpy_rival, ours_in, torch_rival
from nativeops.ops.next_edit_distance import next_edit_distance_reduce, next_edit_distance_row

# Hypotheses of a batch; all beams of a large one.
ROWS = [{"batch": 32, "tb": 50}, {"batch": 640, "tb": 300}]
CANDIDATES = [{"batch": 32, "tb": 50, "n": 80}, {"batch": 64, "tb": 100, "n": 5000}]
AT = 10  # labels before the one that is new


def step(random: np.random.Generator, batch: int, tb: int) -> tuple[NdArray, ...]:
    """A row of the table, a label, how many there were, which have ended, and the references."""
    label = random.integers(0, 80, batch)
    b, lengths = random.integers(0, 80, (batch, tb)), np.full(batch, tb)
    count, ended = np.full(batch, AT), random.random(batch) < 0.1
    row = np.abs(np.arange(tb + 1) - AT) + random.integers(0, 2, (batch, 1))
    return tuple(x.astype(np.int32) for x in (row, label, count, ended, b, lengths))


def candidates(random: np.random.Generator, batch: int, tb: int, n: int) -> tuple[NdArray, ...]:
    """The same with all labels as candidates."""
    row, _, *rest = step(random, batch, tb)
    return (row, np.arange(n, dtype=np.int32)[None].repeat(batch, 0), *rest)


def next_rows(*arrays: NdArray) -> list[Known]:
    """By the definition."""
    return [Known(..., next_edit_distance_row.reference(*arrays))]


def distances(*arrays: NdArray) -> list[Known]:
    """By the definition, of some candidates."""
    row, labels, *rest = arrays
    some = slice(None, None, 50)
    return [Known((..., some), next_edit_distance_reduce.reference(row, labels[:, some], *rest))]


def numpy_row(last: NdArray, a: NdArray, a_n: NdArray, ended: NdArray, b: NdArray, _: Any) -> Any:
    """The step to the right becomes a running minimum."""
    places = np.arange(last.shape[1], dtype=np.int32)
    across = np.minimum(last[:, 1:] + 1, last[:, :-1] + (a[:, None] != b))
    ways = np.concatenate([a_n[:, None] + 1, across], 1) - places
    grown = np.minimum.accumulate(ways, 1) + places
    return np.where(ended[:, None] != 0, last, grown)


def torch_row(last: Any, a: Any, a_n: Any, ended: Any, b: Any, _: Any) -> Any:
    """The same in PyTorch."""
    import torch

    places = torch.arange(last.shape[1], dtype=last.dtype, device=last.device)
    across = torch.minimum(last[:, 1:] + 1, last[:, :-1] + (a[:, None] != b))
    ways = torch.cat([a_n[:, None] + 1, across], 1) - places
    return torch.where(ended[:, None] != 0, last, torch.cummin(ways, 1).values + places)


def jax_row(last: Any, a: Any, a_n: Any, ended: Any, b: Any, _: Any) -> Any:
    """The same in JAX."""
    import jax
    import jax.numpy as jnp

    places = jnp.arange(last.shape[1], dtype=last.dtype)
    across = jnp.minimum(last[:, 1:] + 1, last[:, :-1] + (a[:, None] != b))
    ways = jnp.concatenate([a_n[:, None] + 1, across], 1) - places
    return jnp.where(ended[:, None] != 0, last, jax.lax.cummin(ways, 1) + places)


def missed(last: Any, a_n: Any) -> tuple[Any, Any]:
    """What is left of b behind each entry, and the distance with a label that occurs nowhere."""
    import torch

    rest = torch.arange(last.shape[1] - 1, -1, -1, dtype=last.dtype, device=last.device)
    entries = torch.minimum(last[:, 1:] + 1, last[:, :-1] + 1) + rest[1:]
    return rest, torch.minimum(entries.amin(1), a_n + 1 + rest[0])[:, None]


def torch_reduce(last: Any, a: Any, a_n: Any, ended: Any, b: Any, _: Any) -> Any:
    """Its last entry only, which is a minimum over the row, for a table of all candidates."""
    import torch

    rest, least = missed(last, a_n)
    hit = torch.where(a[:, :, None] == b[:, None], (last[:, :-1] + rest[1:])[:, None], 1 << 20)
    return torch.where(ended[:, None] != 0, last[:, -1:], torch.minimum(least, hit.amin(2)))


def torch_scatter(last: Any, a: Any, a_n: Any, ended: Any, b: Any, _: Any) -> Any:
    """The same where the candidates are all labels in their order: a minimum at each label."""
    import torch

    rest, least = missed(last, a_n)
    table = least.expand(a.shape).clone()
    table.scatter_reduce_(1, b.long(), last[:, :-1] + rest[1:], "amin")
    return torch.where(ended[:, None] != 0, last[:, -1:], table)


def returnn_row(last: Any, a: Any, a_n: Any, ended: Any, b: Any, b_len: Any) -> Any:
    """The native op of RETURNN."""
    from returnn.torch.util.native_op import next_edit_distance_row as theirs

    return theirs(last, a, a_n, ended, b, b_len)


def returnn_reduce(last: Any, a: Any, a_n: Any, ended: Any, b: Any, b_len: Any) -> Any:
    """The native op of RETURNN."""
    from returnn.torch.util.native_op import next_edit_distance_reduce as theirs

    return theirs(last, a, a_n, ended, b, b_len)


BENCHES = [
    Bench(
        "row",
        "the next row of each table, for one label",
        sizes=ROWS,
        inputs=step,
        expected=next_rows,
        work=lambda batch, tb: batch * tb,
        dtype="int32",
        tolerance=0,
        seconds=3,
        rivals=[
            *ours_in(next_edit_distance_row, "numpy"),
            numpy_rival(numpy_row, "numpy"),
            *ours_in(next_edit_distance_row, "torch"),
            torch_rival(torch_row),
            torch_rival(returnn_row, "returnn", name="RETURNN"),
            *ours_in(next_edit_distance_row, "jax"),
            jax_rival(jax_row),
        ],
    ),
    Bench(
        "reduce",
        "the distance behind each of many candidates",
        sizes=CANDIDATES,
        inputs=candidates,
        expected=distances,
        work=lambda batch, tb, n: batch * tb * n,
        dtype="int32",
        tolerance=0,
        seconds=3,
        rivals=[
            *ours_in(next_edit_distance_reduce, "numpy", "torch"),
            torch_rival(torch_reduce),
            torch_rival(torch_scatter),
            torch_rival(returnn_reduce, "returnn", name="RETURNN"),
        ],
    ),
]
