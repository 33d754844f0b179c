# SPDX-License-Identifier: Apache-2.0
"""Loops over the steps of a recurrent layer, compiled by `torch.compile`.

It does not look into `torch.nn`'s layers, but calls them as they are.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from nativeops.bench.case import Rival
from nativeops.bench.recurrent_rivals import (
    Layer,
    Words,
    advance,
    hoisted,
    torch_inference,
    torch_training,
)

_UNROLLED = 50  # steps; with their gradients they take some two minutes to compile


def compiled(layer: Layer, *, training: bool, dtype: str = "float32") -> Rival:
    """A program of its own for each size: every step after the other, or PyTorch's `scan`."""
    form = torch_training if training else torch_inference
    rival = form(_Program(), layer, name="compiled", dtype=dtype)
    # The gradient of a compiled `scan` is wrong (PyTorch 2.13: that of w_hh, by far).
    return replace(rival, declines=_too_long) if training else rival


def _too_long(t: int, **_: int) -> str:
    return f"{t} steps take long to compile (at most {_UNROLLED})" if t > _UNROLLED else ""


class _Program:
    """The loop, compiled by the first call, since only then PyTorch is needed."""

    def __init__(self) -> None:
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, layer: Layer, *arrays: Any) -> Any:
        if self._compiled is None:
            import torch

            self._compiled = torch.compile(partial(_loop, layer), fullgraph=True, dynamic=False)
        return self._compiled(*arrays)


def _loop(layer: Layer, x: Any, *weights: Any) -> Any:
    return (hoisted if len(x) <= _UNROLLED else _scanned)(layer, x, *weights)


def _scanned(layer: Layer, x: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """The loop of `hoisted` as an operator, which is compiled once for all steps."""
    import torch
    from torch._higher_order_ops.scan import scan

    words = Words(torch.sigmoid, torch.tanh, partial(torch.chunk, dim=-1))

    def step(state: Any, from_x: Any) -> Any:
        h, c = state[0], state[-1]
        new = advance(layer, words, from_x, torch.addmm(b_hh, h, w_hh.t()), h, c)
        # Nothing that is returned may share memory.
        return tuple(part.clone() for part in new[: len(state)]), new[0].clone()

    zeros = [x.new_zeros(x.shape[1], w_hh.shape[1]) for _ in range(1 + (layer.kind == "lstm"))]
    return scan(step, tuple(zeros), torch.nn.functional.linear(x, w_ih, b_ih), dim=0)[1]
