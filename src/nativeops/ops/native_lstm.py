# SPDX-License-Identifier: Apache-2.0
"""RETURNN's LSTM layers, NativeLstm, NativeLstm2 and LstmLowMem, right for every mask and step."""

from typing import Annotated, Any, Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, AtLeast, Bool, Float, Kept
from nativeops.ops import _steps

Start = Annotated[int, AtLeast(0)]
Stride = Annotated[int, AtLeast(1)]


def _walk(time: int, mask: Any, b: int, start: int, stride: int, reverse: bool) -> list[Any]:
    """The frames of a sequence that are visited, and whether each takes part."""
    times = range(time)[:: -1 if reverse else 1][start::stride]
    return [(t, mask is None or bool(mask[t, b])) for t in times]


def _activate(sums: Any) -> Any:
    """The gates g, i, f, o one below the other."""
    g, *others = sums.reshape(4, -1)
    return np.stack([np.tanh(g), *(1 / (1 + np.exp(-z)) for z in others)])


def _forward(z: Any, w_re: Any, mask: Any, states: Any, walk: Any, resets: bool) -> tuple[Any, ...]:
    """The outputs, the final states, gates and cells."""
    (time, batch, _), units = z.shape, w_re.shape[0]
    output, cells = np.zeros((2, time, batch, units), z.dtype)
    gates, final = np.zeros(z.shape, z.dtype), np.zeros((2, batch, units), z.dtype)
    for b in range(batch):
        h, c = h_n, _ = [_steps.initial(state, b, z, units) for state in states]
        for t, takes_part in _walk(time, mask, b, *walk):
            if takes_part:
                g, i, f, o = gates[t, b].reshape(4, units)[:] = _activate(z[t, b] + h @ w_re)
                c = cells[t, b] = f * c + i * g
                h = h_n = output[t, b] = o * np.tanh(c)
            elif resets:
                h = np.zeros_like(h)
        final[:, b] = h_n, c
    return output, *final, gates, cells


def _backward(
    x: Any, w: Any, bias: Any, kept: Any, arriving: Any, mask: Any, states: Any, walk: Any,
    resets: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of z, of the weights of x and the state, and of both initial states.

    The gates may be None: then they are computed again.
    """
    (output, gates, cells), (d_output, d_h_n, d_c_n) = kept, arriving
    (time, batch, units), d_w = output.shape, np.zeros_like(w)
    d_z, d_h_0, d_c_0 = np.zeros((time, batch, 4 * units)), d_h_n.copy(), d_c_n.copy()
    inputs = len(w) - units
    for b in range(batch):
        h_0, c_before = (_steps.initial(state, b, output, units) for state in states)
        h_before, steps = h_0, []
        for t, takes_part in _walk(time, mask, b, *walk):
            if takes_part:
                steps.append((t, h_before, c_before))
                h_before, c_before = output[t, b], cells[t, b]
            elif resets:
                h_before = None  # no state
        for t, h_before, c_before in reversed(steps):
            if gates is None:
                h = np.zeros(units) if h_before is None else h_before
                g, i, f, o = _activate(np.concatenate([x[t, b], h]) @ w + bias)
            else:
                g, i, f, o = gates[t, b].reshape(4, units)
            tanh_c = np.tanh(cells[t, b])
            d_h = d_h_0[b] + d_output[t, b]
            d_c = d_c_0[b] + d_h * o * (1 - tanh_c**2)
            d_z[t, b] = np.concatenate([
                d_c * i * (1 - g**2), d_c * g * i * (1 - i), d_c * c_before * f * (1 - f),
                d_h * tanh_c * o * (1 - o),
            ])  # fmt: skip
            d_c_0[b], d_h_0[b] = d_c * f, 0
            if h_before is not None:
                d_h_0[b] = w[inputs:] @ d_z[t, b]
                d_w[inputs:] += np.outer(h_before, d_z[t, b])
            d_w[:inputs] += np.outer(x[t, b], d_z[t, b])
    return d_z, d_w, d_h_0, d_c_0


class NativeLstm2(NamedTuple, Generic[Array]):
    """The outputs of all frames and the final states of `native_lstm2`."""

    output: Float[Array, "t b h"]
    h_n: Float[Array, "b h"]
    c_n: Float[Array, "b h"]
    gates: Kept[Float[Array, "t b 4*h"]]
    cells: Kept[Float[Array, "t b h"]]


@_steps.layer_op(kernel="native_lstm.h", reuse={"h_n": "h_0", "c_n": "c_0"})
def native_lstm2(
    z: Float[Array, "t b 4*h"],
    w_re: Float[Array, "h 4*h"],
    mask: Bool[Array, "t b"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    *,
    start: Start = 0,
    stride: Stride = 1,
    reverse: bool = False,
    resets: bool = False,
    precision: _steps.Precision = "default",
) -> NativeLstm2[Array]:
    """An LSTM layer over the frames of a mask, from inputs already multiplied.

    ``g = tanh(u_g)``, ``i, f, o = σ(u_i), σ(u_f), σ(u_o)``, ``c' = f·c + i·g``,
    ``output[t] = h' = o·tanh(c')``, where ``u = z[t] + h w_re`` has four blocks ``g, i, f, o`` of
    ``h`` columns. Frames that are not visited, or not in the mask, have the output 0 and leave both
    states as they are.

    Args:
        z: The products of the inputs with their weights, biases added.
        w_re: Weights of the state before, a row for each of its numbers.
        mask: Which frames take part; holes are allowed. All if left away.
        h_0: The output before the first step; zeros if left away.
        c_0: The cell before the first step; zeros if left away.
        start: The first frame that is visited, counted from the end if ``reverse``.
        stride: From a frame that is visited to the next.
        reverse: From the last frame to the first.
        resets: After a frame that is visited but not in the mask, the next step has the state
            ``h = 0``, and still the cell that was carried: so NativeLstm has it.
        precision: As `lstm_layer` has it.

    Returns: ``output``, and the states ``h_n`` and ``c_n`` after each sequence's last step (the
        initial ones if it has none).
    NaN: stays in its own sequence; in frames that take no part it is not seen.
    Gradient: for all float arguments.
    Cost: O(steps · h²) time for as many steps as take part; in memory, beyond the results, the
        packed weights, two steps of gates and 4·t·b bytes. Where a gradient is needed 5·t·b·h
        numbers are kept.
    Same as: RETURNN's NativeLstm2, whose gradient is wrong for a mask with holes; with ``resets``
        its NativeLstm.
    Source: Hochreiter & Schmidhuber 1997, Long short-term memory; Doetsch et al. 2017, RETURNN: the
        RWTH extensible training framework for universal recurrent neural networks.

    >>> native_lstm2(np.ones((2, 1, 4)), np.zeros((1, 4))).output.ravel().round(4)
    array([0.3696, 0.5453])
    """
    walk = start, stride, reverse
    return NativeLstm2(*_forward(z, w_re, mask, (h_0, c_0), walk, resets))


class NativeLstm2Grad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `native_lstm2`."""

    d_z: Float[Array, "t b 4*h"] | None
    d_w_re: Float[Array, "h 4*h"] | None
    d_h_0: Float[Array, "b h"] | None
    d_c_0: Float[Array, "b h"] | None


@_steps.layer_op(kernel="native_lstm.h")
def native_lstm2_grad(
    w_re: Float[Array, "h 4*h"],
    output: Float[Array, "t b h"],
    gates: Float[Array, "t b 4*h"],
    cells: Float[Array, "t b h"],
    d_output: Float[Array, "t b h"],
    d_h_n: Float[Array, "b h"],
    d_c_n: Float[Array, "b h"],
    mask: Bool[Array, "t b"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    *,
    start: Start = 0,
    stride: Stride = 1,
    reverse: bool = False,
    resets: bool = False,
    precision: _steps.Precision = "default",
) -> NativeLstm2Grad[Array]:
    """What flows back through `native_lstm2` into its arguments.

    ``d_h = d_output[t] + d_z[t'] w_reᵀ`` of the step ``t'`` after it, from the last step to the
    first; ``d_c += d_h·o·(1 - tanh²(c'))``; ``d_z_g = d_c·i·(1 - g²)``, ``d_z_i = d_c·g·i(1 - i)``,
    ``d_z_f = d_c·c·f(1 - f)``, ``d_z_o = d_h·tanh(c')·o(1 - o)``; then ``d_c`` becomes ``d_c·f``.
    ``d_w_re = Σ hᵀ d_z`` with the state ``h`` that was carried to each step.

    Args:
        w_re: As given to `native_lstm2`.
        output: What `native_lstm2` returned.
        gates: The activated gates that it kept.
        cells: The cells that it kept.
        d_output: The gradient that arrives at the outputs; frames that took no part ignore it.
        d_h_n: The gradient that arrives at the final output.
        d_c_n: The gradient that arrives at the final cell.
        mask: As given to `native_lstm2`.
        h_0: As given to `native_lstm2`.
        c_0: As given to `native_lstm2`.
        start: As given to `native_lstm2`.
        stride: As given to `native_lstm2`.
        reverse: As given to `native_lstm2`.
        resets: As given to `native_lstm2`.
        precision: As given to `native_lstm2`; of the gradients' products.

    Returns: One gradient per argument. ``only(["d_z"])`` of the op makes one, the others are None.
    NaN: stays in its own sequence, but for the gradient of the weights.
    Gradient: none.
    Cost: O(steps · h²) time; 4·t·b·h numbers and the packed weights of workspace, of the portable
        kernel 5·t·b·h numbers.
    Same as: the gradient of RETURNN's NativeLstm2.
    Source: Graves 2012, Supervised sequence labelling with recurrent neural networks, chapter 4.

    >>> one, w_re = np.ones((1, 1, 1)), np.zeros((1, 4))
    >>> kept = nativeops.native_lstm2.reference(np.ones((1, 1, 4)), w_re)
    >>> given = (kept.output, kept.gates, kept.cells, one, one[0], one[0])
    >>> native_lstm2_grad(w_re, *given).d_z.round(4)
    array([[[0.6412, 0.3127, 0.    , 0.1988]]])
    """
    kept, arriving = (output, gates, cells), (d_output, d_h_n, d_c_n)
    states, walk, x = (h_0, c_0), (start, stride, reverse), gates[..., :0]
    return NativeLstm2Grad(*_backward(x, w_re, 0, kept, arriving, mask, states, walk, resets))


class LstmLowMem(NamedTuple, Generic[Array]):
    """The outputs of all frames and the final states of `lstm_low_mem`."""

    output: Float[Array, "t b h"]
    h_n: Float[Array, "b h"]
    c_n: Float[Array, "b h"]
    cells: Kept[Float[Array, "t b h"]]


@_steps.layer_op(kernel="native_lstm.h", reuse={"h_n": "h_0", "c_n": "c_0"})
def lstm_low_mem(
    x: Float[Array, "t b i"],
    w_in: Float[Array, "i 4*h"],
    w_re: Float[Array, "h 4*h"],
    bias: Float[Array, "4*h"],
    mask: Bool[Array, "t b"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    *,
    start: Start = 0,
    stride: Stride = 1,
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> LstmLowMem[Array]:
    """An LSTM layer over the frames of a mask that keeps only outputs and cells.

    ``z = x w_in + bias`` has four blocks ``g, i, f, o`` of ``h`` columns; what follows is that of
    `native_lstm2`. The gradient computes the gates again.

    Args:
        x: The inputs, frame by frame.
        w_in: Weights of the inputs, a row for each of their numbers.
        w_re: Weights of the state before, likewise.
        bias: Added to the products.
        mask: Which frames take part; holes are allowed. All if left away.
        h_0: The output before the first step; zeros if left away.
        c_0: The cell before the first step; zeros if left away.
        start: The first frame that is visited, counted from the end if ``reverse``.
        stride: From a frame that is visited to the next.
        reverse: From the last frame to the first.
        precision: As `lstm_layer` has it.

    Returns: ``output``, 0 in frames that take no part, and the states ``h_n`` and ``c_n`` after
        each sequence's last step (the initial ones if it has none).
    NaN: stays in its own sequence; in frames that take no part it is not seen.
    Gradient: for all float arguments.
    Cost: O(steps · h·(i + h)) time for as many steps as take part; in memory, beyond the results,
        the packed weights, two steps of gates and 4·t·b bytes. Where a gradient is needed t·b·h
        numbers are kept.
    Same as: RETURNN's LstmLowMem, with both weights below each other, where the mask has no holes:
        there it resets the state; and its gradient is wrong for other masks and for strides.
    Source: as `native_lstm2`.

    >>> x, w_in, w_re, bias = np.ones((2, 1, 1)), np.ones((1, 4)), np.zeros((1, 4)), np.zeros(4)
    >>> lstm_low_mem(x, w_in, w_re, bias).output.ravel().round(4)
    array([0.3696, 0.5453])
    """
    walk = start, stride, reverse
    made = _forward(x @ w_in + bias, w_re, mask, (h_0, c_0), walk, resets=False)
    output, h_n, c_n, _, cells = made
    return LstmLowMem(output, h_n, c_n, cells)


class LstmLowMemGrad(NamedTuple, Generic[Array]):
    """The gradients of the arguments of `lstm_low_mem`."""

    d_x: Float[Array, "t b i"] | None
    d_w_in: Float[Array, "i 4*h"] | None
    d_w_re: Float[Array, "h 4*h"] | None
    d_bias: Float[Array, "4*h"] | None
    d_h_0: Float[Array, "b h"] | None
    d_c_0: Float[Array, "b h"] | None


@_steps.layer_op(kernel="native_lstm.h")
def lstm_low_mem_grad(
    x: Float[Array, "t b i"],
    w_in: Float[Array, "i 4*h"],
    w_re: Float[Array, "h 4*h"],
    bias: Float[Array, "4*h"],
    output: Float[Array, "t b h"],
    cells: Float[Array, "t b h"],
    d_output: Float[Array, "t b h"],
    d_h_n: Float[Array, "b h"],
    d_c_n: Float[Array, "b h"],
    mask: Bool[Array, "t b"] | None = None,
    h_0: Float[Array, "b h"] | None = None,
    c_0: Float[Array, "b h"] | None = None,
    *,
    start: Start = 0,
    stride: Stride = 1,
    reverse: bool = False,
    precision: _steps.Precision = "default",
) -> LstmLowMemGrad[Array]:
    """What flows back through `lstm_low_mem` into its arguments.

    ``d_x = d_z w_inᵀ``, ``d_bias = Σ d_z``, ``d_w_in = Σ xᵀ d_z``; ``d_z`` and all else as
    `native_lstm2_grad` has it, with the gates computed again.

    Args:
        x: As given to `lstm_low_mem`.
        w_in: As given to `lstm_low_mem`.
        w_re: As given to `lstm_low_mem`.
        bias: As given to `lstm_low_mem`.
        output: What `lstm_low_mem` returned.
        cells: The cells that it kept.
        d_output: The gradient that arrives at the outputs; frames that took no part ignore it.
        d_h_n: The gradient that arrives at the final output.
        d_c_n: The gradient that arrives at the final cell.
        mask: As given to `lstm_low_mem`.
        h_0: As given to `lstm_low_mem`.
        c_0: As given to `lstm_low_mem`.
        start: As given to `lstm_low_mem`.
        stride: As given to `lstm_low_mem`.
        reverse: As given to `lstm_low_mem`.
        precision: As given to `lstm_low_mem`; of the gradients' products.

    Returns: One gradient per argument. ``only(["d_x"])`` of the op makes one, the others are None.
    NaN: stays in its own sequence, but for the gradients of weights and biases.
    Gradient: none.
    Cost: O(steps · h·(i + h)) time; 4·t·b·h numbers and the packed weights of workspace, of the
        portable kernel t·b·(13·h + i) numbers.
    Same as: the gradient of RETURNN's LstmLowMem.
    Source: as `native_lstm2_grad`.

    >>> one, w, bias = np.ones((1, 1, 1)), np.zeros((1, 4)), np.zeros(4)
    >>> kept = nativeops.lstm_low_mem.reference(one, w, w, bias)
    >>> given = (kept.output, kept.cells, one, one[0], one[0])
    >>> lstm_low_mem_grad(one, w, w, bias, *given).d_bias.round(4)
    array([1., 0., 0., 0.])
    """
    walk, states, w = (start, stride, reverse), (h_0, c_0), np.concatenate([w_in, w_re])
    kept, arriving = (output, None, cells), (d_output, d_h_n, d_c_n)
    d_z, d_w, d_h_0, d_c_0 = _backward(x, w, bias, kept, arriving, mask, states, walk, resets=False)
    d_w_in, d_w_re = np.split(d_w, [x.shape[2]])
    return LstmLowMemGrad(d_z @ w_in.T, d_w_in, d_w_re, d_z.sum((0, 1)), d_h_0, d_c_0)


def _example(random: Any, given: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Valid arguments; weights are so small that rounding does not grow from step to step."""
    t, b, h = (given[name] for name in "tbh")
    shapes |= dict.fromkeys(("h_0", "c_0"), (b, h))
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    for name in arrays.keys() & {"w_in", "w_re"}:
        arrays[name] /= 1 + len(arrays[name])
    return {**arrays, "mask": random.random((t, b)) < 0.7}


def _grad_example(random: Any, given: Any, op: Any) -> dict[str, Any]:
    """Valid arguments of a gradient: what the layer made of an example."""
    chosen = {a.name: given[a.name] for a in op.signature.attributes if a.name in given}
    arguments = op.make_example(random, given)
    made = op.reference(**arguments, **chosen)
    arriving = {f"d_{n}": random.standard_normal(getattr(made, n).shape) for n in made._fields[:3]}
    kept = {n: getattr(made, n) for n in made._fields if n not in ("h_n", "c_n")}
    arguments.pop("z", None)
    return {**arguments, **kept, **arriving}


@native_lstm2.example
def _(random, given):  # type: ignore[no-untyped-def]
    t, b, h = (given[name] for name in "tbh")
    return _example(random, given, {"z": (t, b, 4 * h), "w_re": (h, 4 * h)})


@native_lstm2_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _grad_example(random, given, native_lstm2)


@lstm_low_mem.example
def _(random, given):  # type: ignore[no-untyped-def]
    t, b, i, h = (given[name] for name in "tbih")
    return _example(random, given, {
        "x": (t, b, i), "w_in": (i, 4 * h), "w_re": (h, 4 * h), "bias": (4 * h,)
    })  # fmt: skip


@lstm_low_mem_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _grad_example(random, given, lstm_low_mem)


@native_lstm2.gradient
def _(  # type: ignore[no-untyped-def]
    w_re, mask, h_0, c_0, output, gates, cells, d_output, d_h_n, d_c_n, start, stride, reverse,
    resets, precision, needs
):  # fmt: skip
    return native_lstm2_grad.only(needs)(
        w_re, output, gates, cells, d_output, d_h_n, d_c_n, mask, h_0, c_0,
        start=start, stride=stride, reverse=reverse, resets=resets, precision=precision,
    )  # fmt: skip


@lstm_low_mem.gradient
def _(  # type: ignore[no-untyped-def]
    x, w_in, w_re, bias, mask, h_0, c_0, output, cells, d_output, d_h_n, d_c_n, start, stride,
    reverse, precision, needs
):  # fmt: skip
    return lstm_low_mem_grad.only(needs)(
        x, w_in, w_re, bias, output, cells, d_output, d_h_n, d_c_n, mask, h_0, c_0,
        start=start, stride=stride, reverse=reverse, precision=precision,
    )  # fmt: skip
