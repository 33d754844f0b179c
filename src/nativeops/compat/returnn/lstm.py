# SPDX-License-Identifier: Apache-2.0
"""RETURNN's LSTM ops, which it has for TensorFlow: here for arrays of every framework.

Unlike there, all gradients are right for every mask, start and step.
"""

from typing import Any

import nativeops
from nativeops.arrays import namespace
from nativeops.compat.returnn._checks import check_axes, whole
from nativeops.compat.returnn._index import mask_of
from nativeops.errors import ArgumentError, ShapeError, message

__all__ = ["lstm_low_mem", "native_lstm", "native_lstm2", "two_d_lstm"]


def native_lstm(z: Any, w_re: Any, c: Any, index: Any) -> tuple[Any, Any]:
    """NativeLstm (LstmGenericBase): after a frame that the index leaves out, the output before the
    next step is 0, while the cell is that of the last step.

    Args:
        z: Products of the inputs, with biases, ``[time, batch, 4 · dim]``: cell-in, input, forget
            and output gate.
        w_re: Recurrent weights ``[dim, 4 · dim]``.
        c: Initial cells ``[batch, dim]``.
        index: Which frames take part, ``[time, batch]``: bool, or numbers above 0.1 where so.

    Returns: the outputs ``[time, batch, dim]`` and the final cells.
    """
    check_axes(
        "native_lstm",
        z=(z, "t b 4*dim"),
        c=(c, "b dim"),
        index=(index, "t b"),
        w_re=(w_re, "dim 4*dim"),
    )
    made = nativeops.native_lstm2(z, w_re, mask_of(index), None, c, resets=True)
    return made.output, made.c_n


def native_lstm2(
    x: Any, w_re: Any, y0: Any, c0: Any, index: Any, start: int = 0, step: int = 1
) -> tuple[Any, Any]:
    """NativeLstm2.

    Args:
        x: Products of the inputs, with biases, ``[time, batch, 4 · dim]``: cell-in, input, forget
            and output gate.
        w_re: Recurrent weights ``[dim, 4 · dim]``.
        y0: Initial outputs ``[batch, dim]``.
        c0: Initial cells ``[batch, dim]``.
        index: As `native_lstm` has it.
        start: How many frames are skipped where the walk begins.
        step: From frame to frame; below 0 from the end to the beginning.

    Returns: the outputs ``[time, batch, dim]`` and the final cells.
    """
    _check("native_lstm2", x, "t b 4*dim", y0, c0, index, w_re=(w_re, "dim 4*dim"))
    walk = _walk("native_lstm2", start, step)
    made = nativeops.native_lstm2(x, w_re, mask_of(index), y0, c0, **walk)
    return made.output, made.c_n


def lstm_low_mem(
    x: Any, w: Any, b: Any, y0: Any, c0: Any, index: Any, start: int = 0, step: int = 1
) -> tuple[Any, Any]:
    """LstmLowMem, whose state passes by the frames that the index leaves out, as in NativeLstm2.

    Args:
        x: Inputs ``[time, batch, in_dim]``.
        w: Weights of the inputs and below them of the state, ``[in_dim + dim, 4 · dim]``.
        b: Biases ``[4 · dim]``.
        y0: Initial outputs ``[batch, dim]``.
        c0: Initial cells ``[batch, dim]``.
        index: As `native_lstm` has it.
        start: As `native_lstm2` has it.
        step: As `native_lstm2` has it.

    Returns: the outputs ``[time, batch, dim]`` and the final cells.
    """
    weights = {"w": (w, "in_dim+dim 4*dim"), "b": (b, "4*dim")}
    _check("lstm_low_mem", x, "t b in_dim", y0, c0, index, **weights)
    walk = _walk("lstm_low_mem", start, step)
    inputs, units, rows = x.shape[2], y0.shape[1], w.shape[0]
    known = all(type(size) is int for size in (inputs, units, rows))
    if known and rows != inputs + units:
        text = f"`w` has {rows} rows, but `x` and `y0` have {inputs} + {units} numbers."
        hint = f"give it {inputs + units} rows: those of the inputs, and below them of the state."
        raise ShapeError(message("lstm_low_mem", text, hint=hint))
    if inputs is None:  # TensorFlow tells it when it runs
        inputs = namespace(x).shape(x)[2]
    made = nativeops.lstm_low_mem(x, w[:inputs], w[inputs:], b, mask_of(index), y0, c0, **walk)
    return made.output, made.c_n


def two_d_lstm(x: Any, v_h: Any, v_v: Any, w: Any, b: Any, sizes: Any) -> Any:
    """TwoDLSTM, of which the bias has a gradient, too.

    Args:
        x: Inputs ``[target_time, source_time, batch, in_dim]``.
        v_h: Weights of the output at the source position before, ``[dim, 5 · dim]``: input, forget,
            lambda and output gate, cell-in.
        v_v: Weights of the output at the target position before, likewise.
        w: Weights of the inputs ``[in_dim, 5 · dim]``.
        b: Biases ``[5 · dim]``.
        sizes: The lengths of target and source of each sequence, int32 ``[batch, 2]``.

    Returns: the outputs ``[target_time, source_time, batch, dim]``.
    """
    of_output, weights = "dim 5*dim", {"w": (w, "in_dim 5*dim"), "b": (b, "5*dim")}
    check_axes(
        "two_d_lstm",
        x=(x, "t s b in_dim"),
        sizes=(sizes, "b 2"),
        v_h=(v_h, of_output),
        v_v=(v_v, of_output),
        **weights,
    )
    return nativeops.two_d_lstm(x, w, v_v, v_h, b, sizes[:, 0], sizes[:, 1]).output


for _function in (native_lstm, native_lstm2, lstm_low_mem, two_d_lstm):
    vars(_function)["autograph_info__"] = True  # TensorFlow's AutoGraph leaves them as they are


def _check(op: str, x: Any, axes: str, y0: Any, c0: Any, index: Any, **weights: Any) -> None:
    """Whether frames, states, index and weights belong together."""
    states = {"y0": (y0, "b dim"), "c0": (c0, "b dim"), "index": (index, "t b")}
    check_axes(op, x=(x, axes), **states, **weights)


def _walk(op: str, start: int, step: int) -> dict[str, Any]:
    """What our ops say in place of a step with a sign."""
    if step == 0:
        text = "`step` is 0, with which the walk would never end."
        hint = "give the distance to the next frame, below 0 to go backwards."
        raise ArgumentError(message(op, text, hint=hint))
    stride = abs(whole(op, "step", step))
    return {"start": whole(op, "start", start), "stride": stride, "reverse": step < 0}
