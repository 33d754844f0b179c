# SPDX-License-Identifier: Apache-2.0
"""How an array may lie in memory, in any framework whose arrays slice as NumPy's do."""

from collections.abc import Callable
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """A buffer's shape for an array's, and the array as a view of that buffer."""

    buffer: Callable[[Shape], Shape]
    view: Callable[[Any, Shape], Any]
    min_rank: int = 0
    numpy_only: bool = False
    repeats: bool = False  # several elements share memory, so they have one value


def _swap(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _spread(shape: Shape) -> Shape:
    return tuple(2 * size + 1 for size in shape)


def _each(part: slice) -> Callable[[Any, Shape], Any]:
    return lambda buffer, shape: buffer[(part,) * len(shape)]


def _repeat(axis: int) -> Layout:
    """Stride 0 along one axis."""

    def buffer(shape: Shape) -> Shape:
        position = axis % len(shape)
        return (*shape[:position], min(1, shape[axis]), *shape[position + 1 :])

    def view(small: Any, shape: Shape) -> Any:
        if hasattr(small, "expand"):
            return small.expand(shape)
        import numpy as np

        return np.broadcast_to(small, shape)

    return Layout(buffer, view, min_rank=-axis, repeats=True)


LAYOUTS = {
    "contiguous": Layout(lambda shape: shape, lambda buffer, shape: buffer),
    "transposed": Layout(_swap, lambda buffer, shape: buffer.swapaxes(-1, -2), min_rank=2),
    "first axis last": Layout(
        lambda shape: (*shape[1:], shape[0]),
        lambda buffer, shape: buffer[None].swapaxes(0, -1)[..., 0],
        min_rank=1,
    ),
    "every second": Layout(_spread, _each(slice(1, None, 2)), min_rank=1),
    "offset": Layout(
        lambda shape: tuple(size + 3 for size in shape), _each(slice(1, -2)), min_rank=1
    ),
    "backwards": Layout(
        lambda shape: shape, _each(slice(None, None, -1)), min_rank=1, numpy_only=True
    ),
    "backwards in steps": Layout(
        lambda shape: tuple(3 * size for size in shape),
        _each(slice(None, None, -3)),
        min_rank=1,
        numpy_only=True,
    ),
    "one column repeated": _repeat(-1),
    "one row repeated": _repeat(-2),
}
