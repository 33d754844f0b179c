# SPDX-License-Identifier: Apache-2.0
"""gated_recurrence against a loop over time, and against scans."""

from typing import Any

import numpy as np
from gated_recurrence import gated_recurrence, gated_recurrence_grad

from nativeops.bench.case import Bench, Known, NdArray
from nativeops.bench.forms import jax_gradient, jax_rival, ours_in, torch_gradient, torch_rival

SIZES = [{"b": 4, "t": 64, "n": 256}, {"b": 16, "t": 512, "n": 512}]


def sequences(random: np.random.Generator, b: int, t: int, n: int) -> tuple[NdArray, ...]:
    """Inputs, gates between 0 and 1, a first state, and what flows back."""
    x, d_out = random.standard_normal((2, b, t, n), dtype=np.float32)
    f = random.random((b, t, n), dtype=np.float32)
    return x, f, random.standard_normal((b, n), dtype=np.float32), d_out


def states(x: NdArray, f: NdArray, h0: NdArray) -> list[Known]:
    """All states."""
    return [Known(..., gated_recurrence.reference(*(a.astype(np.float64) for a in (x, f, h0))))]


def gradients(x: NdArray, f: NdArray, h0: NdArray, d_out: NdArray) -> list[Known]:
    """All gradients."""
    x, f, h0, d_out = (array.astype(np.float64) for array in (x, f, h0, d_out))
    out = gated_recurrence.reference(x, f, h0)
    return [Known(..., each) for each in gated_recurrence_grad.reference(x, f, h0, out, d_out)]


def torch_loop(x: Any, f: Any, h0: Any) -> Any:
    """An operation for each step, as one writes it first."""
    import torch

    h, found = h0, []
    for x_t, f_t in zip(x.unbind(1), f.unbind(1), strict=True):
        h = f_t * h + (1 - f_t) * x_t
        found.append(h)
    return torch.stack(found, 1)


def jax_scan(x: Any, f: Any, h0: Any) -> Any:
    """A step after the other, compiled."""
    import jax

    def step(h: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
        x_t, f_t = given
        h = f_t * h + (1 - f_t) * x_t
        return h, h

    return jax.lax.scan(step, h0, (x.swapaxes(0, 1), f.swapaxes(0, 1)))[1].swapaxes(0, 1)


def jax_associative_scan(x: Any, f: Any, h0: Any) -> Any:
    """In log(t) steps over the whole sequence."""
    import jax

    def join(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    share, sums = jax.lax.associative_scan(join, (f, (1 - f) * x), axis=1)
    return sums + share * h0[:, None]


FORWARD = Bench(
    "forward",
    "all states from inputs, gates and the first state",
    sizes=SIZES,
    inputs=lambda random, **size: sequences(random, **size)[:3],
    expected=states,
    work=lambda b, t, n: b * t * n,
    rivals=[
        *ours_in(gated_recurrence, "numpy", "torch"),
        torch_rival(torch_loop),
        *ours_in(gated_recurrence, "jax"),
        jax_rival(jax_scan),
        jax_rival(jax_associative_scan),
    ],
)

TRAINING = Bench(
    "gradient",
    "the same, and from a gradient of them those of all inputs",
    sizes=SIZES,
    inputs=sequences,
    expected=gradients,
    work=lambda b, t, n: b * t * n,
    rivals=[
        *ours_in(gated_recurrence, "torch", gradient=True),
        torch_gradient(torch_loop),
        *ours_in(gated_recurrence, "jax", gradient=True),
        jax_gradient(jax_scan),
        jax_gradient(jax_associative_scan),
    ],
)

BENCHES = [FORWARD, TRAINING]
