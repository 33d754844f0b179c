# SPDX-License-Identifier: Apache-2.0
"""Simple recurrent layer: one layer in one direction."""

from typing import Generic, Literal, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Lengths
from nativeops.ops import _steps
from nativeops.ops._directions import both_directions
from nativeops.ops._two_layers import two_layers

Activation = Literal["tanh", "relu"]


class RnnLayer(NamedTuple, Generic[Array]):
    """The outputs of all steps and the final state of `rnn_layer`."""

    output: Float[Array, "t b h"]
    h_n: Float[Array, "b h"]


@_steps.layer_op(kernel="rnn.h", reuse={"h_n": "h_0"})
def rnn_layer(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "h i"],
    w_hh: Float[Array, "h h"],
    b_ih: Float[Array, "h"] | None = None,
    b_hh: Float[Array, "h"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    *,
    activation: Activation = "tanh",
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> RnnLayer[Array]:
    """One simple recurrent (Elman) layer in one direction over a batch of sequences.

    ``output[t] = h' = f(W_ih x[t] + b_ih + W_hh h + b_hh)``, ``f`` tanh or relu.

    Args:
        x: The inputs, step by step.
        w_ih: Weights of the inputs.
        w_hh: Weights of the state before.
        b_ih: Added to the products with the inputs; none if left away.
        b_hh: Added to the products with the state; none if left away.
        h_0: The output before the first step; zeros if left away.
        lengths: The number of steps of each sequence, from 0 to ``t``, in any order; ``t`` if left
            away.
        activation: The function ``f``.
        reverse: From each sequence's own end to its beginning.
        precision: As in `lstm_layer`.

    Returns: ``output``, 0 beyond the end of a sequence, and the state ``h_n`` after its own last
        step (the initial one if it has none).
    NaN: stays in its own sequence.
    Gradient: for all float arguments; that of relu at 0 is 0.
    Cost: O(Σ lengths · h·(i + h)) time; in memory, beyond the results, the packed weights and two
        steps of sums (at least 48 rows; with AMX 240); on a GPU up to 128 MB of sums. Nothing more
        is kept for the gradient.
    Same as: ``torch.nn.RNN(i, h)``.
    Source: Elman 1990, Finding structure in time.

    >>> rnn_layer(np.ones((2, 1, 1)), np.ones((1, 1)), np.ones((1, 1))).output.ravel().round(4)
    array([0.7616, 0.9427])
    """
    function = np.tanh if activation == "tanh" else lambda z: np.where(z < 0, 0, z)

    def cell(from_x, from_h, h):  # type: ignore[no-untyped-def]
        return function(from_x + from_h), ()

    weights = (w_ih, w_hh, b_ih, b_hh)
    return RnnLayer(*_steps.forward(cell, (), x, weights, (h_0,), lengths, reverse))


class RnnLayerGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `rnn_layer`."""

    d_x: Float[Array, "t b i"] | None
    d_w_ih: Float[Array, "h i"] | None
    d_w_hh: Float[Array, "h h"] | None
    d_b: Float[Array, "h"] | None
    d_h_0: Float[Array, "b h"] | None


@_steps.layer_op(kernel="rnn.h")
def rnn_layer_grad(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "h i"],
    w_hh: Float[Array, "h h"],
    output: Float[Array, "t b h"],
    d_output: Float[Array, "t b h"],
    d_h_n: Float[Array, "b h"],
    h_0: Float[Array, "b h"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    *,
    activation: Activation = "tanh",
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> RnnLayerGrad[Array]:
    """What flows back through `rnn_layer` into its arguments.

    ``d_z[t] = (d_output[t] + W_hhᵀ d_z[t + 1])·f'``, from the last step to the first, where ``f'``
    is ``1 - output²`` for tanh and ``output > 0`` for relu. Then ``d_x = d_z W_ih``,
    ``d_w_ih = Σ d_zᵀ x``, ``d_w_hh = Σ d_zᵀ h``, ``d_b = Σ d_z``.

    Args:
        x: As given to `rnn_layer`.
        w_ih: As given to `rnn_layer`.
        w_hh: As given to `rnn_layer`.
        output: What `rnn_layer` returned.
        d_output: The gradient that arrives at the outputs.
        d_h_n: The gradient that arrives at the final output.
        h_0: As given to `rnn_layer`.
        lengths: As given to `rnn_layer`.
        activation: As given to `rnn_layer`.
        reverse: As given to `rnn_layer`.
        precision: As given to `rnn_layer`; of the gradients' products.

    Returns: One gradient per argument; that of both biases is ``d_b``. ``only(["d_x"])`` of the op
        makes one, the others are None.
    NaN: stays in its own sequence, but for the gradients of weights and biases.
    Gradient: none.
    Cost: O(Σ lengths · h·(i + h)) time; t·b·h numbers and the packed weights of workspace, of the
        portable kernel t·b·(2·h + i) numbers; on a GPU as much again with ``"high"``.
    Same as: the gradient of ``torch.nn.RNN``.
    Source: the chain rule of `rnn_layer`.

    >>> one = np.ones((1, 1, 1))
    >>> rnn_layer_grad(one, 2 * one[0], one[0], 0.5 * one, one, one[0]).d_x
    array([[[3.]]])
    """
    (steps, batch, _), units = x.shape, w_hh.shape[1]
    d_z, h_before, d_h_0 = np.zeros_like(output), np.zeros_like(output), d_h_n.copy()
    slope = 1 - output**2 if activation == "tanh" else output > 0
    for b, t, before in _steps.backwards(steps, lengths, batch, reverse):
        first = before is None
        h_before[t, b] = _steps.initial(h_0, b, x, units) if first else output[before, b]
        d_z[t, b] = (d_h_0[b] + d_output[t, b]) * slope[t, b]
        d_h_0[b] = d_z[t, b] @ w_hh
    d_x, d_w_ih, d_w_hh, d_b, _ = _steps.products(d_z, d_z, x, h_before, w_ih)
    return RnnLayerGrad(d_x, d_w_ih, d_w_hh, d_b, d_h_0)


@rnn_layer.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _steps.example(random, given, 1, ("h_0",))


_steps.connect(rnn_layer, rnn_layer_grad)
bidirectional_rnn_layer, bidirectional_rnn_layer_grad = both_directions(
    rnn_layer, rnn_layer_grad, "RNN"
)
two_rnn_layers, two_rnn_layers_grad = two_layers(rnn_layer, rnn_layer_grad, "RNN")
