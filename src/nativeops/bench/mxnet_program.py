# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in MXNet, computed when told (see `nativeops.bench.aside`).

Run by the Python of MXNet's own environment, so it imports nothing of this package. The job is
JSON: ``kind`` (lstm, gru, rnn_tanh or rnn_relu), ``both`` directions or one, ``cells`` or the fused
layer, ``training``. The inputs are those of the first layer, the four weights of each layer and
direction in PyTorch's order, and what flows back, if there is training. The results are the outputs
or the gradients of the inputs and of all weights.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mxnet
import numpy as np

KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
WEIGHTS = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
Job = dict[str, Any]
Array = Any  # of NumPy, or MXNet's


def class_of(job: Job, ending: str = "") -> Callable[..., Any]:
    """MXNet's layer, or its cell."""
    kind = KINDS[job["kind"]]
    more = {"activation": job["kind"][4:]} if kind == "RNN" else {}
    return partial(getattr(mxnet.gluon.rnn, kind + ending), **more)


class Unrolled(mxnet.gluon.HybridBlock):  # type: ignore[misc]
    """One cell for each layer and direction, written out step by step: a graph of small ops."""

    def __init__(self, job: Job, steps: int, units: int, layers: int) -> None:
        super().__init__()
        self.steps = steps
        self.blocks: list[Any] = []
        with self.name_scope():
            self.cell = mxnet.gluon.rnn.HybridSequentialRNNCell()
            for _ in range(layers):
                made = [class_of(job, "Cell")(units) for _ in range(1 + job["both"])]
                self.cell.add(mxnet.gluon.rnn.BidirectionalCell(*made) if job["both"] else made[0])
                self.blocks += made

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        """MXNet calls it once, with symbols."""
        return self.cell.unroll(self.steps, x, layout="TNC", merge_outputs=True)[0]

    def weights(self) -> list[Any]:
        """In the order of the inputs."""
        return [getattr(block, name) for block in self.blocks for name in WEIGHTS]


def fused(job: Job, units: int, layers: int) -> tuple[Any, list[Any]]:
    """MXNet's layer, and its weights in the order of the inputs."""
    layer = class_of(job)(units, num_layers=layers, bidirectional=job["both"])
    places = [f"{d}{n}_" for n in range(layers) for d in "lr"[: 1 + job["both"]]]
    return layer, [getattr(layer, place + name) for place in places for name in WEIGHTS]


def prepare(job: Job, x: Array, *arrays: Array) -> Callable[[], list[Any]]:
    """The computation, whose results are a list of MXNet's arrays."""
    weights, d_y = (arrays[:-1], arrays[-1]) if job["training"] else (arrays, None)
    units, layers = weights[1].shape[1], len(weights) // len(WEIGHTS) // (1 + job["both"])
    if job["cells"]:
        layer = Unrolled(job, len(x), units, layers)
        parameters = layer.weights()
    else:
        layer, parameters = fused(job, units, layers)
    layer.initialize()
    layer.hybridize(static_alloc=True, static_shape=True)
    x = mxnet.nd.array(x)
    layer(x)  # which tells the parameters their shapes
    for parameter, weight in zip(parameters, weights, strict=True):
        parameter.set_data(mxnet.nd.array(weight))

    def infer() -> list[Any]:
        return [layer(x)]

    def train() -> list[Any]:
        with mxnet.autograd.record():
            y = layer(x)
        y.backward(d_y)
        return [x.grad, *(parameter.grad() for parameter in parameters)]

    if not job["training"]:
        return infer
    x.attach_grad()
    d_y = mxnet.nd.array(d_y)
    return train


def main(folder: str, job: str) -> None:
    """Answer each line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to standard error
    paths = sorted(Path(folder).glob("[0-9]*.npy"), key=lambda path: int(path.stem))
    compute = prepare(json.loads(job), *(np.load(path) for path in paths))
    results = []
    for line in sys.stdin:
        if line == "run\n":
            results = compute()
            mxnet.nd.waitall()
        else:
            for number, result in enumerate(results):
                np.save(Path(folder, f"result-{number}.npy"), result.asnumpy())
        print(file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
