# SPDX-License-Identifier: Apache-2.0
"""GRU layer: one layer in one direction."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Kept, Lengths
from nativeops.ops import _steps
from nativeops.ops._directions import both_directions
from nativeops.ops._two_layers import two_layers


class GruLayer(NamedTuple, Generic[Array]):
    """The outputs of all steps and the final state of `gru_layer`."""

    output: Float[Array, "t b h"]
    h_n: Float[Array, "b h"]
    gates: Kept[Float[Array, "t-low_memory*t b 3*h+linear_before_reset*h"]]


@_steps.layer_op(kernel="gru.h", reuse={"h_n": "h_0"})
def gru_layer(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "3*h i"],
    w_hh: Float[Array, "3*h h"],
    b_ih: Float[Array, "3*h"] | None = None,
    b_hh: Float[Array, "3*h"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    *,
    linear_before_reset: bool = True,
    reverse: bool = False,
    low_memory: bool = False,
    precision: _steps.Precision = "default",
) -> GruLayer[Array]:
    """One GRU layer in one direction over a batch of sequences.

    ``r = σ(x_r + y_r)``, ``z = σ(x_z + y_z)``, ``n = tanh(x_n + r·y_n)``,
    ``output[t] = h' = (1 - z)·n + z·h``, where ``x = W_ih x[t] + b_ih`` and ``y = W_hh h + b_hh``
    have three blocks ``r, z, n`` of ``h`` rows each. Without ``linear_before_reset`` it is
    ``n = tanh(x_n + W_hn (r·h) + b_hn)``.

    Args:
        x: The inputs, step by step.
        w_ih: Weights of the inputs, in cuDNN's and PyTorch's order of gates (r, z, n).
        w_hh: Weights of the state before.
        b_ih: Added to the products with the inputs; none if left away.
        b_hh: Added to the products with the state; none if left away.
        h_0: The output before the first step; zeros if left away.
        lengths: The number of steps of each sequence, from 0 to ``t``, in any order; ``t`` if left
            away.
        linear_before_reset: Whether the reset gate is applied behind the product with the state, as
            in cuDNN, PyTorch and Keras's ``reset_after=True``, or to the state itself.
        reverse: From each sequence's own end to its beginning.
        low_memory: Keep no gates for the gradient, which then computes them again.
        precision: As in `lstm_layer`.

    Returns: ``output``, 0 beyond the end of a sequence, and the state ``h_n`` after its own last
        step (the initial one if it has none).
    NaN: stays in its own sequence.
    Gradient: for all float arguments.
    Cost: O(Σ lengths · h·(i + h)) time; in memory, beyond the results, the packed weights and two
        steps of gates (at least 48 rows; with AMX 240); on a GPU up to 128 MB of gates. Where a
        gradient is needed 4·t·b·h numbers are kept (3 without ``linear_before_reset``), or none
        with ``low_memory``, for a third more time.
        Without ``linear_before_reset`` a step waits for two products, one behind the other.
    Same as: ``torch.nn.GRU(i, h)``; ``GRU`` of ONNX has both variants, by the same name.
    Source: Cho et al. 2014, Learning phrase representations using RNN encoder-decoder, version 3;
        without ``linear_before_reset`` version 1.

    >>> gru_layer(np.ones((2, 1, 1)), np.ones((3, 1)), np.zeros((3, 1))).output.ravel().round(4)
    array([0.2048, 0.3546])
    """
    weights, sizes = (w_ih, w_hh, b_ih, b_hh), (4 if linear_before_reset else 3,)
    cell = _cell if linear_before_reset else _reset_first(w_hh, b_hh)
    made = GruLayer(*_steps.forward(cell, sizes, x, weights, (h_0,), lengths, reverse))
    return made._replace(gates=made.gates[:0]) if low_memory else made


def _cell(from_x: Any, from_h: Any, h: Any) -> tuple[Any, ...]:
    x, y = from_x.reshape(3, len(h)), from_h.reshape(3, len(h))
    r, z = (1 / (1 + np.exp(-x[gate] - y[gate])) for gate in (0, 1))
    n = np.tanh(x[2] + r * y[2])
    return (1 - z) * n + z * h, (np.concatenate([r, z, n, y[2]]),)


def _reset_first(w_hh: Any, b_hh: Any) -> Callable[..., tuple[Any, ...]]:
    """The cell without `linear_before_reset`, of which the third product has another factor."""
    h = w_hh.shape[1]

    def cell(from_x: Any, from_h: Any, state: Any) -> tuple[Any, ...]:
        r, z = (1 / (1 + np.exp(-from_x - from_h)))[: 2 * h].reshape(2, h)
        b_n = None if b_hh is None else b_hh[2 * h :]
        n = np.tanh(from_x[2 * h :] + _steps.sums(w_hh[2 * h :], b_n, r * state))
        return (1 - z) * n + z * state, (np.concatenate([r, z, n]),)

    return cell


class GruLayerGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `gru_layer`."""

    d_x: Float[Array, "t b i"] | None
    d_w_ih: Float[Array, "3*h i"] | None
    d_w_hh: Float[Array, "3*h h"] | None
    d_b_ih: Float[Array, "3*h"] | None
    d_b_hh: Float[Array, "3*h"] | None
    d_h_0: Float[Array, "b h"] | None


@_steps.layer_op(kernel="gru.h")
def gru_layer_grad(
    x: Float[Array, "t b i"],
    w_ih: Float[Array, "3*h i"],
    w_hh: Float[Array, "3*h h"],
    output: Float[Array, "t b h"],
    d_output: Float[Array, "t b h"],
    d_h_n: Float[Array, "b h"],
    gates: Float[Array, "t b 3*h+linear_before_reset*h"] | None = None,
    b_ih: Float[Array, "3*h"] | None = None,
    b_hh: Float[Array, "3*h"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    lengths: Lengths[Array, "b"] | None = None,
    *,
    linear_before_reset: bool = True,
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> GruLayerGrad[Array]:
    """What flows back through `gru_layer` into its arguments.

    ``d_h = d_output[t] + W_hhᵀ d_y[t + 1] + what passed by``, from the last step to the first;
    ``d_x_n = d_h·(1 - z)·(1 - n²)``, ``d_r = d_x_n·y_n·r(1 - r)``, ``d_z = d_h·(h - n)·z(1 - z)``,
    ``d_y_n = d_x_n·r``; ``d_h·z`` passes by the gates. The products with inputs and states follow
    from ``d_r, d_z, d_x_n`` and from ``d_r, d_z, d_y_n``. Without ``linear_before_reset`` all are
    from ``d_r, d_z, d_x_n``, ``d_r = (W_hnᵀ d_x_n)·h·r(1 - r)``, and ``(W_hnᵀ d_x_n)·r`` passes by
    the gates, too.

    Args:
        x: As given to `gru_layer`.
        w_ih: As given to `gru_layer`.
        w_hh: As given to `gru_layer`.
        output: What `gru_layer` returned.
        d_output: The gradient that arrives at the outputs.
        d_h_n: The gradient that arrives at the final output.
        gates: What it kept: ``r, z, n, y_n``, or None: then it is computed again. There is no
            ``y_n`` without ``linear_before_reset``.
        b_ih: As given to `gru_layer`; needed where no gates were kept.
        b_hh: As given to `gru_layer`; needed where no gates were kept.
        h_0: As given to `gru_layer`.
        lengths: As given to `gru_layer`.
        linear_before_reset: As given to `gru_layer`.
        reverse: As given to `gru_layer`.
        precision: As given to `gru_layer`; of the gradients' products.

    Returns: One gradient per argument. ``only(["d_x"])`` of the op makes one, the others are None.
    NaN: stays in its own sequence, but for the gradients of weights and biases.
    Gradient: none.
    Cost: O(Σ lengths · h·(i + h)) time; 4·t·b·h numbers and the packed weights of workspace, of
        the portable kernel t·b·(5·h + i) numbers, and 6·t·b·h more where no gates were kept; on a
        GPU as much again with ``"high"``.
    Same as: the gradient of ``torch.nn.GRU``.
    Source: the chain rule of `gru_layer`.

    >>> one = np.ones((1, 1, 1))
    >>> kept = nativeops.gru_layer.reference(one, np.ones((3, 1)), np.zeros((3, 1)))
    >>> given = (kept.output, one, one[0], kept.gates)
    >>> gru_layer_grad(one, np.ones((3, 1)), np.zeros((3, 1)), *given).d_x.round(4)
    array([[[-0.0736]]])
    """
    (steps, batch, _), units = x.shape, w_hh.shape[1]
    d_x_sums, d_h_sums = (np.zeros((steps, batch, 3 * units), x.dtype) for _ in range(2))
    h_before, d_h_0 = np.zeros_like(output), d_h_n.copy()
    factors = np.zeros_like(output)  # what the weights of the third gate are multiplied with
    cell, w_hn = _cell if linear_before_reset else _reset_first(w_hh, b_hh), w_hh[2 * units :]
    for b, t, before in _steps.backwards(steps, lengths, batch, reverse):
        h = _steps.initial(h_0, b, x, units) if before is None else output[before, b]
        again = cell(_steps.sums(w_ih, b_ih, x[t, b]), _steps.sums(w_hh, b_hh, h), h)
        known = again[-1][0] if gates is None else gates[t, b]
        r, z, n, *y_n = known.reshape(3 + linear_before_reset, units)
        d_h, h_before[t, b] = d_h_0[b] + d_output[t, b], h
        d_n, d_z = d_h * (1 - z) * (1 - n**2), d_h * (h - n) * z * (1 - z)
        d_factor = 0 if linear_before_reset else d_n @ w_hn
        d_r = (d_n * y_n[0] if linear_before_reset else d_factor * h) * r * (1 - r)
        d_x_sums[t, b] = np.concatenate([d_r, d_z, d_n])
        d_h_sums[t, b] = np.concatenate([d_r, d_z, d_n * r if linear_before_reset else d_n])
        factors[t, b] = h if linear_before_reset else r * h
        through = d_h_sums[t, b] if linear_before_reset else np.concatenate([d_r, d_z, 0 * d_n])
        d_h_0[b] = through @ w_hh + d_h * z + d_factor * r
    found = _steps.products(d_x_sums, d_h_sums, x, h_before, w_ih)
    d_x, d_w_ih, d_w_hh, d_b_ih, d_b_hh = found
    d_w_hh[2 * units :] = np.einsum("tbg,tbh->gh", d_h_sums[..., 2 * units :], factors)
    return GruLayerGrad(d_x, d_w_ih, d_w_hh, d_b_ih, d_b_hh, d_h_0)


@gru_layer.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _steps.example(random, given, 3, ("h_0",))


_steps.connect(gru_layer, gru_layer_grad)
bidirectional_gru_layer, bidirectional_gru_layer_grad = both_directions(
    gru_layer, gru_layer_grad, "GRU"
)
two_gru_layers, two_gru_layers_grad = two_layers(gru_layer, gru_layer_grad, "GRU")
