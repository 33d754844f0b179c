# SPDX-License-Identifier: Apache-2.0
"""LSTM layer whose state is projected to fewer numbers: one layer in one direction."""

from typing import Generic, NamedTuple

from nativeops.declare import Array, Float, Kept, Lengths
from nativeops.ops import _lstm, _steps
from nativeops.ops._directions import both_directions
from nativeops.ops._two_layers import two_layers


class LstmProjectedLayer(NamedTuple, Generic[Array]):
    """The outputs of all steps and the final states of `lstm_projected_layer`."""

    output: Float[Array, "t b p"]
    h_n: Float[Array, "b p"]
    c_n: Float[Array, "b h"]
    gates: Kept[Float[Array, "t-low_memory*t b 4*h"]]
    cells: Kept[Float[Array, "t b h"]]


@_steps.layer_op(kernel="lstm_projected.h", reuse={"h_n": "h_0", "c_n": "c_0"})
def lstm_projected_layer(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "4*h i"],
    w_hh: Float[Array, "4*h p"],
    w_hr: Float[Array, "p h"],
    b_ih: Float[Array, "4*h"] | None = None,
    b_hh: Float[Array, "4*h"] | None = None,
    h_0: Float[Array, "b p"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    peepholes: Float[Array, "3*h"] | None = None,
    *,
    reverse: bool = False,
    low_memory: bool = False,
    precision: _steps.Precision = "default",
) -> LstmProjectedLayer[Array]:
    """One LSTM layer whose outputs are projected, in one direction.

    ``output[t] = h' = W_hr (o·tanh(c'))``, all else as in `lstm_layer`: the cell has ``h`` numbers,
    the output and the state that the weights see ``p``.

    Args:
        x: The inputs, step by step.
        w_ih: Weights of the inputs, in cuDNN's and PyTorch's order of gates (i, f, g, o).
        w_hh: Weights of the state before.
        w_hr: Weights of the projection.
        b_ih: Added to the products with the inputs; none if left away.
        b_hh: Added to the products with the state; none if left away.
        h_0: The output before the first step; zeros if left away.
        c_0: The cell before the first step; zeros if left away.
        lengths: The number of steps of each sequence, from 0 to ``t``, in any order; ``t`` if left
            away.
        peepholes: The weights with which the gates i, f and o see the cell, as `lstm_layer` has
            them; none if left away.
        reverse: From each sequence's own end to its beginning.
        low_memory: Keep no gates for the gradient, which then computes them again.
        precision: As in `lstm_layer`.

    Returns: ``output``, 0 beyond the end of a sequence, and the states ``h_n`` and ``c_n`` after
        its own last step (the initial ones if it has none).
    NaN: stays in its own sequence.
    Gradient: for all float arguments.
    Cost: O(Σ lengths · h·(i + p)) time; in memory, beyond the results, the packed weights and two
        steps of gates (at least 48 rows; with AMX 240). Where a gradient is needed 5·t·b·h numbers
        are kept, or t·b·h with ``low_memory``, for a third more time.
    Same as: ``torch.nn.LSTM(i, h, proj_size=p)``.
    Source: Sak, Senior & Beaufays 2014, Long short-term memory recurrent neural network
        architectures for large scale acoustic modeling.

    >>> ones = np.ones((2, 1, 1)), np.ones((4, 1)), np.zeros((4, 1)), np.full((1, 1), 2.0)
    >>> lstm_projected_layer(*ones).output.ravel().round(4)
    array([0.7392, 1.0907])
    """
    weights, states, units = (w_ih, w_hh, b_ih, b_hh), (h_0, c_0), w_hr.shape[1]
    cell = _lstm.cell(peepholes, w_hr)
    made = LstmProjectedLayer(
        *_steps.forward(cell, (4, 1), x, weights, states, lengths, reverse, units)
    )
    return made._replace(gates=made.gates[:0]) if low_memory else made


class LstmProjectedLayerGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `lstm_projected_layer`."""

    d_x: Float[Array, "t b i"] | None
    d_w_ih: Float[Array, "4*h i"] | None
    d_w_hh: Float[Array, "4*h p"] | None
    d_w_hr: Float[Array, "p h"] | None
    d_b: Float[Array, "4*h"] | None
    d_h_0: Float[Array, "b p"] | None
    d_c_0: Float[Array, "b h"] | None
    d_peepholes: Float[Array, "3*h"] | None


@_steps.layer_op(kernel="lstm_projected.h")
def lstm_projected_layer_grad(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "4*h i"],
    w_hh: Float[Array, "4*h p"],
    w_hr: Float[Array, "p h"],
    output: Float[Array, "t b p"],
    cells: Float[Array, "t b h"],
    d_output: Float[Array, "t b p"],
    d_h_n: Float[Array, "b p"],
    d_c_n: Float[Array, "b h"],
    gates: Float[Array, "t b 4*h"] | None = None,
    b_ih: Float[Array, "4*h"] | None = None,
    b_hh: Float[Array, "4*h"] | None = None,
    h_0: Float[Array, "b p"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    peepholes: Float[Array, "3*h"] | None = None,
    *,
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> LstmProjectedLayerGrad[Array]:
    """What flows back through `lstm_projected_layer` into its arguments.

    ``d_r = d_output[t] + W_hhᵀ d_z[t + 1]``, ``d_w_hr = Σ d_r (o·tanh(c'))ᵀ``; then, as in
    `lstm_layer_grad`, all else from ``d_h = W_hrᵀ d_r``.

    Args:
        x: As given to `lstm_projected_layer`.
        w_ih: As given to `lstm_projected_layer`.
        w_hh: As given to `lstm_projected_layer`.
        w_hr: As given to `lstm_projected_layer`.
        output: What `lstm_projected_layer` returned.
        cells: The cells that it kept.
        d_output: The gradient that arrives at the outputs.
        d_h_n: The gradient that arrives at the final output.
        d_c_n: The gradient that arrives at the final cell.
        gates: The activated gates that it kept, or None: then they are computed again.
        b_ih: As given to `lstm_projected_layer`; needed where no gates were kept.
        b_hh: As given to `lstm_projected_layer`; needed where no gates were kept.
        h_0: As given to `lstm_projected_layer`.
        c_0: As given to `lstm_projected_layer`.
        lengths: As given to `lstm_projected_layer`.
        peepholes: As given to `lstm_projected_layer`.
        reverse: As given to `lstm_projected_layer`.
        precision: As given to `lstm_projected_layer`; of the gradients' products.

    Returns: One gradient per argument; that of both biases is ``d_b``. ``only(["d_x"])`` of the op
        makes one, the others are None.
    NaN: stays in its own sequence, but for the gradients of weights and biases.
    Gradient: none.
    Cost: O(Σ lengths · h·(i + p)) time; t·b·(5·h + p) numbers and the packed weights of workspace,
        of the portable kernel t·b·(5·h + 2·p + i) numbers, and t·b·(8·h + p) more where no gates
        were kept.
    Same as: the gradient of ``torch.nn.LSTM`` with ``proj_size``.
    Source: the chain rule of `lstm_projected_layer`.

    >>> one, weights = np.ones((1, 1, 1)), (np.ones((4, 1)), np.zeros((4, 1)), np.ones((1, 1)))
    >>> kept = nativeops.lstm_projected_layer.reference(one, *weights)
    >>> given = (kept.output, kept.cells, one, one[0], one[0], kept.gates)
    >>> lstm_projected_layer_grad(one, *weights, *given).d_x.round(4)
    array([[[1.1527]]])
    """
    found = _lstm.backward(
        (x, w_ih, w_hh, b_ih, b_hh), (h_0, c_0), (output, cells, gates),
        (d_output, d_h_n, d_c_n), lengths, reverse, peepholes, w_hr,
    )  # fmt: skip
    return LstmProjectedLayerGrad(*(found[name] for name in LstmProjectedLayerGrad._fields))


@lstm_projected_layer.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _steps.example(random, given, 4, ("h_0", "c_0"))


_steps.connect(lstm_projected_layer, lstm_projected_layer_grad)
bidirectional_lstm_projected_layer, bidirectional_lstm_projected_layer_grad = both_directions(
    lstm_projected_layer, lstm_projected_layer_grad, "LSTM"
)
two_lstm_projected_layers, two_lstm_projected_layers_grad = two_layers(
    lstm_projected_layer, lstm_projected_layer_grad, "LSTM"
)
