# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers: arguments, their results with all that is kept, and what PyTorch says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nativeops.call import Op
from nativeops.library import DTYPES, define, extension
from nativeops.ops.gru import gru_layer, gru_layer_grad
from nativeops.ops.lstm import lstm_layer, lstm_layer_grad
from nativeops.ops.lstm_projected import lstm_projected_layer, lstm_projected_layer_grad
from nativeops.ops.rnn import rnn_layer, rnn_layer_grad
from nativeops.signature import Solution
from nativeops.testing.arrays import numpy_dtype

Values = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Kind:
    """A layer, the op of its gradient, and its name in ``torch.nn``, if that has it."""

    name: str
    op: Op[Any]
    grad: Op[Any]
    gates: int
    module: str
    states: tuple[str, ...] = ("h",)
    options: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()  # further weights

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of all weights and biases."""
        return ("w_ih", "w_hh", "b_ih", "b_hh", *self.more)

    def width(self, units: int) -> int:
        """How many numbers the output of a step has."""
        return (units + 1) // 2 if "w_hr" in self.more else units

    def __str__(self) -> str:
        return self.name


LSTM = Kind("lstm", lstm_layer, lstm_layer_grad, 4, "LSTM", ("h", "c"))
GRU = Kind("gru", gru_layer, gru_layer_grad, 3, "GRU")
TANH = Kind("tanh", rnn_layer, rnn_layer_grad, 1, "RNN", options={"activation": "tanh"})
RELU = Kind("relu", rnn_layer, rnn_layer_grad, 1, "RNN", options={"activation": "relu"})
PEEPHOLES = Kind(
    "lstm-peepholes", lstm_layer, lstm_layer_grad, 4, "", ("h", "c"), more=("peepholes",)
)
PROJECTED = Kind(
    "lstm-projected", lstm_projected_layer, lstm_projected_layer_grad, 4, "", ("h", "c"),
    more=("w_hr", "peepholes"),
)  # fmt: skip
RESET_FIRST = Kind(
    "gru-reset-first", gru_layer, gru_layer_grad, 3, "", options={"linear_before_reset": False}
)
KINDS = (LSTM, GRU, TANH, RELU, PEEPHOLES, PROJECTED, RESET_FIRST)


def draw(
    kind: Kind,
    sizes: tuple[int, int, int, int],
    lengths: Any = "any",
    *,
    dtype: str = "float64",
    reverse: bool = False,
    seed: int = 0,
) -> Values:
    """Arguments of a layer.

    Args:
        kind: The layer.
        sizes: Steps, sequences, inputs and hidden units.
        lengths: Of the sequences; by default any, also 0; None leaves them away.
        dtype: Of all numbers; they are drawn in float64 and rounded.
        reverse: As the op has it.
        seed: The same one gives the same numbers.
    """
    t, b, i, h = sizes
    random = np.random.default_rng(seed)
    bound = 1 / np.sqrt(max(h, 1))  # as PyTorch begins with
    drawn, p, rows = {"x": random.standard_normal((t, b, i))}, kind.width(h), kind.gates * h
    shapes = {"w_ih": (rows, i), "w_hh": (rows, p), "b_ih": (rows,), "b_hh": (rows,)}
    shapes |= {"w_hr": (p, h), "peepholes": (3 * h,)}
    drawn |= {name: random.uniform(-bound, bound, shapes[name]) for name in kind.weights}
    for state in kind.states:
        drawn[f"{state}_0"] = random.standard_normal((b, p if state == "h" else h))
    given = {name: array.astype(numpy_dtype(dtype)) for name, array in drawn.items()}
    if isinstance(lengths, str):
        lengths = random.integers(0, t + 1, b)
    if lengths is not None:
        given["lengths"] = np.asarray(lengths, np.int32)
    return {**given, **kind.options, "reverse": reverse}


def draw_arriving(kind: Kind, given: Values, seed: int = 1) -> Values:
    """What arrives at the results of a layer with these arguments."""
    random, (t, b, _), p = np.random.default_rng(seed), given["x"].shape, given["w_hh"].shape[1]
    drawn = {"d_output": random.standard_normal((t, b, p))}
    for state in kind.states:
        drawn[f"d_{state}_n"] = random.standard_normal(given[f"{state}_0"].shape)
    return {name: array.astype(given["x"].dtype) for name, array in drawn.items()}


def as_dtype(values: Values, dtype: str) -> Values:
    """The same numbers in another dtype; lengths stay what they are."""

    def converted(value: Any) -> Any:
        floats = isinstance(value, np.ndarray) and value.dtype != np.int32
        return value.astype(dtype) if floats else value

    return {name: converted(value) for name, value in values.items()}


def run_all(op: Op[Any], given: Values) -> Values:
    """All results of an op in NumPy, also those that it keeps for its gradient."""
    define(op)
    signature = op.signature
    inputs = [given.get(spec.name) for spec in signature.inputs]
    described = [
        spec.nothing if array is None else spec.given(array.dtype.name, array.shape)
        for spec, array in zip(signature.inputs, inputs, strict=True)
    ]
    chosen = {s.name: given.get(s.name, s.default) for s in signature.attributes}
    solution = op.check(described, ["cpu"] * len(inputs), chosen)
    made = {spec.name: _empty(op, spec, solution) for spec in signature.outputs}
    held = tuple(None if array is None else _bits(array) for array in inputs)
    places = tuple(_bits(array) for array in made.values())
    said = extension().run(op.id, held, places, tuple(chosen.values()))
    assert not said, said
    return made


def _empty(op: Op[Any], spec: Any, solution: Solution) -> Any:
    dtype = op.signature.output_dtype(spec, solution)
    return np.empty(op.signature.output_shape(spec, solution), numpy_dtype(dtype))


def _bits(array: Any) -> tuple[Any, int]:
    """The extension takes bfloat16 as items of the same size."""
    plain = array.view(np.float16) if array.dtype.name == "bfloat16" else array
    return plain, DTYPES.index(array.dtype.name)


def forward_backward(kind: Kind, given: Values, arriving: Values) -> Values:
    """The results of a layer and of its gradient, by their kernels."""
    made = run_all(kind.op, given)
    return {**made, **run_all(kind.grad, to_gradient(kind, {**given, **made, **arriving}))}


def to_gradient(kind: Kind, known: Values) -> Values:
    """The arguments of a layer's gradient, among its arguments, its results and what arrives."""
    left_away = {"gates"} if known.get("low_memory") else set()
    signature = kind.grad.signature
    names = [spec.name for spec in signature.inputs] + [s.name for s in signature.attributes]
    return {name: known[name] for name in names if name in known and name not in left_away}


def in_torch(given: Values) -> Values:
    """The arguments as tensors, those of floats with a gradient."""
    import torch

    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        made = torch.from_numpy(value.copy())
        return made.requires_grad_() if made.is_floating_point() else made

    return {name: tensor(value) for name, value in given.items()}


def torch_results(kind: Kind, given: Values, arriving: Values, ours: bool = False) -> Values:
    """Results and gradients of all float arguments: by ``torch.nn``, or by our op and autograd.

    What ``torch.nn`` does not have is computed step by step from PyTorch's functions.
    """
    import torch

    tensors = in_torch(given)
    theirs = _by_module if kind.module else by_steps
    results = kind.op(**tensors) if ours else theirs(kind, tensors)
    names = ("output", *(f"{state}_n" for state in kind.states))
    made = dict(zip(names, results, strict=False))
    wanted = {n: v for n, v in tensors.items() if torch.is_tensor(v) and v.requires_grad}
    flowing = {n: torch.from_numpy(arriving[f"d_{n}"]) for n in names if made[n].requires_grad}
    gradients = torch.autograd.grad(
        [made[name] for name in flowing],
        list(wanted.values()),
        list(flowing.values()),
        allow_unused=True,
        materialize_grads=True,
    )
    made |= {f"d_{name}": g for name, g in zip(wanted, gradients, strict=True)}
    return {name: value.detach().numpy() for name, value in made.items()}


def by_steps(kind: Kind, given: Values) -> list[Any]:
    """The layer as its formulas are written, for all sequences at once."""
    import torch

    x, (steps, batch, _) = given["x"], given["x"].shape
    lengths = given.get("lengths", torch.full((batch,), steps)).long()
    now = [given[f"{state}_0"] for state in kind.states]
    outputs, each = [], torch.arange(batch)
    time = torch.arange(steps)[:, None]
    order = (lengths - 1 - time).clamp(0) if given["reverse"] else time.expand(steps, batch)
    for s in range(steps):
        after = _advance(kind, given, x[order[s], each], *now)
        inside = (s < lengths)[:, None]
        now = [torch.where(inside, a, b) for a, b in zip(after, now, strict=True)]
        outputs.append(now[0])
    if not outputs:
        return [x.new_zeros(0, batch, given["w_hh"].shape[1]), *now]
    output = torch.stack(outputs)[order, each]
    return [torch.where((time < lengths)[:, :, None], output, 0.0), *now]


def _advance(kind: Kind, w: Values, x: Any, h: Any, c: Any = None) -> list[Any]:
    """The states after one step."""
    import torch

    linear, units = torch.nn.functional.linear, w["w_ih"].shape[0] // kind.gates
    if kind.gates == 3:
        (x_r, x_z, x_n), cut = linear(x, w["w_ih"], w["b_ih"]).chunk(3, -1), 2 * units
        y_r, y_z = linear(h, w["w_hh"][:cut], w["b_hh"][:cut]).chunk(2, -1)
        r, z = torch.sigmoid(x_r + y_r), torch.sigmoid(x_z + y_z)
        n = torch.tanh(x_n + linear(r * h, w["w_hh"][cut:], w["b_hh"][cut:]))
        return [(1 - z) * n + z * h]
    sums = linear(x, w["w_ih"], w["b_ih"]) + linear(h, w["w_hh"], w["b_hh"])
    (z_i, z_f, z_g, z_o), (p_i, p_f, p_o) = sums.chunk(4, -1), w["peepholes"].chunk(3)
    c, before = torch.sigmoid(z_f + p_f * c) * c, c
    c = c + torch.sigmoid(z_i + p_i * before) * torch.tanh(z_g)
    h = torch.sigmoid(z_o + p_o * c) * torch.tanh(c)
    return [linear(h, w["w_hr"]) if "w_hr" in w else h, c]


def _by_module(kind: Kind, given: Values) -> list[Any]:
    """PyTorch's own layer, of which sequences without a step are kept away."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    x, reverse = given["x"], given["reverse"]
    (steps, batch, _), units = x.shape, given["w_hh"].shape[1]
    states = [given[f"{state}_0"] for state in kind.states]
    lengths = given.get("lengths", torch.full((batch,), steps)).long()
    some = lengths.nonzero()[:, 0]
    output = x.new_zeros(steps, batch, units)
    if len(some) == 0:
        return [output, *states]
    packed = pack_padded_sequence(x[:, some], lengths[some], enforce_sorted=False)
    # Backwards it is one half of two directions; the other is of no interest.
    first = [torch.stack([s[some], s[some]][: 1 + reverse]) for s in states]
    weights = {n: given[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")}
    found, last = _call_module(kind, weights, reverse, packed, first)
    padded = pad_packed_sequence(found, total_length=steps)[0][..., -units:]
    ends = [s.index_copy(0, some, end[-1]) for s, end in zip(states, last, strict=True)]
    return [output.index_copy(1, some, padded), *ends]


def _call_module(kind: Kind, weights: Values, reverse: bool, packed: Any, first: Any) -> Any:
    """The outputs of ``torch.nn``'s layer with these weights, and its final states as a list."""
    import torch
    from torch.func import functional_call

    inputs, units = weights["w_ih"].shape[1], weights["w_hh"].shape[1]
    more = {"nonlinearity": kind.name} if kind.module == "RNN" else {}
    make: Any = getattr(torch.nn, kind.module)
    module = make(inputs, units, bidirectional=reverse, dtype=weights["w_ih"].dtype, **more)
    long = {"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
    own = {f"{long[name]}_l0{'_reverse' * reverse}": value for name, value in weights.items()}
    state = tuple(first) if len(first) > 1 else first[0]
    found, last = functional_call(module, own, (packed, state))
    return found, list(last) if len(first) > 1 else [last]
