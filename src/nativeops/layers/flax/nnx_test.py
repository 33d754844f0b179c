# SPDX-License-Identifier: Apache-2.0
"""The drop-in for `flax.nnx.RNN` against the original."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

nnx = pytest.importorskip("flax.nnx")

from nativeops.errors import DtypeError, RangeError, ShapeError  # noqa: E402
from nativeops.layers.flax.nnx import RNN  # noqa: E402  needs Flax
from nativeops.testing.flax_pair import (  # noqa: E402
    BATCH,
    CELLS,
    INPUTS,
    LENGTHS,
    STEPS,
    UNITS,
    assert_close,
    every_cell,
    normal,
    without_padding,
)


def pair(cell, **options):
    """Flax's layer and ours with the same cell, whose biases are not 0."""
    made = getattr(nnx, cell)(INPUTS, UNITS, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0))
    return nnx.RNN(made, **options), RNN(made, **options)


@pytest.mark.parametrize(
    ("cell", "reverse", "lengths"),
    [("LSTMCell", False, None), *[(cell, True, LENGTHS) for cell in CELLS]],
)
def test_values_are_those_of_flax(cell, reverse, lengths):
    own, ours = pair(cell, reverse=reverse, return_carry=True)
    x, carry = normal(BATCH, STEPS, INPUTS), normal(BATCH, UNITS, seed=5)
    carry = (carry, carry + 1) if "LSTM" in cell else carry
    for given in ({}, {"initial_carry": carry, "keep_order": True}):
        last, outputs = own(x, seq_lengths=lengths, **given)
        outputs = outputs if lengths is None else without_padding(outputs)
        assert_close(ours(x, seq_lengths=lengths, **given), (last, outputs))
        made = ours(x.swapaxes(0, 1), seq_lengths=lengths, time_major=True, **given)
        assert_close(made[1].swapaxes(0, 1), outputs)


@every_cell
def test_op_computes(cell, monkeypatch):
    layer = pair(cell)[1]
    monkeypatch.setattr(nnx.RNN, "__call__", None)
    assert layer(normal(BATCH, STEPS, INPUTS)).shape == (BATCH, STEPS, UNITS)


@every_cell
def test_state_and_gradients_are_those_of_flax_under_jit(cell):
    x, weight = normal(BATCH, STEPS, INPUTS), normal(BATCH, STEPS, UNITS, seed=9)

    @nnx.jit
    def gradients(layer):
        return nnx.grad(lambda layer: (layer(x, reverse=True) * weight).sum())(layer)

    own, ours = pair(cell)
    assert jax.tree.structure(nnx.state(ours)) == jax.tree.structure(nnx.state(own))
    found, expected = (nnx.to_pure_dict(gradients(layer)) for layer in (ours, own))
    assert_close(found, expected, 1e-4)


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell"])
def test_low_memory_keeps_no_gates_and_gives_the_same_gradients(cell):
    plain, carry = pair(cell, rngs=False)[1], jnp.zeros((BATCH, UNITS))
    given = {"initial_carry": (carry, carry) if "LSTM" in cell else carry}
    low, x = RNN(plain.cell, low_memory=True, rngs=False), normal(BATCH, STEPS, INPUTS)
    total = [lambda x, layer=layer: layer(x, **given).sum() for layer in (low, plain)]
    assert_close(*(jax.grad(f)(x) for f in total))
    kept = [sum(leaf.size for leaf in jax.tree.leaves(jax.vjp(f, x)[1])) for f in total]
    assert kept[1] - kept[0] == 4 * STEPS * BATCH * UNITS  # four blocks


def test_precision_reaches_the_op():
    own, ours = pair("LSTMCell")
    x = normal(BATCH, STEPS, INPUTS)
    ours.precision = "high"
    assert_close(ours(x), own(x), 1e-4)
    ours.precision = "low"
    with pytest.raises(ValueError, match=r"`precision` must be one of \['default', 'highest'"):
        ours(x)
    with pytest.raises(ValueError, match=r"RNN: `precision` must be one of \['default', 'highest'"):
        RNN(own.cell, rngs=nnx.Rngs(0), precision="low")
    with pytest.raises(DtypeError, match="RNN: `low_memory` must be bool, but is 'no'"):
        RNN(own.cell, rngs=nnx.Rngs(0), low_memory="no")


@pytest.mark.parametrize("shape", [(1, BATCH), (BATCH + 1,), (0,)])
def test_lengths_of_other_axes_are_refused(shape):
    layer = RNN(nnx.GRUCell(INPUTS, UNITS, rngs=nnx.Rngs(0)))
    text = rf"`seq_lengths` must have the axes of the batch, \[{BATCH}\], but has"
    with pytest.raises(ShapeError, match=text):
        layer(normal(BATCH, STEPS, INPUTS), seq_lengths=np.ones(shape, np.int32))


@pytest.mark.parametrize(("time_major", "axes"), [(False, "[.., t, i]"), (True, "[t, .., i]")])
def test_inputs_without_an_axis_of_time_are_refused(time_major, axes):
    layer = RNN(nnx.GRUCell(INPUTS, UNITS, rngs=nnx.Rngs(0)), time_major=time_major)
    text = re.escape(f"`inputs` must have at least 2 axes {axes}, but has 1.")
    for given in ({}, {"initial_carry": jnp.zeros(UNITS)}):
        with pytest.raises(ShapeError, match=text):
            layer(normal(INPUTS), **given)


def test_vmap():
    own, ours = pair("GRUCell", rngs=False)
    x, carry = normal(2, BATCH, STEPS, INPUTS), jnp.zeros((BATCH, UNITS))
    axes = {"in_axes": (None, 0), "out_axes": 0}
    found, expected = (
        nnx.vmap(lambda layer, x: layer(x, initial_carry=carry), **axes)(layer, x)
        for layer in (ours, own)
    )
    assert_close(found, expected)


def test_initial_carry_takes_the_same_random_numbers():
    own, ours = pair("LSTMCell", rngs=nnx.Rngs(carry=3))
    x = normal(BATCH, STEPS, INPUTS)
    for layer in (own, ours):
        layer(x)
        layer(x, rngs=nnx.Rngs(1))
    assert ours.rngs.count[...] == own.rngs.count[...] > 0


def test_bidirectional():
    def make(kind):
        rngs = nnx.Rngs(0)
        cells = nnx.LSTMCell(INPUTS, UNITS, rngs=rngs), nnx.GRUCell(INPUTS, UNITS, rngs=rngs)
        return nnx.Bidirectional(*map(kind, cells), rngs=rngs)

    x = normal(BATCH, STEPS, INPUTS)
    found, expected = (make(kind)(x, seq_lengths=LENGTHS) for kind in (RNN, nnx.RNN))
    assert_close(found, without_padding(expected))


@pytest.mark.parametrize(
    ("cell", "make", "options", "why"),
    [
        (nnx.LSTMCell, {"activation_fn": nnx.relu}, {}, "`activation_fn` of its cell"),
        (nnx.SimpleCell, {"residual": True}, {}, "its cell is residual"),
        (nnx.GRUCell, {"promote_dtype": lambda x, dtype=None: x}, {}, "`promote_dtype`"),
        (nnx.GRUCell, {}, {"state_axes": nnx.StateAxes({...: None})}, "`state_axes`"),
    ],
)
def test_what_the_ops_do_not_compute_flax_computes_and_says_so(cell, make, options, why):
    made = cell(INPUTS, UNITS, rngs=nnx.Rngs(0), **make)
    own, ours = nnx.RNN(made, **options), RNN(made, **options)
    x = normal(BATCH, STEPS, INPUTS)
    with pytest.warns(UserWarning, match=why):
        assert_close(ours(x), own(x), 0)


class Doubled(nnx.Linear):
    """A matrix that does more than its parameters say."""

    def __call__(self, inputs):
        return 2 * super().__call__(inputs)


def replace_dense(cell, **options):
    kind = options.pop("kind", nnx.Linear)
    rows = cell.dense_i.kernel.shape
    cell.dense_i = kind(*rows, rngs=nnx.Rngs(3), **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kind": nnx.LoRALinear, "lora_rank": 2}, "`dense_i` of its cell is a `LoRALinear`"),
        ({"kind": Doubled}, "`dense_i` of its cell is a `Doubled`"),
        ({"dot_general": lambda *args, **more: 2 * jax.lax.dot_general(*args, **more)},
         "has a `dot_general`"),
        ({"dtype": jnp.bfloat16}, "computes in another dtype"),
    ],
)  # fmt: skip
def test_matrices_that_are_not_flax_s_own_are_flax_s_to_compute(options, why):
    cell = nnx.GRUCell(INPUTS, UNITS, rngs=nnx.Rngs(0))
    replace_dense(cell, **options)
    x = normal(BATCH, STEPS, INPUTS)
    with pytest.warns(UserWarning, match=why):
        assert_close(RNN(cell)(x), nnx.RNN(cell)(x), 0)


@pytest.mark.parametrize("cell", ["LSTMCell", "OptimizedLSTMCell", "GRUCell"])
def test_carry_that_is_wider_than_the_cell_keeps_its_digits(cell):
    made = getattr(nnx, cell)(INPUTS, UNITS, dtype=jnp.float16, rngs=nnx.Rngs(0))
    h, c = normal(BATCH, UNITS), normal(BATCH, UNITS, seed=1) + 1e5
    given = {"initial_carry": (c, h) if "LSTM" in cell else h, "return_carry": True}
    x = normal(BATCH, STEPS, INPUTS)
    assert_close(RNN(made)(x, **given), nnx.RNN(made)(x, **given), 0.01)


def test_parameters_may_be_numpy_arrays():
    cell = nnx.LSTMCell(INPUTS, UNITS, rngs=nnx.Rngs(0))
    x = normal(BATCH, STEPS, INPUTS)
    graph, params, rest = nnx.split(RNN(cell), nnx.Param, ...)
    restored = nnx.merge(graph, jax.tree.map(np.asarray, params), rest)
    assert_close(restored(x), nnx.RNN(cell)(x))


def test_lengths_that_no_int32_holds_are_not_taken_for_others():
    layer = RNN(nnx.GRUCell(INPUTS, UNITS, rngs=nnx.Rngs(0)))
    lengths = np.full(BATCH, 2**32 + 1)
    with pytest.raises(RangeError):
        jax.block_until_ready(layer(normal(BATCH, STEPS, INPUTS), seq_lengths=lengths))
