# SPDX-License-Identifier: Apache-2.0
"""A light GRU: a recurrent layer with a cell of one's own."""

from typing import NamedTuple

import numpy as np

from nativeops.declare import Array, Float, Int32, Kept, op


class LightGru(NamedTuple):
    """The outputs of all steps and the final state of `light_gru`."""

    output: Float[Array, "t b h"]
    h_n: Float[Array, "b h"]
    gates: Kept[Float[Array, "t b 2*h"]]


@op(kernel="light_gru.h", independent="b", carries="t", reuse={"h_n": "h_0"})
def light_gru(
    sums: Float[Array, "t b 2*h"],
    w_hh: Float[Array, "2*h h"],
    h_0: Float[Array, "b h"] | None = None,
    lengths: Int32[Array, "b"] | None = None,
) -> LightGru:
    """``output[t] = h' = z·h + (1 - z)·a``, ``a = max(u_a, 0)``, ``z = σ(u_z)``.

    ``u = sums[t] + W_hh h`` has the blocks ``a`` and ``z``. ``sums`` are products with inputs, here
    of the user's own making, as they are normalised over the batch; ``h_0`` is 0 if left away.
    Beyond ``lengths`` outputs are 0; ``h_n`` is the state at each sequence's own end.

    Gradient: for ``sums``, ``w_hh`` and ``h_0``; 2·t·b·h numbers are kept for it.
    Cost: O(Σ lengths · h²) time; the packed weights and two steps of sums in memory.
    Same as: the layers of SpeechBrain's ``LiGRU`` without dropout, with its weights.
    Source: Ravanelli et al. 2018, Light gated recurrent units for speech recognition.

    >>> light_gru(np.array([[[8.0, 0.0]], [[0.0, 0.0]]]), np.zeros((2, 1))).output.ravel()
    array([4., 2.])
    """
    h = np.zeros((sums.shape[1], w_hh.shape[1])) if h_0 is None else h_0
    output, gates = np.zeros((len(sums), *h.shape)), np.zeros(sums.shape)
    for t in range(len(sums)):
        inside = np.full((len(h), 1), True) if lengths is None else t < lengths[:, None]
        u_a, u_z = np.split(sums[t] + h @ w_hh.T, 2, -1)
        a, z = np.maximum(u_a, 0), 1 / (1 + np.exp(-u_z))
        h = np.where(inside, z * h + (1 - z) * a, h)
        output[t], gates[t] = np.where(inside, h, 0), np.where(inside, np.hstack([a, z]), 0)
    return LightGru(output, h, gates)


class LightGruGrad(NamedTuple):
    """The gradients of the arguments of `light_gru`."""

    d_sums: Float[Array, "t b 2*h"] | None
    d_w_hh: Float[Array, "2*h h"] | None
    d_h_0: Float[Array, "b h"] | None


@op(kernel="light_gru.h", independent="b", carries="t")
def light_gru_grad(
    w_hh: Float[Array, "2*h h"],
    output: Float[Array, "t b h"],
    gates: Float[Array, "t b 2*h"],
    d_output: Float[Array, "t b h"],
    d_h_n: Float[Array, "b h"],
    h_0: Float[Array, "b h"] | None = None,
    lengths: Int32[Array, "b"] | None = None,
) -> LightGruGrad:
    """What flows back through `light_gru`, from the last step to the first."""
    d_h, d_sums = d_h_n, np.zeros(gates.shape)
    h_before = np.stack([np.zeros_like(d_h) if h_0 is None else h_0, *output])[: len(output)]
    for t in reversed(range(len(output))):
        inside = np.full((len(d_h), 1), True) if lengths is None else t < lengths[:, None]
        (a, z), d = np.split(gates[t], 2, -1), np.where(inside, d_h + d_output[t], 0)
        d_sums[t] = np.hstack([d * (1 - z) * (a > 0), d * (h_before[t] - a) * z * (1 - z)])
        d_h = np.where(inside, d * z + d_sums[t] @ w_hh, d_h)
    return LightGruGrad(d_sums, np.einsum("tbg,tbh->gh", d_sums, h_before), d_h)


@light_gru.gradient
def _(w_hh, h_0, lengths, output, gates, d_output, d_h_n, needs):
    return light_gru_grad.only(needs)(w_hh, output, gates, d_output, d_h_n, h_0, lengths)


@light_gru.example
def _(random, given):
    # Rounding must not decide on which side of its kink max(u, 0) is, nor grow from step to step.
    t, b, h = (given[name] for name in "tbh")
    sums, h_0 = random.standard_normal((t, b, 2 * h)), random.standard_normal((b, h))
    w_hh = random.uniform(-1, 1, (2 * h, h)) / (1 + 8 * h)
    lengths = random.integers(0, t + 1, b).astype(np.int32)
    return {"sums": sums + np.sign(sums), "w_hh": w_hh, "h_0": h_0, "lengths": lengths}


@light_gru_grad.example
def _(random, given):
    made = light_gru.make_example(random, given)
    output, h_n, gates = light_gru.reference(**made)
    del made["sums"]
    flowing = {"d_output": random.standard_normal(output.shape), "d_h_n": np.ones(h_n.shape)}
    return {**flowing, **made, "output": output, "gates": gates}
