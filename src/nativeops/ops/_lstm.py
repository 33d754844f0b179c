# SPDX-License-Identifier: Apache-2.0
"""The LSTM in NumPy: what the references of its layers share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nativeops.ops import _steps


def cell(peepholes: Any = None, w_hr: Any = None) -> Callable[..., tuple[Any, ...]]:
    """A step of the layer: from both sums and the states to the states and what is kept."""
    p_i, p_f, p_o = (0, 0, 0) if peepholes is None else peepholes.reshape(3, -1)

    def step(from_x: Any, from_h: Any, h: Any, c: Any) -> tuple[Any, ...]:
        z_i, z_f, z_g, z_o = (from_x + from_h).reshape(4, len(c))
        i, f, g = _sigmoid(z_i + p_i * c), _sigmoid(z_f + p_f * c), np.tanh(z_g)
        c = f * c + i * g
        o = _sigmoid(z_o + p_o * c)
        h = o * np.tanh(c)
        return h if w_hr is None else w_hr @ h, c, (np.concatenate([i, f, g, o]), c)

    return step


def _sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def backward(
    weights: tuple[Any, ...],
    states: tuple[Any, ...],
    kept: tuple[Any, ...],
    arriving: tuple[Any, ...],
    lengths: Any,
    reverse: bool,
    peepholes: Any = None,
    w_hr: Any = None,
) -> dict[str, Any]:
    """All gradients by name.

    Args:
        weights: ``x, w_ih, w_hh, b_ih, b_hh``.
        states: ``h_0, c_0``.
        kept: ``output, cells, gates``; the gates may be None.
        arriving: ``d_output, d_h_n, d_c_n``.
        lengths: As the op has it.
        reverse: As the op has it.
        peepholes: As the op has it.
        w_hr: As the op has it.
    """
    x, w_ih, w_hh, b_ih, b_hh = weights
    (output, cells, gates), (d_output, d_h_n, d_c_n) = kept, arriving
    (steps, batch, _), units = x.shape, w_hh.shape[0] // 4
    d_z, h_before = np.zeros((steps, batch, 4 * units), x.dtype), np.zeros_like(output)
    d_h_0, d_c_0, d_p = d_h_n.copy(), d_c_n.copy(), np.zeros((3, units), x.dtype)
    d_w_hr: Any = 0.0
    p_i, p_f, p_o = d_p * 0 if peepholes is None else peepholes.reshape(3, units)
    for b, t, before in _steps.backwards(steps, lengths, batch, reverse):
        first = before is None
        h = _steps.initial(states[0], b, x, w_hh.shape[1]) if first else output[before, b]
        c = _steps.initial(states[1], b, x, units) if first else cells[before, b]
        sums = _steps.sums(w_ih, b_ih, x[t, b]), _steps.sums(w_hh, b_hh, h)
        known = cell(peepholes)(*sums, h, c)[-1][0] if gates is None else gates[t, b]
        i, f, g, o = known.reshape(4, units)
        d_h, tanh_c = d_h_0[b] + d_output[t, b], np.tanh(cells[t, b])
        if w_hr is not None:
            d_w_hr = d_w_hr + np.outer(d_h, o * tanh_c)
            d_h = d_h @ w_hr
        d_o = d_h * tanh_c * o * (1 - o)
        d_c = d_c_0[b] + d_h * o * (1 - tanh_c**2) + d_o * p_o
        d_i, d_f = d_c * g * i * (1 - i), d_c * c * f * (1 - f)
        d_z[t, b] = np.concatenate([d_i, d_f, d_c * i * (1 - g**2), d_o])
        d_p += np.stack([d_i * c, d_f * c, d_o * cells[t, b]])
        h_before[t, b] = h
        d_h_0[b], d_c_0[b] = d_z[t, b] @ w_hh, d_c * f + d_i * p_i + d_f * p_f
    d_x, d_w_ih, d_w_hh, d_b, _ = _steps.products(d_z, d_z, x, h_before, w_ih)
    made = {"d_x": d_x, "d_w_ih": d_w_ih, "d_w_hh": d_w_hh, "d_b": d_b, "d_h_0": d_h_0}
    made |= {"d_c_0": d_c_0, "d_peepholes": d_p.reshape(-1)}
    return made if w_hr is None else {**made, "d_w_hr": d_w_hr + np.zeros_like(w_hr)}
