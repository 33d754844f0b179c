# SPDX-License-Identifier: Apache-2.0
"""A step of training as a benchmark case: our LSTM and CTC, and PyTorch's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nativeops.bench.case import OURS, Bench, Known, Rival
from nativeops.demos.lines_data import Lines, training_lines
from nativeops.demos.lines_model import Criterion, Library, Recogniser, logits_of
from nativeops.demos.lines_train import Plan

Arrays = tuple[NDArray[Any], ...]
SIZE = {"lines": Plan.batch, "hidden": Plan.hidden}
STEP = 1_000_000  # whose lines no training of this demo has


def inputs(random: np.random.Generator, lines: int, hidden: int) -> Arrays:
    """Lines, and the parameters of a model."""
    model = Recogniser(hidden)
    start = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    return (*training_lines(0, STEP, lines), *start)


def step(lstm: Library, ctc: Library, dtype: torch.dtype, *arrays: Any) -> Callable[[], Any]:
    """The call that computes the loss and the gradient of each parameter."""
    lines, start = Lines(*arrays[:4]), arrays[4:]
    hidden = start[1].shape[1]  # of the recurrent weights [4 * hidden, hidden]
    model, criterion = Recogniser(hidden, library=lstm).to(dtype), Criterion(ctc)
    model.eval()  # without dropout, whose zeros are elsewhere in each call
    own = list(model.parameters())
    with torch.no_grad():
        for parameter, values in zip(own, start, strict=True):
            parameter.copy_(torch.from_numpy(values))
    lines = lines._replace(pixels=torch.from_numpy(lines.pixels).to(dtype).numpy())

    def call() -> Any:
        loss = criterion(logits_of(model, lines), lines)
        return [loss, *torch.autograd.grad(loss, own)]

    return call


def expected(*arrays: Any) -> list[Known]:
    """What PyTorch's layers compute in float64."""
    right = step("torch", "torch", torch.float64, *arrays)()
    return [Known(..., each.detach().numpy()) for each in right]


def _rival(name: str, lstm: Library, ctc: Library, package: str) -> Rival:
    return Rival(name, partial(step, lstm, ctc, torch.float32), package, "torch")


BENCHES = [
    Bench(
        "training step",
        "loss and all gradients of one batch of lines",
        sizes=[SIZE],
        inputs=inputs,
        rivals=[
            _rival("nativeops", "nativeops", "nativeops", OURS),
            _rival("torch.nn.LSTM and CTCLoss", "torch", "torch", "torch"),
            _rival("torch.nn.LSTM, our CTCLoss", "torch", "nativeops", "torch"),
            _rival("our LSTM, torch.nn.CTCLoss", "nativeops", "torch", OURS),
        ],
        expected=expected,
        tolerance=1e-4,  # of gradients that are sums over all frames of all lines
    )
]
