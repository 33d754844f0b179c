# SPDX-License-Identifier: Apache-2.0
"""LSTM layer: one layer in one direction."""

from typing import Generic, NamedTuple

from nativeops.declare import Array, Float, Kept, Lengths
from nativeops.ops import _lstm, _steps
from nativeops.ops._directions import both_directions
from nativeops.ops._two_layers import two_layers


class LstmLayer(NamedTuple, Generic[Array]):
    """The outputs of all steps and the final states of `lstm_layer`."""

    output: Float[Array, "t b h"]
    h_n: Float[Array, "b h"]
    c_n: Float[Array, "b h"]
    gates: Kept[Float[Array, "t-low_memory*t b 4*h"]]
    cells: Kept[Float[Array, "t b h"]]


@_steps.layer_op(kernel="lstm.h", reuse={"h_n": "h_0", "c_n": "c_0"})
def lstm_layer(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "4*h i"],
    w_hh: Float[Array, "4*h h"],
    b_ih: Float[Array, "4*h"] | None = None,
    b_hh: Float[Array, "4*h"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    peepholes: Float[Array, "3*h"] | None = None,
    *,
    reverse: bool = False,
    low_memory: bool = False,
    precision: _steps.Precision = "default",
) -> LstmLayer[Array]:
    """One LSTM layer in one direction over a batch of sequences.

    ``i, f, o = σ(z_i), σ(z_f), σ(z_o)``, ``g = tanh(z_g)``, ``c' = f·c + i·g``,
    ``output[t] = h' = o·tanh(c')``, where ``z = W_ih x[t] + b_ih + W_hh h + b_hh`` has four blocks
    ``i, f, g, o`` of ``h`` rows. Peepholes add ``p_i·c`` to ``z_i``, ``p_f·c`` to ``z_f`` and
    ``p_o·c'`` to ``z_o``.

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
        peepholes: The weights with which the gates i, f and o see the cell, one for each unit, one
            gate behind the other; none if left away.
        reverse: From each sequence's own end to its beginning.
        low_memory: Keep no gates for the gradient, which then computes them again.
        precision: ``"highest"`` computes in the dtype (bf16 and f16 sum in float32), ``"default"``
            is the same. ``"high"`` may take each product of two float32 as three of bf16, which
            GPUs and CPUs with AMX multiply several times faster: rms error of the outputs at most
            1e-5; infinities may become NaN. Everywhere else, and for other dtypes, it changes
            nothing.

    Returns: ``output``, 0 beyond the end of a sequence, and the states ``h_n`` and ``c_n`` after
        its own last step (the initial ones if it has none).
    NaN: stays in its own sequence.
    Gradient: for all float arguments.
    Cost: O(Σ lengths · h·(i + h)) time; in memory, beyond the results, the packed weights and two
        steps of gates (at least 48 rows; with AMX 240); on a GPU up to 128 MB of gates. Where a
        gradient is needed 5·t·b·h numbers are kept, or t·b·h with ``low_memory``, for a third more
        time.
    Same as: ``torch.nn.LSTM(i, h)``, which has no peepholes; ``LSTM`` of ONNX, which has.
    Source: Hochreiter & Schmidhuber 1997, Long short-term memory; Gers, Schmidhuber & Cummins 2000
        (forget gate); Gers & Schmidhuber 2000, Recurrent nets that time and count (peepholes).

    >>> lstm_layer(np.ones((2, 1, 1)), np.ones((4, 1)), np.zeros((4, 1))).output.ravel().round(4)
    array([0.3696, 0.5453])
    """
    weights, states = (w_ih, w_hh, b_ih, b_hh), (h_0, c_0)
    cell = _lstm.cell(peepholes)
    made = LstmLayer(*_steps.forward(cell, (4, 1), x, weights, states, lengths, reverse))
    return made._replace(gates=made.gates[:0]) if low_memory else made


class LstmLayerGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `lstm_layer`."""

    d_x: Float[Array, "t b i"] | None
    d_w_ih: Float[Array, "4*h i"] | None
    d_w_hh: Float[Array, "4*h h"] | None
    d_b: Float[Array, "4*h"] | None
    d_h_0: Float[Array, "b h"] | None
    d_c_0: Float[Array, "b h"] | None
    d_peepholes: Float[Array, "3*h"] | None


@_steps.layer_op(kernel="lstm.h")
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
    lengths: Lengths[Array, "b"] | None = None,
    peepholes: Float[Array, "3*h"] | None = None,
    *,
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> LstmLayerGrad[Array]:
    """What flows back through `lstm_layer` into its arguments.

    ``d_h = d_output[t] + W_hhᵀ d_z[t + 1]`` and ``d_c += d_h·o·(1 - tanh²(c'))``, from the last
    step to the first; ``d_z_i = d_c·g·i(1 - i)``, ``d_z_f = d_c·c·f(1 - f)``,
    ``d_z_g = d_c·i·(1 - g²)``, ``d_z_o = d_h·tanh(c')·o(1 - o)``; then ``d_c`` becomes ``d_c·f``.
    With peepholes ``d_c`` is also ``p_o·d_z_o`` before and ``p_i·d_z_i + p_f·d_z_f`` after a step.
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
        peepholes: As given to `lstm_layer`.
        reverse: As given to `lstm_layer`.
        precision: As given to `lstm_layer`; of the gradients' products.

    Returns: One gradient per argument; that of both biases is ``d_b``. ``only(["d_x"])`` of the op
        makes one, the others are None.
    NaN: stays in its own sequence, but for the gradients of weights and biases.
    Gradient: none.
    Cost: O(Σ lengths · h·(i + h)) time; 4·t·b·h numbers and the packed weights of workspace, of
        the portable kernel t·b·(5·h + i) numbers, and 8·t·b·h more where no gates were kept; on a
        GPU as much again with ``"high"``.
    Same as: the gradient of ``torch.nn.LSTM``.
    Source: Graves 2012, Supervised sequence labelling with recurrent neural networks, chapter 4.

    >>> one = np.ones((1, 1, 1))
    >>> kept = nativeops.lstm_layer.reference(one, np.ones((4, 1)), np.zeros((4, 1)))
    >>> given = (kept.output, kept.cells, one, one[0], one[0], kept.gates)
    >>> lstm_layer_grad(one, np.ones((4, 1)), np.zeros((4, 1)), *given).d_x.round(4)
    array([[[1.1527]]])
    """
    found = _lstm.backward(
        (x, w_ih, w_hh, b_ih, b_hh), (h_0, c_0), (output, cells, gates),
        (d_output, d_h_n, d_c_n), lengths, reverse, peepholes,
    )  # fmt: skip
    return LstmLayerGrad(*(found[name] for name in LstmLayerGrad._fields))


@lstm_layer.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _steps.example(random, given, 4, ("h_0", "c_0"))


_steps.connect(lstm_layer, lstm_layer_grad)
bidirectional_lstm_layer, bidirectional_lstm_layer_grad = both_directions(
    lstm_layer, lstm_layer_grad, "LSTM"
)
two_lstm_layers, two_lstm_layers_grad = two_layers(lstm_layer, lstm_layer_grad, "LSTM")
