# SPDX-License-Identifier: Apache-2.0
"""chunk and unchunk against PyTorch's ways, and against a copy of as many bytes."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nativeops.bench.case import Bench, Known, NdArray, Rival, spread_rows
from nativeops.bench.forms import ours_in, torch_rival
from nativeops.bench.machine import package_version
from nativeops.ops.chunk import chunk, unchunk

# Acoustic features, half overlapping; hidden states; the same, far larger than the caches; chunks
# for streaming, where each frame is in ten. Then frames of few numbers: one each, half overlapping;
# samples without overlap; every window of a few features.
SIZES = [
    {"t": 1000, "b": 32, "d": 80, "size": 100, "step": 50},
    {"t": 608, "b": 16, "d": 256, "size": 64, "step": 32},
    {"t": 500, "b": 32, "d": 512, "size": 50, "step": 25},
    {"t": 2000, "b": 8, "d": 256, "size": 200, "step": 20},
    {"t": 1000, "b": 32, "d": 1, "size": 100, "step": 50},
    {"t": 100000, "b": 1, "d": 1, "size": 16, "step": 16},
    {"t": 10007, "b": 3, "d": 7, "size": 33, "step": 1},
]


def columns(t: int, b: int, size: int, step: int) -> int:
    """All chunks."""
    return b * (max(t - size + step - 1, 0) // step + 1)


def moved(t: int, b: int, d: int, size: int, step: int) -> float:
    """Bytes that must move: each frame and each frame of a chunk once."""
    return 4.0 * d * (t * b + size * columns(t, b, size, step))


def copy_limit(size: dict[str, int]) -> Callable[[], float]:
    """Bytes a second that PyTorch copies, of as many, into memory as new as a result is."""
    arrays: list[Any] = []

    def limit() -> float:
        if package_version("torch") is None:
            return 0.0
        import torch

        if not arrays:
            arrays.append(torch.randn(int(moved(**size)) // 8))
        started = time.perf_counter()
        arrays[0].clone()
        return moved(**size) / (time.perf_counter() - started)

    return limit


def frames(random: np.random.Generator, t: int, b: int, d: int, **_: int) -> tuple[NdArray, ...]:
    """The frames of all sequences."""
    return (random.standard_normal((t, b, d), dtype=np.float32),)


def chunks(random: np.random.Generator, t: int, b: int, d: int, size: int, step: int) -> Any:
    """Chunks that disagree."""
    return (random.standard_normal((size, columns(t, b, size, step), d), dtype=np.float32),)


def rows_of_chunks(x: NdArray, size: int, step: int) -> list[Known]:
    """Some rows of all chunks."""
    rows = spread_rows(size, 9)
    return [Known(rows, chunk.reference(x, chunk_size=size, chunk_step=step).chunks[rows])]


def rows_of_frames(parts: NdArray, t: int, b: int, step: int) -> list[Known]:
    """Some features of all frames."""
    some = parts[..., :: max(1, parts.shape[2] - 1)].astype(np.float64)
    whole = unchunk.reference(some, n_time=t, n_batch=b, chunk_step=step).x
    return [Known((..., slice(None, None, max(1, parts.shape[2] - 1))), whole)]


def torch_unfold(x: Any, size: int, step: int) -> Any:
    """A view with steps, and a copy of it."""
    return x.unfold(0, size, step).permute(3, 1, 0, 2).reshape(size, -1, x.shape[2])


def functional_unfold(x: Any, size: int, step: int) -> Any:
    """PyTorch's op for images, of which time is one axis."""
    import torch

    _, b, d = x.shape
    image = x.permute(1, 2, 0)[..., None]
    out = torch.nn.functional.unfold(image, (size, 1), stride=(step, 1))
    return out.reshape(b, d, size, -1).permute(2, 0, 3, 1).reshape(size, -1, d)


def functional_fold(parts: Any, counts: Any, t: int, b: int, step: int) -> Any:
    """PyTorch's op for images, and the mean; how often frames are held is known beforehand."""
    import torch

    size, _, d = parts.shape
    image = parts.reshape(size, b, -1, d).permute(1, 3, 0, 2).reshape(b, d * size, -1)
    out = torch.nn.functional.fold(image, (t, 1), (size, 1), stride=(step, 1))
    return out[..., 0].permute(2, 0, 1) / counts


def index_mean(parts: Any, index: Any, counts: Any, t: int, b: int) -> Any:
    """Rows added where they belong, and the mean; the places are known beforehand."""

    d = parts.shape[2]
    total = parts.new_zeros(t * b, d).index_add_(0, index, parts.reshape(-1, d))
    return total.reshape(t, b, d) / counts


def ours_chunks(x: Any, size: int, step: int) -> Any:
    """The op, its chunks alone."""
    return chunk(x, chunk_size=size, chunk_step=step).chunks


def ours_frames(parts: Any, t: int, b: int, step: int) -> Any:
    """The op, its frames alone."""
    return unchunk(parts, n_time=t, n_batch=b, chunk_step=step).x


def unchunk_rivals(t: int, b: int, size: int, step: int) -> list[Rival]:
    """For one size, which is no array."""

    def prepared(function: Callable[..., Any], indexed: bool) -> Callable[..., Any]:
        import torch

        ours = partial(unchunk, n_time=t, n_batch=b, chunk_step=step)
        n = columns(t, b, size, step)
        counts = 1 / torch.tensor(ours(np.ones((size, n, 1), np.float32)).factors)[..., None]
        column = torch.arange(n)
        time_of = column % (n // b) * step + torch.arange(size)[:, None]
        index = (time_of * b + column // (n // b)).reshape(-1)
        if indexed:
            return partial(function, index=index, counts=counts, t=t, b=b)
        return partial(function, counts=counts, t=t, b=b, step=step)

    def rival(function: Callable[..., Any], indexed: bool) -> Rival:
        def prepare(parts: NdArray) -> Callable[[], Any]:
            import torch

            return partial(prepared(function, indexed), torch.tensor(parts))

        return Rival(function.__name__, prepare, "torch", "torch")

    ours = partial(ours_frames, t=t, b=b, step=step)
    return [
        *ours_in(ours, "numpy", "torch"),
        rival(functional_fold, False),
        rival(index_mean, True),
    ]


def chunk_rivals(size: int, step: int) -> list[Rival]:
    """For one size."""
    ours = partial(ours_chunks, size=size, step=step)
    return [
        *ours_in(ours, "numpy", "torch", "jax"),
        torch_rival(partial(torch_unfold, size=size, step=step), name="Tensor.unfold, copied"),
        torch_rival(partial(functional_unfold, size=size, step=step), name="functional.unfold"),
    ]


def benches(size: dict[str, int]) -> list[Bench]:
    """Both ways at one size; the last chunk ends with the last frame, as PyTorch's ops need it."""
    t, b, d, length, step = size.values()
    name = f"{t} frames of {d}, {length} every {step}"
    common: Any = {"sizes": [size], "work": moved, "limit": copy_limit(size)}
    return [
        Bench(
            f"chunk {name}",
            "sequences to chunks; the limit is a copy of as many bytes to new memory",
            inputs=frames,
            expected=partial(rows_of_chunks, size=length, step=step),
            rivals=chunk_rivals(length, step),
            **common,
        ),
        Bench(
            f"unchunk {name}",
            "chunks to sequences, the mean where they overlap",
            inputs=chunks,
            expected=partial(rows_of_frames, t=t, b=b, step=step),
            rivals=unchunk_rivals(t, b, length, step),
            **common,
        ),
    ]


BENCHES = [bench for size in SIZES for bench in benches(size)]
