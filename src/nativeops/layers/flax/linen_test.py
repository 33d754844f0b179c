# SPDX-License-Identifier: Apache-2.0
"""The drop-in for `flax.linen.RNN` against the original."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

flax = pytest.importorskip("flax")
nn = pytest.importorskip("flax.linen")

from nativeops.errors import ArgumentError, DtypeError, ShapeError  # noqa: E402
from nativeops.layers.flax.linen import RNN  # noqa: E402  needs Flax
from nativeops.testing.flax_pair import (  # noqa: E402
    BATCH,
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
    """Flax's layer, ours, and random parameters, biases too."""
    own, ours = (kind(getattr(nn, cell)(UNITS), **options) for kind in (nn.RNN, RNN))
    shapes = jax.eval_shape(own.init, jax.random.key(0), normal(BATCH, STEPS, INPUTS))
    leaves, tree = jax.tree.flatten(shapes)
    params = [0.5 * normal(*leaf.shape, seed=n) for n, leaf in enumerate(leaves)]
    return own, ours, jax.tree.unflatten(tree, params)


@every_cell
def test_parameters_are_those_of_flax(cell):
    x = normal(BATCH, STEPS, INPUTS)
    own, ours = (kind(getattr(nn, cell)(UNITS)) for kind in (nn.RNN, RNN))
    key = jax.random.key(1)
    assert_close(ours.init(key, x), own.init(key, x), 0)


@pytest.mark.parametrize(
    ("cell", "reverse", "keep_order", "lengths"),
    [
        ("LSTMCell", False, False, None),
        ("LSTMCell", True, False, LENGTHS),
        ("OptimizedLSTMCell", False, False, LENGTHS),
        ("GRUCell", True, False, None),
        ("GRUCell", True, True, LENGTHS),
        ("SimpleCell", True, False, LENGTHS),
    ],
)
def test_values_are_those_of_flax(cell, reverse, keep_order, lengths):
    own, ours, params = pair(cell, reverse=reverse, return_carry=True)
    x, carry = normal(BATCH, STEPS, INPUTS), normal(BATCH, UNITS, seed=5)
    carry = (carry, carry + 1) if "LSTM" in cell else carry
    options = {"seq_lengths": lengths, "initial_carry": carry, "keep_order": keep_order}
    last, outputs = own.apply(params, x, **options)
    outputs = outputs if lengths is None else without_padding(outputs)
    assert_close(ours.apply(params, x, **options), (last, outputs))
    options |= {"time_major": True, "return_carry": False}
    made = ours.apply(params, x.swapaxes(0, 1), **options)
    assert_close(made.swapaxes(0, 1), outputs)


@every_cell
def test_op_computes(cell, monkeypatch):
    _, layer, params = pair(cell)
    monkeypatch.setattr(nn.RNN, "__call__", None)
    assert layer.apply(params, normal(BATCH, STEPS, INPUTS)).shape == (BATCH, STEPS, UNITS)


def test_precision_reaches_the_op():
    own, ours, params = pair("GRUCell")
    x = normal(BATCH, STEPS, INPUTS)
    assert_close(RNN(ours.cell, precision="high").apply(params, x), own.apply(params, x), 1e-4)
    with pytest.raises(ValueError, match=r"RNN: `precision` must be one of \['default', 'highest'"):
        RNN(ours.cell, precision="low")
    with pytest.raises(DtypeError, match="RNN: `low_memory` must be bool, but is None"):
        RNN(ours.cell, low_memory=None)


@pytest.mark.parametrize(("batch", "steps"), [((), 1), ((0,), 4), ((2, 3), 4)])
def test_any_axes_of_batch(batch, steps):
    own, ours, params = pair("GRUCell")
    x = normal(*batch, steps, INPUTS)
    lengths = jnp.ones(batch, jnp.int32)
    assert_close(ours.apply(params, x), own.apply(params, x))
    found = ours.apply(params, x, seq_lengths=lengths)
    assert_close(found, without_padding(own.apply(params, x), lengths))


def test_sequence_of_no_steps_ends_as_it_began():
    _, layer, params = pair("LSTMCell", return_carry=True)
    carry = (normal(2, UNITS), normal(2, UNITS, seed=1))
    options = {"initial_carry": carry, "seq_lengths": jnp.array([0, 2])}
    (c, h), outputs = layer.apply(params, normal(2, STEPS, INPUTS), **options)
    assert_close((c[0], h[0]), (carry[0][0], carry[1][0]), 0)
    assert not outputs[0].any()
    assert outputs[1, :2].all()


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell", "SimpleCell"])
def test_gradients_are_those_of_flax_under_jit(cell):
    own, ours, params = pair(cell)
    x, weight = normal(BATCH, STEPS, INPUTS), normal(BATCH, STEPS, UNITS, seed=9)

    def gradients(layer, lengths):
        def loss(params, x):
            outputs = layer.apply(params, x, seq_lengths=lengths, reverse=True)
            return (without_padding(outputs) * weight).sum()

        return jax.jit(jax.grad(loss, (0, 1)))(params, x)

    assert_close(gradients(ours, LENGTHS), gradients(own, LENGTHS), 1e-4)


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell"])
def test_low_memory_keeps_no_gates_and_gives_the_same_gradients(cell):
    _, plain, params = pair(cell)
    low = RNN(getattr(nn, cell)(UNITS), low_memory=True)
    x = normal(BATCH, STEPS, INPUTS)
    total = [lambda params, x, layer=layer: layer.apply(params, x).sum() for layer in (low, plain)]
    found, expected = (jax.grad(f, (0, 1))(params, x) for f in total)
    assert_close(found, expected)
    kept = [sum(leaf.size for leaf in jax.tree.leaves(jax.vjp(f, params, x)[1])) for f in total]
    assert kept[1] - kept[0] == 4 * STEPS * BATCH * UNITS  # four blocks


def test_vmap():
    own, ours, params = pair("LSTMCell")
    x = normal(3, BATCH, STEPS, INPUTS)
    found = jax.jit(jax.vmap(lambda x: ours.apply(params, x)))(x)
    assert_close(found, jax.vmap(lambda x: own.apply(params, x))(x))


def test_bidirectional():
    x, key = normal(BATCH, STEPS, INPUTS), jax.random.key(0)
    own, ours = (
        nn.Bidirectional(kind(nn.LSTMCell(UNITS)), kind(nn.GRUCell(UNITS)), return_carry=True)
        for kind in (nn.RNN, RNN)
    )
    params = own.init(key, x)
    assert_close(ours.init(key, x), params, 0)
    carry, outputs = own.apply(params, x, seq_lengths=LENGTHS)
    expected = (carry, without_padding(outputs))
    assert_close(ours.apply(params, x, seq_lengths=LENGTHS), expected)


def test_layer_inside_of_a_module():
    class Model(nn.Module):
        kind: type

        @nn.compact
        def __call__(self, x):
            x = self.kind(nn.GRUCell(UNITS), name="first")(x)
            return self.kind(nn.SimpleCell(UNITS, activation_fn=nn.relu), name="second")(x)

    x = normal(BATCH, STEPS, INPUTS)
    params = Model(nn.RNN).init(jax.random.key(0), x)
    assert_close(Model(RNN).apply(params, x), Model(nn.RNN).apply(params, x))


@pytest.mark.parametrize(
    ("cell", "options", "why"),
    [
        (nn.MGUCell(UNITS), {}, "its cell is `MGUCell`"),
        (nn.LSTMCell(UNITS, activation_fn=nn.relu), {}, "`activation_fn` of its cell"),
        (nn.GRUCell(UNITS, gate_fn=nn.hard_sigmoid), {}, "`gate_fn` of its cell"),
        (nn.SimpleCell(UNITS, residual=True), {}, "its cell is residual"),
        (nn.GRUCell(UNITS), {"variable_axes": {"params": 0}, "variable_broadcast": False,
                             "split_rngs": {"params": True}}, "lifted in another way"),
    ],
)  # fmt: skip
def test_what_the_ops_do_not_compute_flax_computes_and_says_so(cell, options, why):
    x = normal(BATCH, STEPS, INPUTS)
    own, ours = (kind(cell, **options) for kind in (nn.RNN, RNN))
    params = own.init(jax.random.key(0), x)
    with pytest.warns(UserWarning, match=why):
        assert_close(ours.apply(params, x), own.apply(params, x), 0)


def test_bfloat16():
    x = normal(BATCH, STEPS, INPUTS)
    own, ours = (
        kind(nn.LSTMCell(UNITS, dtype=jnp.bfloat16), return_carry=True) for kind in (nn.RNN, RNN)
    )
    params = own.init(jax.random.key(0), x)
    assert_close(ours.apply(params, x), own.apply(params, x), 0.03)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("cell", ["LSTMCell", "OptimizedLSTMCell", "GRUCell"])
def test_carry_that_is_wider_than_the_cell_keeps_its_digits(cell, dtype):
    _, _, params = pair(cell)
    gates = params["params"]["cell"]
    for gate, bias in {"hf": 40.0, "hi": -4.0, "hg": 5.0, "iz": 5.0}.items():  # a carry that lasts
        if gate in gates:
            gates[gate]["bias"] = gates[gate]["bias"] + bias
    h, c = normal(BATCH, UNITS, seed=5), jnp.full((BATCH, UNITS), 1e5, jnp.float32)
    x = normal(BATCH, 20, INPUTS)
    found, expected = (
        stream(kind(getattr(nn, cell)(UNITS, dtype=dtype), return_carry=True), params, x, start)
        for kind in (nn.RNN, RNN)
        for start in [(c, h) if "LSTM" in cell else h]
    )
    if "LSTM" in cell:
        found, expected = ((last[0] - c, last[1]) for last in (found, expected))
    assert_close(found, expected, 0.05)


def stream(layer, params, x, carry):
    """The last carry of a layer that gets one step at a time."""
    step = jax.jit(lambda carry, x: layer.apply(params, x, initial_carry=carry)[0])
    for time in range(x.shape[1]):
        carry = step(carry, x[:, time : time + 1])
    return carry


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell"])
def test_program_for_any_number_of_steps_and_sequences(cell, reverse):
    own, ours, params = pair(cell, reverse=reverse)
    x, lengths = normal(BATCH, STEPS, INPUTS), LENGTHS

    def run(x, lengths):
        return ours.apply(params, x, seq_lengths=lengths)

    b, t = jax.export.symbolic_shape("b, t")
    check = jax.export.DisabledSafetyCheck.custom_call("nativeops")
    program = jax.export.export(jax.jit(run), disabled_checks=[check])(
        jax.ShapeDtypeStruct((b, t, INPUTS), x.dtype), jax.ShapeDtypeStruct((b,), lengths.dtype)
    )
    expected = without_padding(own.apply(params, x, seq_lengths=lengths))
    assert_close(program.call(x, lengths), expected)


def test_missing_parameters_and_wrong_lengths_are_named():
    _, layer, params = pair("LSTMCell")
    x = normal(BATCH, STEPS, INPUTS)
    with pytest.raises(Exception, match="params"):
        layer.apply({}, x)
    with pytest.raises(TypeError, match="lengths"):
        layer.apply(params, x, seq_lengths=jnp.ones(BATCH))
    with pytest.raises(Exception, match="is 9, but must be from 0 to 5"):
        layer.apply(params, x, seq_lengths=jnp.array([9, 1, 1, 1])).block_until_ready()


@every_cell
def test_carry_that_the_cell_does_not_have_is_refused(cell):
    _, layer, params = pair(cell)
    x, h = normal(BATCH, STEPS, INPUTS), normal(BATCH, UNITS)
    lstm = "LSTM" in cell
    what = r"a pair of arrays \(c, h\)" if lstm else "an array"
    wrong = {"1 of them": (h,), "3 of them": (h, h, h)}
    wrong |= {"one array": h} if lstm else {"2 of them": (h, h)}
    for has, carry in wrong.items():
        with pytest.raises(ArgumentError, match=f"`initial_carry` must be {what}, but is {has}"):
            layer.apply(params, x, initial_carry=carry)
    text = rf"must be {what} with the axes \[{BATCH}, {UNITS}\], but one has"
    for shape in ((BATCH + 1, UNITS), (BATCH, UNITS - 1), (BATCH, 1), ()):
        state = jnp.ones(shape)
        with pytest.raises(ShapeError, match=text):
            layer.apply(params, x, initial_carry=(h, state) if lstm else state)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.OptimizedLSTMCell, nn.GRUCell, nn.SimpleCell])
def test_parameters_that_say_how_they_are_spread_are_taken_without_it(cell):
    init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
    x = normal(BATCH, STEPS, INPUTS)
    own, ours = (kind(cell(UNITS, kernel_init=init)) for kind in (nn.RNN, RNN))
    params = ours.init(jax.random.key(0), x)
    assert_close(ours.apply(params, x), own.apply(params, x))


def test_restored_parameters_are_numpy_arrays():
    x = normal(BATCH, STEPS, INPUTS)
    own, ours = (kind(nn.GRUCell(UNITS)) for kind in (nn.RNN, RNN))
    params = ours.init(jax.random.key(0), x)
    restored = flax.serialization.msgpack_restore(flax.serialization.to_bytes(params))
    for apply in (partial(ours.apply, restored), jax.jit(partial(ours.apply, restored))):
        assert_close(apply(x), own.apply(params, x))


@pytest.mark.parametrize("missing", ["bias", "hi"])
def test_parameters_that_are_missing_are_flax_s_error(missing):
    x = normal(BATCH, STEPS, INPUTS)
    own, ours = (kind(nn.LSTMCell(UNITS)) for kind in (nn.RNN, RNN))
    params = ours.init(jax.random.key(0), x)
    cell = params["params"]["cell"]
    (cell["ho"] if missing == "bias" else cell).pop(missing)
    errors = []
    for layer in (own, ours):
        with pytest.raises(flax.errors.ScopeParamNotFoundError) as raised:
            layer.apply(params, x)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
