# SPDX-License-Identifier: Apache-2.0
"""lstm_projected_layer against PyTorch's own, and against the loop that one writes there."""

from typing import Any

import numpy as np

from nativeops.bench.case import Bench
from nativeops.bench.forms import (
    exact_in_torch,
    ours_in,
    torch_gradient,
    torch_rival,
    with_arriving,
)
from nativeops.bench.limits import product_limit
from nativeops.ops.lstm_projected import lstm_projected_layer

SIZES = [
    {"t": 1, "b": 1, "i": 256, "h": 512, "p": 256},
    {"t": 100, "b": 1, "i": 256, "h": 512, "p": 256},
    {"t": 100, "b": 16, "i": 512, "h": 1024, "p": 512},  # as Sak et al. 2014
]


def _draw(random: np.random.Generator, t: int, b: int, i: int, h: int, p: int) -> tuple[Any, ...]:
    shapes = ((4 * h, i), (4 * h, p), (p, h), (4 * h,), (4 * h,))
    drawn = [random.uniform(-1, 1, shape) / np.sqrt(h) for shape in shapes]
    return tuple(a.astype(np.float32) for a in (random.standard_normal((t, b, i)), *drawn))


def _flops(passes: int) -> Any:
    def work(t: int, b: int, i: int, h: int, p: int) -> float:
        return 2.0 * t * b * h * (4 * (i + p) + p) * passes

    return work


def ours(x: Any, w_ih: Any, w_hh: Any, w_hr: Any, b_ih: Any, b_hh: Any) -> Any:
    """The op."""
    return lstm_projected_layer(x, w_ih, w_hh, w_hr, b_ih, b_hh).output


def fused(x: Any, w_ih: Any, w_hh: Any, w_hr: Any, b_ih: Any, b_hh: Any) -> Any:
    """PyTorch's function behind ``torch.nn.LSTM(proj_size=..)``."""
    import torch

    weights = (w_ih, w_hh, b_ih, b_hh, w_hr)
    h, c = (x.new_zeros(1, x.shape[1], size) for size in w_hr.shape)
    training = torch.is_grad_enabled()
    return torch.lstm(x, (h, c), weights, True, 1, 0.0, training, False, False)[0]


def hoisted(x: Any, w_ih: Any, w_hh: Any, w_hr: Any, b_ih: Any, b_hh: Any) -> Any:
    """The input product of all steps at once, then a loop over the steps."""
    import torch

    h, c = (x.new_zeros(x.shape[1], size) for size in w_hr.shape)
    outputs = []
    for step in torch.nn.functional.linear(x, w_ih, b_ih).unbind():
        i, f, g, o = (step + torch.addmm(b_hh, h, w_hh.t())).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = (torch.sigmoid(o) * torch.tanh(c)) @ w_hr.t()
        outputs.append(h)
    return torch.stack(outputs)


BENCHES = [
    Bench(
        "inference",
        "all outputs of one layer, from all inputs; nothing is kept",
        sizes=SIZES,
        inputs=_draw,
        expected=exact_in_torch(torch_rival(fused)),
        work=_flops(1),
        limit=product_limit("float32"),
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            torch_rival(fused),
            torch_rival(hoisted),
        ],
    ),
    Bench(
        "training",
        "the outputs of one layer, and the gradients of inputs, weights and biases",
        sizes=SIZES[1:],
        inputs=with_arriving(_draw, "tbp"),
        expected=exact_in_torch(torch_gradient(fused)),
        work=_flops(3),
        limit=product_limit("float32"),
        tolerance=1e-4,
        rivals=[
            *ours_in(ours, "torch", gradient=True),
            torch_gradient(fused),
            torch_gradient(hoisted),
        ],
    ),
]
