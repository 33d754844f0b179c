# SPDX-License-Identifier: Apache-2.0
"""The cases of a recurrent layer, which are the same for all of them."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival, Size
from nativeops.bench.limits import product_limit
from nativeops.bench.neighbour import Neighbour
from nativeops.bench.recurrent_compiled import compiled
from nativeops.bench.recurrent_graphs import keras_layer, onnx_runtime, openvino
from nativeops.bench.recurrent_mxnet import mxnet_layers
from nativeops.bench.recurrent_rivals import (
    GATES,
    Layer,
    cells,
    fused,
    hoisted,
    jax_scan,
    masked,
    numpy_ours,
    packed,
    torch_inference,
    torch_ours,
    torch_training,
)

STEP = {"t": 1, "b": 1, "i": 256, "h": 256}
SMALL = [
    {"t": 100, "b": 1, "i": 256, "h": 256},
    {"t": 25, "b": 256, "i": 128, "h": 128},
    {"t": 1000, "b": 8, "i": 80, "h": 320},
]
MIDDLE = {"t": 50, "b": 64, "i": 512, "h": 512}
LARGE = {"t": 300, "b": 20, "i": 800, "h": 800}
_KERAS = {"KERAS_BACKEND": "tensorflow"}
SECONDS = 1.5  # that a size is measured, beyond the fewest rounds: there are many of them


def benches(layer: Layer, also: Sequence[Layer] = ()) -> list[Bench]:
    """All cases of a layer, and the largest size of some that are nearly the same."""
    return [
        _inference(layer, "inference", [STEP, *SMALL, MIDDLE, LARGE]),
        _training(layer, "training", [STEP, *SMALL, MIDDLE, LARGE]),
        _lengths(layer, training=False),
        _lengths(layer, training=True),
        _high(layer, training=False),
        _high(layer, training=True),
        _bf16(layer, training=False),
        _bf16(layer, training=True),
        _beside_a_neighbour(layer),
        *(_inference(other, f"{other.name}, inference", [LARGE]) for other in also),
        *(_training(other, f"{other.name}, training", [LARGE]) for other in also),
    ]


def _inference(layer: Layer, name: str, sizes: Sequence[Size]) -> Bench:
    return Bench(
        name,
        f"all outputs of one layer ({layer.name}), from all inputs; nothing is kept",
        sizes=sizes,
        inputs=_arguments(layer),
        expected=_outputs(layer),
        work=_flops(layer),
        limit=product_limit("float32"),
        seconds=SECONDS,
        environment=_KERAS,
        rivals=[
            numpy_ours(layer),
            torch_inference(torch_ours, layer, OURS, "ours, torch"),
            torch_inference(fused, layer),
            torch_inference(hoisted, layer),
            torch_inference(cells, layer),
            compiled(layer, training=False),
            jax_scan(layer, training=False),
            onnx_runtime(layer),
            openvino(layer),
            keras_layer(layer),
            *mxnet_layers(layer.word, training=False),
        ],
    )


def _training(layer: Layer, name: str, sizes: Sequence[Size]) -> Bench:
    return Bench(
        name,
        f"the outputs of one layer ({layer.name}), and the gradients of inputs, weights and biases",
        sizes=sizes,
        inputs=_arguments(layer, training=True),
        expected=_gradients(layer),
        work=_flops(layer, passes=3),
        limit=product_limit("float32"),
        memory_sizes=[LARGE],
        seconds=SECONDS,
        environment=_KERAS,
        # Sums over all steps of all sequences. The slope of relu jumps where rounding leads to the
        # other side of 0, for anybody.
        tolerance=0.05 if layer.activation == "relu" else 1e-4,
        rivals=[
            torch_training(torch_ours, layer, OURS, "ours, torch"),
            torch_training(fused, layer),
            torch_training(hoisted, layer),
            torch_training(cells, layer),
            compiled(layer, training=True),
            jax_scan(layer, training=True),
            keras_layer(layer, training=True),
            *mxnet_layers(layer.word, training=True),
        ],
    )


def _lengths(layer: Layer, *, training: bool) -> Bench:
    """Evenly spread lengths in a random order, so that their sum is known."""
    form = torch_training if training else torch_inference
    return Bench(
        f"lengths, {'training' if training else 'inference'}",
        "the same for sequences of t/4 to t steps in any order",
        sizes=[LARGE],
        inputs=_arguments(layer, training=training, lengths=True),
        expected=(_gradients if training else _outputs)(layer, lengths=True),
        work=_flops(layer, passes=3 if training else 1, lengths=True),
        limit=product_limit("float32"),
        seconds=SECONDS,
        tolerance=1e-4 if training else 1e-5,
        rivals=[
            form(torch_ours, layer, OURS, "ours, torch", lengths=True),
            form(packed, layer, lengths=True),
            form(masked, layer, lengths=True),
        ],
    )


def _high(layer: Layer, *, training: bool) -> Bench:
    form = torch_training if training else torch_inference
    return Bench(
        f"high, {'training' if training else 'inference'}",
        'the same with `precision="high"`, where others have float32: a product as three of bf16',
        sizes=[SMALL[-1], MIDDLE, LARGE],
        inputs=_arguments(layer, training=training),
        expected=(_gradients if training else _outputs)(layer),
        work=_flops(layer, passes=9 if training else 3),
        limit=product_limit("bfloat16"),
        seconds=SECONDS,
        tolerance=1e-3 if training else 1e-4,
        rivals=[
            form(torch_ours, replace(layer, precision="high"), OURS, "ours, torch"),
            form(fused, layer),
            form(hoisted, layer),
            *([] if training else [onnx_runtime(layer)]),
        ],
    )


def _bf16(layer: Layer, *, training: bool) -> Bench:
    form = torch_training if training else torch_inference
    return Bench(
        f"bf16, {'training' if training else 'inference'}",
        "the same where all numbers are bf16",
        sizes=[MIDDLE, LARGE],
        inputs=_arguments(layer, training=training, dtype="bfloat16"),
        expected=(_gradients if training else _outputs)(layer),
        work=_flops(layer, passes=3 if training else 1),
        limit=product_limit("bfloat16"),
        seconds=SECONDS,
        dtype="bfloat16",
        tolerance=0.1 if training else 0.03,
        rivals=[
            form(torch_ours, layer, OURS, "ours, torch", dtype="bfloat16"),
            form(fused, layer, dtype="bfloat16"),
            form(hoisted, layer, dtype="bfloat16"),
            compiled(layer, training=training, dtype="bfloat16"),
        ],
    )


def _beside_a_neighbour(layer: Layer) -> Bench:
    """Compare with the same size of "inference": how much slower is who must share a CPU."""
    rivals = [
        torch_inference(torch_ours, layer, OURS, "ours, torch"),
        torch_inference(fused, layer),
        torch_inference(cells, layer),
        onnx_runtime(layer),
        openvino(layer),
    ]
    return Bench(
        "inference, one CPU busy",
        "the same beside a process that computes on the first CPU all the time",
        sizes=[LARGE],
        inputs=_arguments(layer),
        expected=_outputs(layer),
        work=_flops(layer),
        seconds=SECONDS,
        rivals=[replace(rival, prepare=_with_neighbour(rival.prepare)) for rival in rivals],
    )


def _with_neighbour(prepare: Callable[..., Any]) -> Callable[..., Any]:
    def prepared(*arrays: NdArray) -> Any:
        call, neighbour = prepare(*arrays), _NEIGHBOURS.get("one") or Neighbour()
        _NEIGHBOURS["one"] = neighbour

        def beside() -> Any:
            assert neighbour.process.poll() is None, "the neighbour has ended"
            return call()

        return beside

    return prepared


# All that are measured in turn share one.
_NEIGHBOURS: "weakref.WeakValueDictionary[str, Neighbour]" = weakref.WeakValueDictionary()


def _spread_lengths(t: int, b: int) -> NdArray:
    return np.linspace(max(1, t // 4), t, b).astype(np.int32)


def _arguments(
    layer: Layer, *, training: bool = False, lengths: bool = False, dtype: str = "float32"
) -> Callable[..., tuple[NdArray, ...]]:
    """Inputs, weights as PyTorch begins with, then lengths and what flows back, if asked for."""

    def draw(random: np.random.Generator, t: int, b: int, i: int, h: int) -> tuple[NdArray, ...]:
        rows, bound = GATES[layer.kind] * h, 1 / np.sqrt(h)
        shapes = ((rows, i), (rows, h), (rows,), (rows,))
        drawn = [random.standard_normal((t, b, i), dtype=np.float32)]
        drawn += [random.uniform(-bound, bound, shape).astype(np.float32) for shape in shapes]
        if training:
            drawn.append(random.standard_normal((t, b, h), dtype=np.float32))
        if dtype == "bfloat16":
            drawn = [(a.view(np.uint32) & 0xFFFF0000).view(np.float32) for a in drawn]
        if lengths:
            drawn.insert(5, random.permutation(_spread_lengths(t, b)))
        return tuple(drawn)

    return draw


def _flops(layer: Layer, passes: int = 1, lengths: bool = False) -> Callable[..., float]:
    """Of the matrix products; a gradient has two more for each."""

    def work(t: int, b: int, i: int, h: int) -> float:
        frames = float(_spread_lengths(t, b).sum()) if lengths else t * b
        return 2.0 * frames * GATES[layer.kind] * h * (i + h) * passes

    return work


def _outputs(layer: Layer, *, lengths: bool = False) -> Callable[..., list[Known]]:
    """By PyTorch in float64."""
    function = masked if lengths else fused
    return _known(torch_inference(function, layer, dtype="float64", lengths=lengths))


def _gradients(layer: Layer, *, lengths: bool = False) -> Callable[..., list[Known]]:
    """By PyTorch in float64."""
    function = masked if lengths else fused
    return _known(torch_training(function, layer, dtype="float64", lengths=lengths))


def _known(rival: Rival) -> Callable[..., list[Known]]:
    def compute(*arrays: NdArray) -> list[Known]:
        results: Any = rival.prepare(*arrays)()
        each = results if isinstance(results, tuple) else (results,)
        return [Known(..., np.asarray(result)) for result in each]

    return compute
