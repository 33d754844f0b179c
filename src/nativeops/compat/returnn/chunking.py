# SPDX-License-Identifier: Apache-2.0
"""RETURNN's ``chunk`` and ``unchunk``, whose masks are numbers, 0 or 1."""

from typing import TYPE_CHECKING

import nativeops
from nativeops.arrays import cast
from nativeops.compat.returnn._checks import check_axes, whole
from nativeops.compat.returnn._index import mask_of

if TYPE_CHECKING:
    import torch

__all__ = ["chunk", "unchunk"]


def chunk(
    x: "torch.Tensor", index: "torch.Tensor", chunk_size: int, chunk_step: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Sequences cut into overlapping chunks.

    Args:
        x: Frames ``[time, batch, dim]``.
        index: Which take part, ``[time, batch]``: bool, or numbers that are above 0.1 where so.
        chunk_size: The frames of a chunk.
        chunk_step: From the first frame of a chunk to that of the next.

    Returns: the chunks ``[chunk_size, batch · n_chunks, dim]``, and their index like ``index``.
    """
    check_axes("chunk", x=(x, "t b d"), index=(index, "t b"))
    size, step = whole("chunk", "chunk_size", chunk_size), whole("chunk", "chunk_step", chunk_step)
    cut = nativeops.chunk(x, mask_of(index), chunk_size=size, chunk_step=step)
    return cut.chunks, cast(cut.chunk_mask, index.dtype)


def unchunk(
    x: "torch.Tensor",
    index: "torch.Tensor",
    chunk_size: int,
    chunk_step: int,
    n_time: int,
    n_batch: int,
) -> tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]:
    """Sequences put together from their chunks, by the mean where these overlap.

    Unlike RETURNN's, the gradient is also right for frames that only some chunks mask out.

    Args:
        x: Chunks ``[chunk_size, batch · n_chunks, dim]``.
        index: Which of their frames take part, as of `chunk`.
        chunk_size: As given to `chunk`.
        chunk_step: As given to `chunk`.
        n_time: The frames of a sequence.
        n_batch: The sequences.

    Returns: the frames ``[time, batch, dim]``, their index, and the factors ``1 / count``.
    """
    check_axes("unchunk", x=(x, "t b d"), index=(index, "t b"))
    if x.shape[0] != chunk_size:
        text = f"unchunk: `chunk_size` is {chunk_size}, but axis 0 of `x` is {x.shape[0]}."
        raise nativeops.errors.ShapeError(f"{text}\n  hint: give the chunks as `chunk` made them.")
    given = {"n_time": n_time, "n_batch": n_batch, "chunk_step": chunk_step}
    sizes = {name: whole("unchunk", name, value) for name, value in given.items()}
    made = nativeops.unchunk(x, mask_of(index), **sizes)
    return made.x, cast(made.mask, index.dtype), made.factors
