# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks of several layers, in one or both directions, as models have them, in PyTorch.

All rivals have the parameters of one ``torch.nn`` layer, as it begins with the same seed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival, Size
from nativeops.bench.limits import product_limit
from nativeops.bench.recurrent_mxnet import mxnet_layers

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, "RNN relu": 1}
CELLS = {
    "LSTM": "lstm_cell",
    "GRU": "gru_cell",
    "RNN": "rnn_tanh_cell",
    "RNN relu": "rnn_relu_cell",
}
LECTURES = {"t": 200, "b": 16, "i": 512, "h": 512, "layers": 2, "directions": 2}  # any lengths
DEEP = {"t": 300, "b": 20, "i": 800, "h": 800, "layers": 5, "directions": 2}
SERVED = {"t": 100, "b": 1, "i": 128, "h": 64, "layers": 1, "directions": 2}  # a thread for each
STREAMED = {"t": 100, "b": 1, "i": 128, "h": 64, "layers": 2, "directions": 1}  # and each layer
Module = Any


def _make(classes: Any, kind: str, size: Size) -> Module:
    """A network of several layers."""
    word, _, activation = kind.partition(" ")
    more = {"nonlinearity": activation} if activation else {}
    sizes = (size["i"], size["h"], size["layers"])
    return getattr(classes, word)(*sizes, bidirectional=size["directions"] == 2, **more)


def _theirs(kind: str, size: Size, dtype: str = "float32") -> Module:
    """``torch.nn``'s layer, always with the same parameters."""
    import torch

    torch.manual_seed(0)
    return _make(torch.nn, kind, size).to(getattr(torch, dtype))


def _ours(kind: str, size: Size) -> Module:
    """This package's, with the parameters of the other."""
    from nativeops.layers import torch as layers

    made = _make(layers, kind, size)
    made.load_state_dict(_theirs(kind, size).state_dict())
    return made


def _cells(kind: str, size: Size) -> Callable[[Any], tuple[Any, None]]:
    """Loops over PyTorch's cells, one for each layer and direction."""
    import torch

    theirs = _theirs(kind, size)
    cell = getattr(torch, CELLS[kind])

    def direction(x: Any, weights: Sequence[Any], *, reverse: bool) -> Any:
        h = c = x.new_zeros(x.shape[1], weights[1].shape[1])
        outputs = []
        for step in reversed(x.unbind()) if reverse else x.unbind():
            if kind == "LSTM":
                h, c = cell(step, (h, c), *weights)
            else:
                h = cell(step, h, *weights)
            outputs.append(h)
        return torch.stack(outputs[::-1] if reverse else outputs)

    def forward(x: Any) -> tuple[Any, None]:
        weights = iter(theirs.all_weights)
        for _ in range(size["layers"]):
            words = (False, True)[: size["directions"]]
            outputs = [direction(x, next(weights), reverse=word) for word in words]
            x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return x, None

    forward.parameters = theirs.parameters  # type: ignore[attr-defined]
    return forward


def _run(module: Module, x: Any, lengths: Any) -> Any:
    """The outputs; of packed sequences if there are lengths."""
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    if lengths is None:
        return module(x)[0]
    packed = module(pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
    return pad_packed_sequence(packed, total_length=len(x))[0]


def _rival(make: Callable[..., Module], kind: str, *, training: bool, name: str = "") -> Rival:
    def prepare(x: NdArray, layers: NdArray, d_y: NdArray, *more: NdArray) -> Callable[[], Any]:
        import torch

        module = make(kind, _size(x, layers, d_y))
        lengths = torch.tensor(more[0], device="cpu") if more else None  # as PyTorch wants them
        given = torch.tensor(x).requires_grad_(training)
        arriving = torch.tensor(d_y)
        wanted = [given, *module.parameters()]

        def infer() -> Any:
            with torch.no_grad():
                return _run(module, given, lengths)

        def train() -> Any:
            return torch.autograd.grad(_run(module, given, lengths), wanted, arriving)

        return train if training else infer

    package = OURS if make is _ours else "torch"
    return Rival(name or make.__name__.strip("_"), prepare, package, "torch")


def _size(x: NdArray, layers: NdArray, d_y: NdArray) -> Size:
    count, directions = layers.shape
    h = d_y.shape[2] // directions
    return {"i": x.shape[2], "h": h, "layers": count, "directions": directions}


def _mxnet(kind: str, *, training: bool, both: bool) -> list[Rival]:
    def arrays(x: NdArray, layers: NdArray, d_y: NdArray) -> list[NdArray]:
        parameters = _theirs(kind, _size(x, layers, d_y)).parameters()
        own = [parameter.detach().numpy() for parameter in parameters]
        return [x, *own, *([d_y] if training else [])]

    word = CELLS[kind].removesuffix("_cell")
    return mxnet_layers(word, training=training, both=both, arrays=arrays)


def _inputs(*, lengths: bool) -> Callable[..., tuple[NdArray, ...]]:
    """The sequences, a number for each layer and direction, what flows back, and lengths from t/4
    to t."""

    def draw(
        random: np.random.Generator, t: int, b: int, i: int, h: int, layers: int, directions: int
    ) -> tuple[NdArray, ...]:
        x = random.standard_normal((t, b, i), dtype=np.float32)
        d_y = random.standard_normal((t, b, directions * h), dtype=np.float32)
        spread = np.linspace(max(1, t // 4), t, b).astype(np.int64)
        more = [random.permutation(spread)] if lengths else []
        return (x, np.zeros((layers, directions)), d_y, *more)

    return draw


def _expected(kind: str, *, training: bool) -> Callable[..., list[Known]]:
    """By PyTorch in float64."""

    def exact(kind: str, size: Size) -> Module:
        return _theirs(kind, size, "float64")

    def compute(x: NdArray, layers: NdArray, d_y: NdArray, *more: NdArray) -> list[Known]:
        rival = _rival(exact, kind, training=training)
        results = rival.prepare(x.astype(float), layers, d_y.astype(float), *more)()
        each = results if training else (results,)
        return [Known(..., result.detach().numpy()) for result in each]

    return compute


def _flops(kind: str, *, training: bool, lengths: bool) -> Callable[..., float]:
    def work(t: int, b: int, i: int, h: int, layers: int, directions: int) -> float:
        frames = np.linspace(max(1, t // 4), t, b).astype(np.int64).sum() if lengths else t * b
        inputs = i + directions * h * (layers - 1)
        products = 2.0 * float(frames) * directions * GATES[kind] * h * (inputs + layers * h)
        return products * (3 if training else 1)

    return work


def _bench(kind: str, *sizes: Size, training: bool, lengths: bool) -> Bench:
    both = sizes[0]["directions"] == 2
    rivals = [_rival(_ours, kind, training=training, name="ours, torch")]
    rivals.append(_rival(_theirs, kind, training=training, name="packed" if lengths else "fused"))
    if not lengths:
        rivals.append(_rival(_cells, kind, training=training))
        rivals += _mxnet(kind, training=training, both=both)
    shape = "lengths" if lengths else "deep" if both else "one direction"
    return Bench(
        f"{kind}, {shape}, {'training' if training else 'inference'}",
        f"layers of {kind} in {'both directions' if both else 'one direction'}"
        + (", sequences of t/4 to t steps in any order" if lengths else "")
        + (": outputs, then gradients of inputs and parameters" if training else ": outputs"),
        sizes=sizes,
        inputs=_inputs(lengths=lengths),
        rivals=rivals,
        expected=_expected(kind, training=training),
        work=_flops(kind, training=training, lengths=lengths),
        limit=product_limit("float32"),
        # The slope of relu jumps where rounding leads to the other side of 0, for anybody.
        tolerance=0.05 if training and "relu" in kind else 1e-3 if training else 1e-4,
        seconds=1.5,
    )


BENCHES = [
    *(_bench(kind, LECTURES, training=t, lengths=True) for kind in GATES for t in (False, True)),
    *(
        _bench(kind, *sizes, training=t, lengths=False)
        for sizes in ((DEEP, SERVED), (STREAMED,))
        for kind in GATES
        for t in (False, True)
    ),
]
