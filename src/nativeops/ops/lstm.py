# SPDX-License-Identifier: Apache-2.0
"""LSTM layer: one layer in one direction."""

from typing import Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Int32, Kept, op
from nativeops.ops import _steps


class LstmLayer(NamedTuple, Generic[Array]):
    """The outputs of all steps and the final states of `lstm_layer`."""

    output: Float[Array, "t b h"]
    h_n: Float[Array, "b h"]
    c_n: Float[Array, "b h"]
    gates: Kept[Float[Array, "t-low_memory*t b 4*h"]]
    cells: Kept[Float[Array, "t b h"]]


@op(kernel="lstm.h", independent="b", carries="t")
def lstm_layer(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "4*h i"],
    w_hh: Float[Array, "4*h h"],
    b_ih: Float[Array, "4*h"] | None = None,
    b_hh: Float[Array, "4*h"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    lengths: Int32[Array, "b"] | None = None,
    *,
    reverse: bool = False,
    low_memory: bool = False,
    precision: _steps.Precision = "default",
) -> LstmLayer[Array]:
    """One LSTM layer in one direction over a batch of sequences.

    ``i, f, o = σ(z_i), σ(z_f), σ(z_o)``, ``g = tanh(z_g)``, ``c' = f·c + i·g``,
    ``output[t] = h' = o·tanh(c')``, where ``z = W_ih x[t] + b_ih + W_hh h + b_hh`` has four blocks
    ``i, f, g, o`` of ``h`` rows.

    Args:
        x: The inputs, step by step.
        w_ih: Weights of the inputs, in cuDNN's and PyTorch's order of gates (i, f, g, o).
        w_hh: Weights of the state before.
        b_ih: Added to the products with the inputs; none if left away.
        b_hh: Added to the products with the state; none if left away.
        h_0: The output before the first step; zeros if left away.
        c_0: The cell before the first step; zeros if left away.
        lengths: The number of steps of each sequence, from 0 to ``t``, in any order; ``t`` if left
            away.
        reverse: From each sequence's own end to its beginning.
        low_memory: Keep no gates for the gradient, which then computes them again.
        precision: ``"highest"`` computes in the dtype (bf16 and f16 sum in float32), ``"default"``
            is the same. ``"high"`` may take each product of two float32 as three of bf16, which
            CPUs with AMX multiply several times faster: rms error of the outputs at most 1e-5;
            infinities may become NaN. Everywhere else, and for other dtypes, it changes nothing.

    Returns: ``output``, 0 beyond the end of a sequence, and the states ``h_n`` and ``c_n`` after
        its own last step (the initial ones if it has none).
    NaN: stays in its own sequence.
    Gradient: for all float arguments.
    Cost: O(Σ lengths · h·(i + h)) time; in memory, beyond the results, the packed weights and two
        steps (at least 48 rows) of gates. Where a gradient is needed 5·t·b·h numbers are kept,
        or t·b·h with ``low_memory``, for a third more time.
    Same as: ``torch.nn.LSTM(i, h)``.
    Source: Hochreiter & Schmidhuber 1997, Long short-term memory; Gers, Schmidhuber & Cummins 2000
        (forget gate); without peepholes.

    >>> lstm_layer(np.ones((2, 1, 1)), np.ones((4, 1)), np.zeros((4, 1))).output.ravel().round(4)
    array([0.3696, 0.5453])
    """
    weights, states = (w_ih, w_hh, b_ih, b_hh), (h_0, c_0)
    made = LstmLayer(*_steps.forward(_cell, (4, 1), x, weights, states, lengths, reverse))
    return made._replace(gates=made.gates[:0]) if low_memory else made


def _cell(from_x: Any, from_h: Any, h: Any, c: Any) -> tuple[Any, ...]:
    z = (from_x + from_h).reshape(4, len(h))
    i, f, o = (1 / (1 + np.exp(-z[gate])) for gate in (0, 1, 3))
    g = np.tanh(z[2])
    c = f * c + i * g
    return o * np.tanh(c), c, (np.concatenate([i, f, g, o]), c)


class LstmLayerGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `lstm_layer`."""

    d_x: Float[Array, "t b i"] | None
    d_w_ih: Float[Array, "4*h i"] | None
    d_w_hh: Float[Array, "4*h h"] | None
    d_b: Float[Array, "4*h"] | None
    d_h_0: Float[Array, "b h"] | None
    d_c_0: Float[Array, "b h"] | None


@op(kernel="lstm.h", independent="b", carries="t")
def lstm_layer_grad(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "4*h i"],
    w_hh: Float[Array, "4*h h"],
    output: Float[Array, "t b h"],
    cells: Float[Array, "t b h"],
    d_output: Float[Array, "t b h"],
    d_h_n: Float[Array, "b h"],
    d_c_n: Float[Array, "b h"],
    gates: Float[Array, "t b 4*h"] | None = None,
    b_ih: Float[Array, "4*h"] | None = None,
    b_hh: Float[Array, "4*h"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    lengths: Int32[Array, "b"] | None = None,
    *,
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> LstmLayerGrad[Array]:
    """What flows back through `lstm_layer` into its arguments.

    ``d_h = d_output[t] + W_hhᵀ d_z[t + 1]`` and ``d_c += d_h·o·(1 - tanh²(c'))``, from the last
    step to the first; ``d_z_i = d_c·g·i(1 - i)``, ``d_z_f = d_c·c·f(1 - f)``,
    ``d_z_g = d_c·i·(1 - g²)``, ``d_z_o = d_h·tanh(c')·o(1 - o)``; then ``d_c`` becomes ``d_c·f``.
    In the end ``d_x = d_z W_ih``, ``d_w_ih = Σ d_zᵀ x``, ``d_w_hh = Σ d_zᵀ h``, ``d_b = Σ d_z``.

    Args:
        x: As given to `lstm_layer`.
        w_ih: As given to `lstm_layer`.
        w_hh: As given to `lstm_layer`.
        output: What `lstm_layer` returned.
        cells: The cells that it kept.
        d_output: The gradient that arrives at the outputs.
        d_h_n: The gradient that arrives at the final output.
        d_c_n: The gradient that arrives at the final cell.
        gates: The activated gates that it kept, or None: then they are computed again.
        b_ih: As given to `lstm_layer`; needed where no gates were kept.
        b_hh: As given to `lstm_layer`; needed where no gates were kept.
        h_0: As given to `lstm_layer`.
        c_0: As given to `lstm_layer`.
        lengths: As given to `lstm_layer`.
        reverse: As given to `lstm_layer`.
        precision: As given to `lstm_layer`; of the gradients' products.

    Returns: One gradient per argument; that of both biases is ``d_b``. ``only(["d_x"])`` of the op
        makes one, the others are None.
    NaN: stays in its own sequence, but for the gradients of weights and biases.
    Gradient: none.
    Cost: O(Σ lengths · h·(i + h)) time; 4·t·b·h numbers and the packed weights of workspace.
    Same as: the gradient of ``torch.nn.LSTM``.
    Source: Graves 2012, Supervised sequence labelling with recurrent neural networks, chapter 4.

    >>> one = np.ones((1, 1, 1))
    >>> kept = nativeops.lstm_layer.reference(one, np.ones((4, 1)), np.zeros((4, 1)))
    >>> given = (kept.output, kept.cells, one, one[0], one[0], kept.gates)
    >>> lstm_layer_grad(one, np.ones((4, 1)), np.zeros((4, 1)), *given).d_x.round(4)
    array([[[1.1527]]])
    """
    (steps, batch, _), units = x.shape, w_hh.shape[1]
    d_z, h_before = np.zeros((steps, batch, 4 * units), x.dtype), np.zeros_like(output)
    d_h_0, d_c_0 = d_h_n.copy(), d_c_n.copy()
    for b, t, before in _steps.backwards(steps, lengths, batch, reverse):
        first = before is None
        c_before = _steps.initial(c_0, b, x, units) if first else cells[before, b]
        h_before[t, b] = _steps.initial(h_0, b, x, units) if first else output[before, b]
        h = h_before[t, b]
        again = _cell(_steps.sums(w_ih, b_ih, x[t, b]), _steps.sums(w_hh, b_hh, h), h, c_before)
        i, f, g, o = (again[-1][0] if gates is None else gates[t, b]).reshape(4, units)
        d_h, tanh_c = d_h_0[b] + d_output[t, b], np.tanh(cells[t, b])
        d_c = d_c_0[b] + d_h * o * (1 - tanh_c**2)
        d_z[t, b] = np.concatenate(
            [
                d_c * g * i * (1 - i),
                d_c * c_before * f * (1 - f),
                d_c * i * (1 - g**2),
                d_h * tanh_c * o * (1 - o),
            ]
        )
        d_h_0[b], d_c_0[b] = d_z[t, b] @ w_hh, d_c * f
    d_x, d_w_ih, d_w_hh, d_b, _ = _steps.products(d_z, d_z, x, h_before, w_ih)
    return LstmLayerGrad(d_x, d_w_ih, d_w_hh, d_b, d_h_0, d_c_0)


@lstm_layer.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _steps.example(random, given, 4, ("h_0", "c_0"))


@lstm_layer_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _steps.grad_example(random, given, lstm_layer, 4, ("h_0", "c_0"))


@lstm_layer.gradient
def _(  # type: ignore[no-untyped-def]
    x, w_ih, w_hh, b_ih, b_hh, h_0, c_0, lengths, output, gates, cells, d_output, d_h_n, d_c_n,
    reverse, low_memory, precision, needs
):  # fmt: skip
    gates, b_ih, b_hh = (None, b_ih, b_hh) if low_memory else (gates, None, None)
    both = {"d_b_ih": "d_b", "d_b_hh": "d_b"}
    grads = lstm_layer_grad.only(tuple(dict.fromkeys(both.get(name, name) for name in needs)))(
        x, w_ih, w_hh, output, cells, d_output, d_h_n, d_c_n,
        gates, b_ih, b_hh, h_0, c_0, lengths,
        reverse=reverse, precision=precision,
    )  # fmt: skip
    return grads.d_x, grads.d_w_ih, grads.d_w_hh, grads.d_b, grads.d_b, grads.d_h_0, grads.d_c_0
