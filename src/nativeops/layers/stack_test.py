# SPDX-License-Identifier: Apache-2.0
"""lstm, gru and rnn of several layers, in every framework, against PyTorch's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nativeops
from nativeops.errors import NativeOpsError
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import installed
from nativeops.testing.arrays import Arrays, arrays_of

torch = pytest.importorskip("torch")

KINDS = {"lstm": (nativeops.lstm, torch.nn.LSTM, 4), "gru": (nativeops.gru, torch.nn.GRU, 3),
         "rnn": (nativeops.rnn, torch.nn.RNN, 1)}  # fmt: skip
PRESENT = [name for name in FRAMEWORKS if installed(name)]
T, B, D, H = 5, 3, 2, 4


@pytest.fixture(params=PRESENT)
def arrays(request: pytest.FixtureRequest) -> Any:
    found = arrays_of(request.param, "cpu")
    with found.scope({"float64", "int64"}):
        yield found


def theirs(kind: str, layers: int, bidirectional: bool, **options: Any) -> Any:
    torch.manual_seed(5)
    make = KINDS[kind][1]
    return make(D, H, layers, bidirectional=bidirectional, dtype=torch.float64, **options)


def weights_of(module: Any, place: Callable[[Any], Any]) -> list[tuple[Any, ...]]:
    return [tuple(place(w.detach().numpy()) for w in own) for own in module.all_weights]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def placing(arrays: Arrays) -> Callable[[Any], Any]:
    return lambda values: arrays.place(values, str(values.dtype)).array


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch(kind: str, layers: int, bidirectional: bool, arrays: Arrays) -> None:
    module, place = theirs(kind, layers, bidirectional), placing(arrays)
    n_states = layers * (1 + bidirectional)
    states = [numbers(n_states, B, H) for _ in range(2 if kind == "lstm" else 1)]
    x, pairs = numbers(T, B, D), [torch.from_numpy(state) for state in states]
    output, final = module(torch.from_numpy(x), tuple(pairs) if kind == "lstm" else pairs[0])
    expected = [output, *(final if kind == "lstm" else [final])]
    for batch_first in (False, True):
        found = KINDS[kind][0](
            place(x.swapaxes(0, 1) if batch_first else x), weights_of(module, place),
            *map(place, states), bidirectional=bidirectional, batch_first=batch_first,
        )  # fmt: skip
        for name, mine, right in zip(found._fields, found, expected, strict=True):
            values = np.array(arrays.values(mine))
            values = values.swapaxes(0, 1) if batch_first and name == "output" else values
            np.testing.assert_allclose(values, right.detach().numpy(), atol=1e-13, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_in_any_order_give_what_each_sequence_gives_alone(kind: str) -> None:
    module, op = theirs(kind, 2, True), KINDS[kind][0]
    weights, x = weights_of(module, np.asarray), numbers(T, 4, D)
    lengths = np.array([2, 0, T, 1], np.int32)
    together = op(x, weights, lengths=lengths, bidirectional=True)
    for b, length in enumerate(lengths):
        alone = op(x[:length, b : b + 1], weights, bidirectional=True)
        assert np.array_equal(together.output[:length, b], alone.output[:, 0])
        assert not together.output[length:, b].any()
        for mine, right in zip(together[1:], alone[1:], strict=True):
            assert np.array_equal(mine[:, b], right[:, 0])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_low_memory_gives_the_same_gradient_of_fewer_numbers(kind: str) -> None:
    function = KINDS[kind][0]
    lengths = torch.tensor([5, 0, 3], dtype=torch.int32)
    gradients, kept = [], []
    for low_memory in (False, True):
        weights = weights_of(theirs(kind, 2, True), lambda w: torch.tensor(w).requires_grad_())
        sizes: dict[int, int] = {}
        count = lambda t, sizes=sizes: (sizes.update({t.data_ptr(): t.numel()}), t)[1]  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
            made = function(
                torch.from_numpy(numbers(T, B, D)), weights, lengths=lengths,
                bidirectional=True, low_memory=low_memory,
            )  # fmt: skip
        flat = [w for own in weights for w in own]
        loss = (made.output**2).sum() + made.h_n.sum()
        gradients.append(torch.autograd.grad(loss, flat))
        kept.append(sum(sizes.values()))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    # Of two layers in two directions: four blocks of each step, or both biases.
    biases = sum(b.numel() for own in weights for b in own[2:])
    assert kept[0] - kept[1] == 4 * T * B * 4 * H - biases


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projections_equal_torch(bidirectional: bool, arrays: Arrays) -> None:
    place, n = placing(arrays), 2 * (1 + bidirectional)
    for bias in (True, False):
        module = theirs("lstm", 2, bidirectional, proj_size=3, bias=bias)
        x, states = numbers(T, B, D), (numbers(n, B, 3), numbers(n, B, H))
        output, final = module(torch.from_numpy(x), tuple(map(torch.from_numpy, states)))
        found = nativeops.lstm(
            place(x), weights_of(module, place), *map(place, states), bidirectional=bidirectional
        )
        for mine, right in zip(found, (output, *final), strict=True):
            np.testing.assert_allclose(arrays.values(mine), right.detach().numpy(), atol=1e-13)


def test_peepholes_belong_to_the_weights_in_their_place(arrays: Arrays) -> None:
    place, x = placing(arrays), numbers(T, B, D)
    weights = weights_of(theirs("lstm", 2, True), np.asarray)
    peepholes = [numbers(3 * H), None, numbers(3 * H) - 1, 2 * numbers(3 * H)]
    expected = x
    for first in (0, 2):
        made = [
            nativeops.lstm_layer(
                expected,
                *weights[first + back],
                peepholes=peepholes[first + back],
                reverse=back == 1,
            ).output
            for back in (0, 1)
        ]
        expected = np.concatenate(made, -1)
    found = nativeops.lstm(
        place(x), [tuple(map(place, own)) for own in weights], bidirectional=True,
        peepholes=[None if p is None else place(p) for p in peepholes],
    )  # fmt: skip
    np.testing.assert_allclose(arrays.values(found.output), expected, atol=1e-14)


def test_gru_with_the_reset_first_in_all_layers(arrays: Arrays) -> None:
    place, x = placing(arrays), numbers(T, B, D)
    weights = weights_of(theirs("gru", 2, False), np.asarray)
    expected = x
    for own in weights:
        expected = nativeops.gru_layer(expected, *own, linear_before_reset=False).output
    found = nativeops.gru(
        place(x), [tuple(map(place, own)) for own in weights], linear_before_reset=False
    )
    np.testing.assert_allclose(arrays.values(found.output), expected, atol=1e-14)
    assert not np.allclose(expected, nativeops.gru(x, weights).output)


def test_biases_may_be_left_away() -> None:
    module = theirs("gru", 2, False, bias=False)
    x = numbers(T, B, D)
    found = nativeops.gru(x, weights_of(module, np.asarray))
    expected = module(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(found.output, expected, atol=1e-13)


def test_relu_equals_torch() -> None:
    module, x = theirs("rnn", 2, True, nonlinearity="relu"), numbers(T, B, D)
    weights = weights_of(module, np.asarray)
    found = nativeops.rnn(x, weights, bidirectional=True, activation="relu")
    expected = module(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(found.output, expected, atol=1e-13)


def test_dropout_is_between_layers_and_the_same_in_all_frameworks(arrays: Arrays) -> None:
    weights, x, seed = weights_of(theirs("gru", 3, True), np.asarray), numbers(T, B, D), [5]
    expected = x
    for layer in range(3):
        if layer:
            expected = nativeops.dropout(expected, np.array(seed), p=0.4, stream=layer)
        own = weights[2 * layer : 2 * layer + 2]
        expected = nativeops.gru(expected, own, bidirectional=True).output
    place = placing(arrays)
    found = nativeops.gru(
        place(x), [tuple(map(place, own)) for own in weights], bidirectional=True,
        dropout=0.4, seed=place(np.array(seed)),
    )  # fmt: skip
    np.testing.assert_allclose(arrays.values(found.output), expected, atol=1e-14)


def test_compiled_by_jax_with_its_gradient() -> None:
    jax = pytest.importorskip("jax")
    module, x = theirs("lstm", 2, True), numbers(T, B, D)

    def total(x: Any, weights: Any, lengths: Any, seed: Any) -> Any:
        made = nativeops.lstm(
            x, weights, lengths=lengths, bidirectional=True, dropout=0.3, seed=seed,
            batch_first=True,
        )  # fmt: skip
        return (made.output**2).sum() + made.c_n.sum()

    with arrays_of("jax", "cpu").scope({"float64", "int64"}):
        arguments = jax.tree.map(
            jax.numpy.asarray,
            (x, weights_of(module, np.asarray), np.array([3, 1, 0, 2, 3], np.int32), np.array([1])),
        )
        gradients = jax.jit(jax.grad(total, (0, 1)))(*arguments)
    leaves = jax.tree.map(lambda a: torch.from_numpy(np.array(a)), arguments)
    floats = [leaves[0].requires_grad_(), *(w.requires_grad_() for own in leaves[1] for w in own)]
    expected = torch.autograd.grad(total(*leaves), floats)
    for mine, right in zip(jax.tree.leaves(gradients), expected, strict=True):
        np.testing.assert_allclose(mine, right.numpy(), atol=1e-12)


@pytest.mark.parametrize("shape", [(None, None, D), None])
def test_inside_a_function_of_tensorflow_with_its_gradient(shape: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    module, x = theirs("lstm", 2, True), numbers(T, B, D)
    variables = [tf.Variable(w) for own in weights_of(module, np.asarray) for w in own]

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float64)])
    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            weights = [[*variables[i : i + 4]] for i in range(0, len(variables), 4)]
            total = tf.reduce_sum(nativeops.lstm(x, weights, bidirectional=True).output ** 2)
        return tape.gradient(total, variables)

    expected = torch.autograd.grad(
        (module(torch.from_numpy(x))[0] ** 2).sum(), [w for own in module.all_weights for w in own]
    )
    for mine, right in zip(gradients(x), expected, strict=True):
        np.testing.assert_allclose(mine, right.numpy(), atol=1e-12)


def mistakes(op: Any, gates: int, array: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """What is wrong, as the error has to say it."""
    x, rows = array(T, B, D), gates * H
    good, later = (array(rows, D), array(rows, H)), (array(rows, H), array(rows, H))
    integers = [array(B, dtype="int32", value=value) for value in (T + 1, -1)]
    return {
        f"`weights[1][0]` (w_ih) must have the shape [{rows}, {H}], but has [{rows}, {D}].":
            lambda: op(x, [good, good]),
        f"`weights[0][1]` (w_hh) must have the shape [{rows}, {H}], but has [{rows + 1}, {H}].":
            lambda: op(x, [(good[0], array(rows + 1, H))]),
        f"`weights[0][1]` (w_hh) must have the shape [{rows}, {H}], but has [{rows}, {H + 1}].":
            lambda: op(x, [(good[0], array(rows, H + 1))]),
        f"`weights[0][3]` (b_hh) must have the shape [{rows}], but has [{H + 1}].":
            lambda: op(x, [(*good, array(rows), array(H + 1))]),
        f"`weights[1][0]` (w_ih) must have the shape [{rows}, {D}], but has [{rows}, {H}].":
            lambda: op(x, [good, later], bidirectional=True),
        "`weights` must have an entry for each direction of each layer, but has 1.":
            lambda: op(x, [good], bidirectional=True),
        "`weights` must have an entry for each layer, but has 0.": lambda: op(x, []),
        f"`weights[0]` must have {'2 to 5' if gates == 4 else '2 or 4'} arrays, but has 1.":
            lambda: op(x, [good[:1]]),
        "`weights[0][0]` must be an array, but is list.": lambda: op(x, [([1.0], good[1])]),
        "`x` must be an array, but is list.": lambda: op([1.0], [good]),
        "`x` must have 3 axes [b t i], but has 2.":
            lambda: op(array(T, D), [good], batch_first=True),
        f"`h_0` (layers*d b h) must have the shape [1, {B}, {H}], but has [{B}, {H}].":
            lambda: op(x, [good], array(B, H)),
        f"`lengths[0]` is {T + 1}, but must be from 0 to {T}, the steps of `x`.":
            lambda: op(x, [good], lengths=integers[0]),
        f"`lengths[0]` is -1, but must be from 0 to {T}, the steps of `x`.":
            lambda: op(x, [good], lengths=integers[1]),
        "`lengths` must be int32, but is float32.":
            lambda: op(x, [good], lengths=array(B, dtype="float32")),
        f"axis `b` is {B} in `x` but {B + 1} in `lengths`.":
            lambda: op(x, [good], lengths=array(B + 1, dtype="int32")),
        "`weights[1][0]` (w_ih) is float32 but `x` is float64.":
            lambda: op(x, [good, (array(rows, H, dtype="float32"), later[1])]),
        "`h_0` (layers*d b h) is float32 but `x` is float64.":
            lambda: op(x, [good], array(1, B, H, dtype="float32")),
        "`x` must be float32, float64, bfloat16 or float16, but is int32.":
            lambda: op(array(T, B, D, dtype="int32"), [good]),
        "`dropout` must be at least 0 and below 1, but is 1.0.":
            lambda: op(x, [good], dropout=1.0),
        "`dropout` must be at least 0 and below 1, but is -0.5.":
            lambda: op(x, [good], dropout=-0.5),
        "`dropout` needs a `seed`.": lambda: op(x, [good, later], dropout=0.5),
        "`seed` must be an array, but is int.":
            lambda: op(x, [good, later], dropout=0.5, seed=7),
        "`dropout` must be float, but is 'a'.": lambda: op(x, [good], dropout="a"),
        "`bidirectional` must be bool, but is None.": lambda: op(x, [good], bidirectional=None),
        "`bidirectional` must be bool, but is 2.": lambda: op(x, [good] * 2, bidirectional=2),
        "`batch_first` must be bool, but is 'no'.": lambda: op(x, [good], batch_first="no"),
        "`weights` must be a list, but is NoneType.": lambda: op(x, None),
        "`weights[0]` must be a list, but is NoneType.": lambda: op(x, [None]),
        "`weights` must be a list, but is dict.": lambda: op(x, {0: good}),
        "`weights[1]` must be a list, but is dict.":
            lambda: op(x, [good, {"w_ih": later[0], "w_hh": later[1]}]),
        "`weights` must be a list, but is set.": lambda: op(x, {1, 2}),
        "`lengths` must be an array, but is int.": lambda: op(x, [good], lengths=3),
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_mistakes_are_explained_alike_in_all_frameworks(kind: str, arrays: Arrays) -> None:
    op, _, gates = KINDS[kind]

    def array(*shape: int, dtype: str = "float64", value: float = 1) -> Any:
        return arrays.place(np.full(shape, value), dtype).array

    for text, call in mistakes(op, gates, array).items():
        with pytest.raises(NativeOpsError) as raised:
            call()
        first, *_ = str(raised.value).splitlines()
        assert first in (f"{kind}: {text}", f"{kind}_layer: {text}")


def lstm_mistakes(array: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """What can be wrong with projections and peepholes."""
    op, x, rows, p = nativeops.lstm, array(T, B, D), 4 * H, 3
    good = (array(rows, D), array(rows, p), array(p, H))
    plain, later = (array(rows, D), array(rows, H)), (array(rows, p), array(rows, p), array(p, H))
    return {
        f"`weights[0][1]` (w_hh) must have the shape [{rows}, {p}], but has [{rows}, {H}].":
            lambda: op(x, [(plain[0], plain[1], good[2])]),
        f"`weights[1][0]` (w_ih) must have the shape [{rows}, {p}], but has [{rows}, {H}].":
            lambda: op(x, [good, (array(rows, H), *later[1:])]),
        f"`weights[1][2]` (w_hr) must have the shape [{p}, {H}], but has [{H}, {p}].":
            lambda: op(x, [good, (*later[:2], array(H, p))]),
        "`weights[0][2]` (w_hr) must have 2 axes, but has 1.":
            lambda: op(x, [(*good[:2], array(p))]),
        "`weights[1]` has no projection (w_hr), but `weights[0]` has one.":
            lambda: op(x, [good, later[:2]]),
        "`weights[1]` has a projection (w_hr), but `weights[0]` has none.":
            lambda: op(x, [plain, later]),
        "`weights[0]` must have 2 to 5 arrays, but has 6.": lambda: op(x, [2 * good]),
        f"`h_0` (layers*d b p) must have the shape [1, {B}, {p}], but has [1, {B}, {H}].":
            lambda: op(x, [good], array(1, B, H), array(1, B, H)),
        f"`c_0` (layers*d b h) must have the shape [1, {B}, {H}], but has [1, {B}, {p}].":
            lambda: op(x, [good], array(1, B, p), array(1, B, p)),
        "`peepholes` must have an entry for each of `weights`, 1, but has 2.":
            lambda: op(x, [plain], peepholes=[None, None]),
        f"`peepholes[0]` (3*h) must have the shape [{3 * H}], but has [{H}].":
            lambda: op(x, [plain], peepholes=[array(H)]),
        "`peepholes[0]` (3*h) is float32 but `x` is float64.":
            lambda: op(x, [plain], peepholes=[array(3 * H, dtype="float32")]),
        "`peepholes` must be a list, but is dict.":
            lambda: op(x, [plain], peepholes={0: array(3 * H)}),
        "`peepholes[0]` must be an array, but is list.":
            lambda: op(x, [plain], peepholes=[[1.0]]),
        f"`lengths[0]` is {T + 1}, but must be from 0 to {T}, the steps of `x`.":
            lambda: op(x, [good], lengths=array(B, dtype="int32", value=T + 1)),
    }  # fmt: skip


def test_mistakes_of_projections_are_explained_alike_in_all_frameworks(arrays: Arrays) -> None:
    def array(*shape: int, dtype: str = "float64", value: float = 1) -> Any:
        return arrays.place(np.full(shape, value), dtype).array

    for text, call in lstm_mistakes(array).items():
        with pytest.raises(NativeOpsError) as raised:
            call()
        first, *_ = str(raised.value).splitlines()
        assert first in (f"lstm: {text}", f"lstm_projected_layer: {text}")


def test_unknown_activation_is_explained() -> None:
    with pytest.raises(ValueError, match=r"rnn: `activation` must be one of \['tanh', 'relu'\]"):
        nativeops.rnn(numbers(T, B, D), [], activation="selu")  # type: ignore[arg-type]


def test_weights_without_an_order_are_refused_with_the_order() -> None:
    x, w_ih, w_hh = np.ones((T, B, D)), np.ones((4 * H, D)), np.ones((4 * H, H))
    hint = "give them in this order: w_ih, w_hh, or w_ih, w_hh, b_ih, b_hh, and w_hr behind them"
    with pytest.raises(NativeOpsError, match=hint):
        nativeops.lstm(x, [{"w_ih": w_ih, "w_hh": w_hh}])  # type: ignore[list-item]


@pytest.mark.parametrize("make", ["key", "PRNGKey"])
def test_keys_of_jax_are_refused_with_the_way_from_them_to_a_seed(make: str) -> None:
    jax = pytest.importorskip("jax")
    key, x = getattr(jax.random, make)(0), jax.numpy.ones((T, B, H))
    weights = [(jax.numpy.ones((H, H)), jax.numpy.ones((H, H)))] * 2
    with pytest.raises(NativeOpsError, match=r"rnn: `seed` .* is a key of JAX") as raised:
        nativeops.rnn(x, weights, dropout=0.5, seed=key)
    _, _, draw = str(raised.value).partition("`jax.random.")
    assert draw == "randint(key, (1,), 0, 2**31 - 1)`."
    seed = jax.random.randint(key, (1,), 0, 2**31 - 1)
    assert nativeops.rnn(x, weights, dropout=0.5, seed=seed).output.shape == x.shape


def test_autocast_takes_weights_of_another_dtype_than_the_inputs() -> None:
    x = torch.ones(T, B, D)
    weights = [(torch.ones(H, D).bfloat16(), torch.ones(H, H).bfloat16())]
    with torch.autocast("cpu"):
        assert nativeops.rnn(x, weights).output.dtype == torch.float32
    with pytest.raises(NativeOpsError, match=r"`weights\[0\]\[0\]` \(w_ih\) is bfloat16 but"):
        nativeops.rnn(x, weights)
