# SPDX-License-Identifier: Apache-2.0
"""LSTM over a grid, whose cells follow on those above and to the left (RETURNN's TwoDLSTM)."""

from typing import Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Kept, Lengths, op


def _inside(shape: tuple[int, ...], heights: Any, widths: Any) -> Any:
    """Which cells are those of a sequence."""
    t, s, batch = np.ogrid[: shape[0], : shape[1], : shape[2]]
    below = np.asarray(heights)[batch] if heights is not None else shape[0]
    right = np.asarray(widths)[batch] if widths is not None else shape[1]
    return (t < below) & (s < right)


def _activate(sums: Any) -> tuple[Any, ...]:
    """The gates i, f, lambda, o, g."""
    *gates, g = np.split(sums, 5, axis=-1)
    return (*(1 / (1 + np.exp(-z)) for z in gates), np.tanh(g))


def _borders(h: Any, c: Any, like: Any, widths: Any) -> Any:
    """The states above the first row, zeros where none are given and beyond a sequence's width."""
    inside = _inside((1, *like.shape[1:]), None, widths)[0, ..., None]
    return np.array(
        [np.zeros(like.shape[1:]) if a is None else np.where(inside, a, 0) for a in (h, c)]
    )


class TwoDLstm(NamedTuple, Generic[Array]):
    """The outputs of all cells and the states of the last row of `two_d_lstm`."""

    output: Float[Array, "t s b h"]
    h_n: Float[Array, "s b h"]
    c_n: Float[Array, "s b h"]
    gates: Kept[Float[Array, "t s b 5*h"]]
    cells: Kept[Float[Array, "t s b h"]]


@op(kernel="two_d_lstm.h", independent="b", carries="t")
def two_d_lstm(
    x: Float[Array, "t s b i"],
    w: Float[Array, "i 5*h"],
    v_v: Float[Array, "h 5*h"],
    v_h: Float[Array, "h 5*h"],
    bias: Float[Array, "5*h"],
    heights: Lengths[Array, "b"] | None = None,
    widths: Lengths[Array, "b"] | None = None,
    h_0: Float[Array, "s b h"] | None = None,
    c_0: Float[Array, "s b h"] | None = None,
) -> TwoDLstm[Array]:
    """An LSTM over a grid, whose cells follow on those above and to the left.

    ``i, f, λ, o = σ(z_i), σ(z_f), σ(z_λ), σ(z_o)``, ``g = tanh(z_g)``,
    ``c[t, s] = f·(λ·c[t-1, s] + (1 - λ)·c[t, s-1]) + i·g``, ``output[t, s] = h = o·tanh(c[t, s])``,
    where ``z = x[t, s] w + h[t-1, s] v_v + h[t, s-1] v_h + bias`` has five blocks ``i, f, λ, o, g``
    of ``h`` columns. Above the first row are the states ``h_0`` and ``c_0``, to the left zeros. For
    the other directions of a scan, flip the axes of ``x`` and of the results.

    Args:
        x: The inputs of all cells.
        w: Weights of the inputs, a row for each of their numbers.
        v_v: Weights of the output above, likewise.
        v_h: Weights of the output to the left, likewise.
        bias: Added to the products.
        heights: The number of rows of each sequence, from 0 to ``t``; ``t`` if left away.
        widths: The number of columns of each sequence, from 0 to ``s``; ``s`` if left away.
        h_0: The outputs above the first row; zeros if left away.
        c_0: The cells above the first row; zeros if left away.

    Returns: ``output``, 0 outside of a sequence, and the states ``h_n`` and ``c_n`` of each
        sequence's own last row (those above the first one if it has none, 0 beyond its width), with
        which a call for further rows goes on.
    NaN: stays in its own sequence; what lies outside of it is not seen.
    Raises: RangeError for a height or width that is none (on the CPU; kept within bounds on CUDA).
    Gradient: for all float arguments.
    Cost: O(t·s·b·h·(i + h)) time in t + s - 1 steps; in memory, beyond the results, the weights,
        min(t, s)·b rows of i + 7·h numbers and 2·t·b·h numbers. Where a gradient is needed
        6·t·s·b·h numbers are kept.
    Same as: RETURNN's TwoDLSTM, which has no gradient for the bias, and runs on CUDA only.
    Source: Graves, Fernández & Schmidhuber 2007, Multi-dimensional recurrent neural networks;
        Leifert et al. 2016, Cells in multidimensional recurrent neural networks (this cell, which
        is stable); Voigtlaender, Doetsch & Ney 2016, Handwriting recognition with large
        multidimensional long short-term memory recurrent neural networks (by diagonals); Bahar,
        Brix & Ney 2018, Towards two-dimensional sequence to sequence model in neural machine
        translation.

    >>> w, v, bias = np.ones((1, 5)), np.zeros((1, 5)), np.zeros(5)
    >>> two_d_lstm(np.ones((2, 2, 1, 1)), w, v, v, bias).output[..., 0, 0].round(4)
    array([[0.3696, 0.4258],
           [0.5069, 0.5801]])
    """
    inside = _inside(x.shape, heights, widths)[..., None]
    (time, width, batch, _), units = x.shape, len(v_h)
    output, cells = np.zeros((2, time, width, batch, units), x.dtype)
    gates = np.zeros((time, width, batch, 5 * units), x.dtype)
    above = _borders(h_0, c_0, output, widths)
    for t in range(time):
        left = np.zeros((2, batch, units), x.dtype)
        for s in range(width):
            (h_above, c_above), (h_left, c_left) = above[:, s], left
            given = np.where(inside[t, s], x[t, s], 0)
            i, f, lam, o, g = _activate(given @ w + h_above @ v_v + h_left @ v_h + bias)
            c = f * (lam * c_above + (1 - lam) * c_left) + i * g
            output[t, s], cells[t, s] = left = inside[t, s] * np.array([o * np.tanh(c), c])
            gates[t, s] = inside[t, s] * np.concatenate([i, f, lam, o, g], -1)
            above[:, s] = np.where(inside[t, s], left, above[:, s])
    return TwoDLstm(output, above[0], above[1], gates, cells)


class TwoDLstmGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `two_d_lstm`."""

    d_x: Float[Array, "t s b i"] | None
    d_w: Float[Array, "i 5*h"] | None
    d_v_v: Float[Array, "h 5*h"] | None
    d_v_h: Float[Array, "h 5*h"] | None
    d_bias: Float[Array, "5*h"] | None
    d_h_0: Float[Array, "s b h"] | None
    d_c_0: Float[Array, "s b h"] | None


@op(kernel="two_d_lstm.h", independent="b", carries="t")
def two_d_lstm_grad(
    x: Float[Array, "t s b i"],
    w: Float[Array, "i 5*h"],
    v_v: Float[Array, "h 5*h"],
    v_h: Float[Array, "h 5*h"],
    bias: Float[Array, "5*h"],
    output: Float[Array, "t s b h"],
    gates: Float[Array, "t s b 5*h"],
    cells: Float[Array, "t s b h"],
    d_output: Float[Array, "t s b h"],
    d_h_n: Float[Array, "s b h"],
    d_c_n: Float[Array, "s b h"],
    heights: Lengths[Array, "b"] | None = None,
    widths: Lengths[Array, "b"] | None = None,
    h_0: Float[Array, "s b h"] | None = None,
    c_0: Float[Array, "s b h"] | None = None,
) -> TwoDLstmGrad[Array]:
    """What flows back through `two_d_lstm` into its arguments.

    ``d_h = d_output[t, s] + d_z[t+1, s] v_vᵀ + d_z[t, s+1] v_hᵀ``, from the last diagonal to the
    first; ``d_c += d_h·o·(1 - tanh²(c))``; ``d_z_i = d_c·g·i(1 - i)``,
    ``d_z_f = d_c·(λ·c[t-1, s] + (1 - λ)·c[t, s-1])·f(1 - f)``,
    ``d_z_λ = d_c·f·(c[t-1, s] - c[t, s-1])·λ(1 - λ)``, ``d_z_o = d_h·tanh(c)·o(1 - o)``,
    ``d_z_g = d_c·i·(1 - g²)``. Then ``d_c·f·λ`` goes to the cell above, ``d_c·f·(1 - λ)`` to the
    left. The gradients of the weights are sums over all cells.

    Args:
        x: As given to `two_d_lstm`.
        w: As given to `two_d_lstm`.
        v_v: As given to `two_d_lstm`.
        v_h: As given to `two_d_lstm`.
        bias: As given to `two_d_lstm`.
        output: What `two_d_lstm` returned.
        gates: The activated gates that it kept.
        cells: The cells that it kept.
        d_output: The gradient that arrives at the outputs.
        d_h_n: The gradient that arrives at the outputs of the last row.
        d_c_n: The gradient that arrives at the cells of the last row.
        heights: As given to `two_d_lstm`.
        widths: As given to `two_d_lstm`.
        h_0: As given to `two_d_lstm`.
        c_0: As given to `two_d_lstm`.

    Returns: One gradient per argument. ``only(["d_x"])`` of the op makes one, the others are None.
    NaN: stays in its own sequence, but for the gradients of weights and the bias.
    Raises: RangeError as `two_d_lstm` does.
    Gradient: none.
    Cost: O(t·s·b·h·(i + h)) time in t + s - 1 steps; in memory, beyond the results, the weights and
        their gradients, min(t, s)·b rows of 2·i + 9·h numbers and 4·t·b·h numbers.
    Same as: the gradient of RETURNN's TwoDLSTM.
    Source: as `two_d_lstm`.

    >>> one, w, bias = np.ones((1, 1, 1, 1)), np.zeros((1, 5)), np.zeros(5)
    >>> kept = nativeops.two_d_lstm.reference(one, w, w, w, bias)
    >>> given = (kept.output, kept.gates, kept.cells, one, one[0], one[0])
    >>> two_d_lstm_grad(one, w, w, w, bias, *given).d_bias.round(4)
    array([0., 0., 0., 0., 1.])
    """
    inside = _inside(x.shape, heights, widths)[..., None]
    (time, width, batch, _), units = x.shape, len(v_h)
    d_weights = [np.zeros_like(a) for a in (w, v_v, v_h, bias)]
    d_x, states = np.zeros_like(x), _borders(h_0, c_0, output, widths)
    below = _borders(d_h_n, d_c_n, output, widths)
    for t in reversed(range(time)):
        right = np.zeros((2, batch, units), x.dtype)
        for s in reversed(range(width)):
            h_above, c_above = (output[t - 1, s], cells[t - 1, s]) if t else (b[s] for b in states)
            h_left, c_left = (a[t, s - 1] if s else a[t, s] * 0 for a in (output, cells))
            i, f, lam, o, g = np.split(gates[t, s], 5, axis=-1)
            tanh_c, (d_h, d_c) = np.tanh(cells[t, s]), below[:, s] + right
            d_h = d_h + d_output[t, s]
            d_c = d_c + d_h * o * (1 - tanh_c**2)
            d_z = np.where(inside[t, s], np.concatenate([
                d_c * g * i * (1 - i),
                d_c * (lam * c_above + (1 - lam) * c_left) * f * (1 - f),
                d_c * f * (c_above - c_left) * lam * (1 - lam),
                d_h * tanh_c * o * (1 - o),
                d_c * i * (1 - g**2),
            ], -1), 0)  # fmt: skip
            d_x[t, s] = d_z @ w.T
            rows = np.where(inside[t, s], x[t, s], 0), h_above, h_left, np.ones((batch, 1))
            for n, row in enumerate(rows):
                d_weights[n] += (np.where(inside[t, s], row, 0).T @ d_z).reshape(d_weights[n].shape)
            to_above = np.array([d_z @ v_v.T, d_c * f * lam])
            to_left = np.array([d_z @ v_h.T, d_c * f * (1 - lam)])
            below[:, s] = np.where(inside[t, s], to_above, below[:, s])
            right = np.where(inside[t, s], to_left, 0)
    return TwoDLstmGrad(d_x, *d_weights, *below)


@two_d_lstm.example
def _(random, given):  # type: ignore[no-untyped-def]
    """Weights are so small that rounding does not grow from step to step."""
    t, s, b, i, h = (given[name] for name in "tsbih")
    shapes = {"x": (t, s, b, i), "w": (i, 5 * h), "v_v": (h, 5 * h), "v_h": (h, 5 * h)}
    shapes |= {"bias": (5 * h,), "h_0": (s, b, h), "c_0": (s, b, h)}
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    for name in ("w", "v_v", "v_h"):
        arrays[name] /= 1 + len(arrays[name])
    sizes = {"heights": random.integers(0, t + 1, b), "widths": random.integers(0, s + 1, b)}
    return {**arrays, **{name: size.astype(np.int32) for name, size in sizes.items()}}


@two_d_lstm_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    arguments = two_d_lstm.make_example(random, given)  # type: ignore[misc]
    made = two_d_lstm.reference(**arguments)
    arriving = {f"d_{n}": random.standard_normal(getattr(made, n).shape) for n in made._fields[:3]}
    return {
        **arguments,
        "output": made.output,
        "gates": made.gates,
        "cells": made.cells,
        **arriving,
    }


@two_d_lstm.gradient
def _(  # type: ignore[no-untyped-def]
    x, w, v_v, v_h, bias, heights, widths, h_0, c_0, output, gates, cells, d_output, d_h_n, d_c_n,
    needs
):  # fmt: skip
    return two_d_lstm_grad.only(needs)(
        x, w, v_v, v_h, bias, output, gates, cells, d_output, d_h_n, d_c_n,
        heights, widths, h_0, c_0,
    )  # fmt: skip
