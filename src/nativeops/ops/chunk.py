# SPDX-License-Identifier: Apache-2.0
"""Sequences cut into overlapping chunks of one length, and put together again."""

from typing import Annotated, Any, Generic, NamedTuple, cast

import numpy as np

from nativeops.arrays import check_rank, check_unmasked
from nativeops.declare import Array, AtLeast, AtMost, Bool, Float, Lengths, op
from nativeops.errors import ArgumentError, ShapeError, message

Count = Annotated[int, AtLeast(0), AtMost(2**31 - 1)]
Positive = Annotated[int, AtLeast(1), AtMost(2**31 - 1)]

# The columns that `b` sequences of `t` frames are cut into; also of those of `n_batch`, `n_time`.
CUT = "b*(max(t-chunk_size+chunk_step-1,0)//chunk_step+1)"
WHOLE = CUT.replace("b*", "n_batch*").replace("t-", "n_time-")


def _columns(time: int, batch: int, size: int, step: int) -> tuple[Any, Any]:
    """The frame that is first in each column, and the column's sequence."""
    count = max(time - size + step - 1, 0) // step + 1
    return np.tile(np.arange(count) * step, batch), np.repeat(np.arange(batch), count)


def _valid(time: int, batch: int, mask: Any, lengths: Any) -> Any:
    """Which frames take part."""
    valid = np.ones((time, batch), bool) if mask is None else np.asarray(mask, bool)
    return valid if lengths is None else valid & (np.arange(time)[:, None] < np.asarray(lengths))


class Chunks(NamedTuple, Generic[Array]):
    """What `chunk` makes."""

    chunks: Float[Array, f"chunk_size {CUT} d"]
    chunk_mask: Bool[Array, f"chunk_size {CUT}"]


@op(kernel="chunk.h", autocast="keep")
def chunk(
    x: Float[Array, "t b d"],
    mask: Bool[Array, "t b"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    *,
    chunk_size: Count,
    chunk_step: Positive,
) -> Chunks[Array]:
    """Sequences cut into chunks of one length that may overlap.

    ``chunks[u, b·n + k] = x[step·k + u, b]`` where that frame exists and takes part, else 0, with
    ``n = ⌊max(t - size + step - 1, 0) / step⌋ + 1`` chunks of each sequence.

    Args:
        x: The frames of all sequences.
        mask: Which frames take part; holes are allowed. All if left away.
        lengths: The number of frames of each sequence, from 0 to ``t``. With a mask, too, a frame
            takes part if both say so.
        chunk_size: The frames of a chunk.
        chunk_step: From the first frame of a chunk to that of the next. Chunks overlap if it is
            smaller than ``chunk_size``; frames between two chunks are lost if it is larger.

    Returns: ``chunks``, and ``chunk_mask``: true where a chunk holds a frame that takes part.
    NaN: stays in its own frame; one that takes no part is not seen.
    Gradient: for ``x``: the sum over all chunks that hold the frame.
    Cost: O(size·b·n·d) time; no memory beyond the results.
    Same as: ``torch.nn.functional.unfold``, or ``x.unfold(0, size, step)`` without padding;
        `chunk_view` copies nothing. RETURNN's ``chunk``.
    Source: the definition; see Zeyer et al. 2016, Towards online-recognition with deep
        bidirectional LSTM acoustic models.

    >>> x = np.arange(1.0, 6.0).reshape(5, 1, 1)
    >>> chunk(x, chunk_size=3, chunk_step=2).chunks[..., 0]
    array([[1., 3.],
           [2., 4.],
           [3., 5.]])
    """
    time, batch, d = x.shape
    first, sequence = _columns(time, batch, chunk_size, chunk_step)
    frame = np.arange(chunk_size)[:, None] + first
    padded = np.concatenate([x, np.zeros((1, batch, d), x.dtype)])
    valid = np.concatenate([_valid(time, batch, mask, lengths), np.zeros((1, batch), bool)])
    held = np.minimum(frame, time), np.broadcast_to(sequence, frame.shape)
    return Chunks(np.where(valid[held][..., None], padded[held], 0), valid[held])


@op(kernel="chunk.h", autocast="keep")
def chunk_grad(
    x: Float[Array, "t b d"],
    d_chunks: Float[Array, f"chunk_size {CUT} d"],
    mask: Bool[Array, "t b"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    *,
    chunk_size: Count,
    chunk_step: Positive,
) -> Float[Array, "t b d"]:
    """What flows back through `chunk` into its frames.

    ``d_x[t, b] = Σ_k d_chunks[t - step·k, b·n + k]`` over the chunks that hold frame ``t``, in the
    order of ``k``; 0 for a frame that takes no part.

    Args:
        x: As given to `chunk`; only its sizes are read.
        d_chunks: The gradient that arrives at the chunks.
        mask: As given to `chunk`.
        lengths: As given to `chunk`.
        chunk_size: As given to `chunk`.
        chunk_step: As given to `chunk`.

    NaN: stays in its own frame.
    Gradient: for ``d_chunks``: `chunk`.
    Cost: O(size·b·n·d) time; no memory beyond the result.
    Same as: ``torch.nn.functional.fold``.

    >>> chunk_grad(np.zeros((5, 1, 1)), np.ones((3, 2, 1)), chunk_size=3, chunk_step=2).ravel()
    array([1., 1., 2., 1., 1.])
    """
    time, batch, _ = x.shape
    total, _ = _sums(d_chunks, None, time, batch, chunk_step)
    return cast(Any, np.where(_valid(time, batch, mask, lengths)[..., None], total, 0))


def _sums(chunks: Any, chunk_mask: Any, time: int, batch: int, step: int) -> tuple[Any, Any]:
    """Per frame the sum over all chunks that hold it, and how many there are."""
    size, _, d = chunks.shape
    first, sequence = _columns(time, batch, size, step)
    total, count = np.zeros((time, batch, d), chunks.dtype), np.zeros((time, batch), int)
    for column, (start, b) in enumerate(zip(first, sequence, strict=True)):
        for t in range(start, min(start + size, time)):
            if chunk_mask is None or chunk_mask[t - start, column]:
                total[t, b] += chunks[t - start, column]
                count[t, b] += 1
    return total, count


class Frames(NamedTuple, Generic[Array]):
    """What `unchunk` makes."""

    x: Float[Array, "n_time n_batch d"]
    mask: Bool[Array, "n_time n_batch"]
    factors: Float[Array, "n_time n_batch"]


@op(kernel="chunk.h", autocast="keep")
def unchunk(
    chunks: Float[Array, f"chunk_size {WHOLE} d"],
    chunk_mask: Bool[Array, f"chunk_size {WHOLE}"] | None = None,
    *,
    n_time: Count,
    n_batch: Count,
    chunk_step: Positive,
) -> Frames[Array]:
    """Sequences put together from their chunks, by the mean where these overlap.

    ``x[t, b] = 1/c · Σ_k chunks[t - step·k, b·n + k]`` over the ``c`` chunks that hold frame ``t``
    and whose mask is true there, in the order of ``k``; 0 where there is none.

    Args:
        chunks: In columns, as `chunk` makes them.
        chunk_mask: Which of their frames take part. All that lie within ``n_time`` if left away.
        n_time: The number of frames of the sequences.
        n_batch: The number of sequences.
        chunk_step: As given to `chunk`.

    Returns: ``x``; ``mask``, true for frames that a chunk holds; and ``factors``, the ``1/c``, or 1
        where no chunk holds the frame.
    NaN: stays in its own frame; one that takes no part is not seen.
    Gradient: for ``chunks``: `chunk` of what arrives, times the factors.
    Cost: O(size·b·n·d) time; a workspace of t·b integers.
    Same as: ``torch.nn.functional.fold`` divided by the counts. RETURNN's ``unchunk``.
    Source: the definition, as for `chunk`.

    >>> cut = nativeops.chunk(np.arange(1.0, 6.0).reshape(5, 1, 1), chunk_size=3, chunk_step=2)
    >>> whole = unchunk(*cut, n_time=5, n_batch=1, chunk_step=2)
    >>> whole.x.ravel(), whole.factors.ravel()
    (array([1., 2., 3., 4., 5.]), array([1. , 1. , 0.5, 1. , 1. ]))
    """
    total, count = _sums(chunks, chunk_mask, n_time, n_batch, chunk_step)
    factors = 1 / np.maximum(count, 1).astype(chunks.dtype)
    return Frames(total * factors[..., None], count > 0, factors)


@op(kernel="chunk.h", autocast="keep")
def unchunk_grad(
    chunks: Float[Array, f"chunk_size {WHOLE} d"],
    d_x: Float[Array, "n_time n_batch d"],
    chunk_mask: Bool[Array, f"chunk_size {WHOLE}"] | None = None,
    *,
    n_time: Count,
    n_batch: Count,
    chunk_step: Positive,
) -> Float[Array, f"chunk_size {WHOLE} d"]:
    """What flows back through `unchunk` into the chunks.

    ``d_chunks[u, b·n + k] = d_x[step·k + u, b] / c`` where that frame exists and the mask is true,
    else 0; ``c`` chunks hold the frame.

    Args:
        chunks: As given to `unchunk`; only its sizes are read.
        d_x: The gradient that arrives at the frames.
        chunk_mask: As given to `unchunk`.
        n_time: As given to `unchunk`.
        n_batch: As given to `unchunk`.
        chunk_step: As given to `unchunk`.

    NaN: stays in its own frame.
    Gradient: for ``d_x``: `unchunk`.
    Cost: O(size·b·n·d) time; a workspace of t·b integers, on the CPU of t·b·d numbers, too, for
        frames of up to 128 bytes.
    Same as: `chunk` of ``d_x·factors``, but for frames that only some chunks mask out.

    >>> chunks, d_x = np.zeros((3, 2, 1)), np.ones((5, 1, 1))
    >>> unchunk_grad(chunks, d_x, n_time=5, n_batch=1, chunk_step=2)[..., 0]
    array([[1. , 0.5],
           [1. , 1. ],
           [0.5, 1. ]])
    """
    sizes = {"chunk_size": len(chunks), "chunk_step": chunk_step}
    cut = chunk.reference(d_x, **sizes)
    held = cut.chunk_mask if chunk_mask is None else cut.chunk_mask & chunk_mask
    _, count = _sums(cut.chunks[..., :0], held, n_time, n_batch, chunk_step)
    each = chunk.reference(d_x / np.maximum(count, 1)[..., None], **sizes)
    return cast(Any, np.where(held[..., None], each.chunks, 0))


# The rules read no sizes: programs may be built before these are known.


@chunk.gradient
def _(x, mask, lengths, d_chunks, chunk_size, chunk_step):  # type: ignore[no-untyped-def]
    return chunk_grad(x, d_chunks, mask, lengths, chunk_size=chunk_size, chunk_step=chunk_step)


@chunk_grad.gradient
def _(mask, lengths, d_out, chunk_size, chunk_step):  # type: ignore[no-untyped-def]
    return None, chunk(d_out, mask, lengths, chunk_size=chunk_size, chunk_step=chunk_step).chunks


@unchunk.gradient
def _(chunks, chunk_mask, d_x, n_time, n_batch, chunk_step):  # type: ignore[no-untyped-def]
    sizes = {"n_time": n_time, "n_batch": n_batch, "chunk_step": chunk_step}
    return unchunk_grad(chunks, d_x, chunk_mask, **sizes)


@unchunk_grad.gradient
def _(chunk_mask, d_out, n_time, n_batch, chunk_step):  # type: ignore[no-untyped-def]
    sizes = {"n_time": n_time, "n_batch": n_batch, "chunk_step": chunk_step}
    return None, unchunk(d_out, chunk_mask, **sizes).x


def _example(random: Any, time: int, batch: int) -> dict[str, Any]:
    """A mask with holes, and lengths up to all frames."""
    return {
        "mask": random.random((time, batch)) < 0.8,
        "lengths": random.integers(time // 2, time + 1, batch),
    }


@chunk.example
def _(random, given):  # type: ignore[no-untyped-def]
    shape = tuple(given[name] for name in "tbd")
    return {"x": random.standard_normal(shape), **_example(random, *shape[:2])}


@chunk_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    time, batch, d = (given[name] for name in "tbd")
    columns = len(_columns(time, batch, given["chunk_size"], given["chunk_step"])[0])
    d_chunks = random.standard_normal((given["chunk_size"], columns, d))
    x = random.standard_normal((time, batch, d))
    return {"x": x, "d_chunks": d_chunks, **_example(random, time, batch)}


def chunk_view(x: Array, *, chunk_size: int, chunk_step: int) -> Array:
    """The chunks of a NumPy array or a PyTorch tensor without a copy: a view of ``x``.

    ``out[u, b, k] = x[step·k + u, b]``, a view ``[size, b, n, d]`` of ``x`` ``[t, b, d]``. It can
    only hold frames that are there, so the last chunk must end with the last frame, and there is no
    mask. Writing to it writes to ``x``; in PyTorch gradients flow through it.

    Raises: ShapeError if frames are left over, ArgumentError for arrays of other frameworks, which
    have no views with steps of their own.

    >>> chunk_view(np.arange(1.0, 6.0).reshape(5, 1, 1), chunk_size=3, chunk_step=2)[..., 0]
    array([[[1., 3.]],
    <BLANKLINE>
           [[2., 4.]],
    <BLANKLINE>
           [[3., 5.]]])
    """
    is_tensor = hasattr(x, "unfold")
    if not is_tensor and not isinstance(x, np.ndarray):
        text = f"`x` must be a NumPy array or a PyTorch tensor, but is {type(x).__name__}."
        raise ArgumentError(message("chunk_view", text, hint="call `chunk`, which copies."))
    check_unmasked("chunk_view", "x", x)
    chunk.bind((x,), {"chunk_size": chunk_size, "chunk_step": chunk_step})
    check_rank("chunk_view", "x", x, "t b d")
    time = x.shape[0]
    if time < chunk_size or (time - chunk_size) % chunk_step:
        text = f"chunks of {chunk_size} frames every {chunk_step} do not end with the last frame "
        text += f"of `x`, whose shape is {list(x.shape)}."
        raise ShapeError(message("chunk_view", text, hint="pad `x` at its end, or call `chunk`."))
    if is_tensor:
        return cast(Array, x.unfold(0, chunk_size, chunk_step).permute(3, 1, 0, 2))
    windows = np.lib.stride_tricks.sliding_window_view(x, chunk_size, 0, writeable=True)
    return cast(Array, windows[::chunk_step].transpose(3, 1, 0, 2))
