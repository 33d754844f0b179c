# SPDX-License-Identifier: Apache-2.0
"""CTC in frameworks' own words: CTCLoss of PyTorch, Optax's function, Keras's loss."""

import inspect
import os
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from nativeops import ctc_greedy_decode, ctc_loss, rnnt_loss
from nativeops.arrays import dtype_name
from nativeops.errors import ArgumentError, DtypeError, RangeError, ShapeError
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing.arrays import arrays_of
from nativeops.testing.marks import without_sanitizer

RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.standard_normal((12, 3, 6)).astype("float32")
GIVEN = (  # targets, and the lengths of both
    RANDOM.integers(1, 6, (3, 4)).astype("int32"),
    np.array([12, 9, 7], "int32"),
    np.array([4, 0, 2], "int32"),
)


def value_and_gradient_of_torch(given: tuple[Any, ...]) -> tuple[Any, Any]:
    """What PyTorch's own loss makes of LOGITS, with its mean over the batch."""
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(LOGITS).double().requires_grad_()
    targets, *lengths = map(torch.from_numpy, given)
    lengths = lengths or [torch.full((3,), 12), torch.full((3,), 4)]
    loss = torch.nn.functional.ctc_loss(x.log_softmax(2), targets, *lengths)
    return loss.item(), torch.autograd.grad(loss, x)[0]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("joined", [True, False])
def test_torch_layer_equals_torch_with_its_gradient_to_the_logits(reduction, joined) -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import CTCLoss

    x = torch.randn(30, 4, 9, dtype=torch.float64, requires_grad=True)
    counts, frames = torch.tensor([3, 5, 0, 4]), torch.tensor([30, 25, 9, 28])
    padded = torch.randint(1, 9, (4, 5))
    targets = torch.cat([padded[b, :n] for b, n in enumerate(counts)]) if joined else padded
    found = []
    for layer in (torch.nn.CTCLoss(reduction=reduction), CTCLoss(reduction=reduction)):
        loss = layer(x.log_softmax(2), targets, frames, counts)
        found.append((loss, *torch.autograd.grad(loss.sum(), x)))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    logits = CTCLoss(reduction=reduction, normalized=False)(x, targets, frames, counts)
    torch.testing.assert_close(logits, found[0][0], rtol=1e-10, atol=0)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_torch_layer_takes_one_sequence_and_tuples_of_lengths(reduction: str) -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import CTCLoss

    log_probs, target = torch.randn(12, 5).log_softmax(1), torch.tensor([1, 1, 4])
    theirs = torch.nn.CTCLoss(blank=2, reduction=reduction)
    ours = CTCLoss(blank=2, reduction=reduction)
    for lengths in ((torch.tensor(12), torch.tensor(3)), ((12,), (3,))):
        expected, found = theirs(log_probs, target, *lengths), ours(log_probs, target, *lengths)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)


def test_torch_layer_is_an_instance_of_torch_and_says_the_same() -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import CTCLoss

    layer = CTCLoss(1, "sum", True)
    assert isinstance(layer, torch.nn.CTCLoss)
    assert (layer.blank, layer.reduction, layer.zero_infinity) == (1, "sum", True)
    impossible = layer(torch.randn(1, 1, 3), torch.tensor([[2, 2]]), [1], [2])
    assert impossible == 0


def test_torch_batch_major_logits_are_not_copied() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 40, 7)
    expected = ctc_loss(x.transpose(0, 1).contiguous(), torch.ones(3, 4, dtype=torch.int64))
    assert ctc_loss(x.transpose(0, 1), torch.ones(3, 4, dtype=torch.int64)) == expected


def test_torch_modules_take_the_names_of_torch_and_torchaudio() -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import CTCLoss, RNNTLoss

    targets = torch.randint(1, 4, (2, 3), dtype=torch.int32)
    frames, counts = torch.tensor([8, 6]).int(), torch.tensor([3, 1]).int()
    same = {"targets": targets, "target_lengths": counts}
    named = {"log_probs": torch.randn(8, 2, 4).log_softmax(2), "input_lengths": frames, **same}
    torch.testing.assert_close(CTCLoss().forward(**named), torch.nn.CTCLoss().forward(**named))
    logits = torch.randn(2, 8, 4, 4)
    found = RNNTLoss(blank=0).forward(logits=logits, logit_lengths=frames, **same)
    assert found == rnnt_loss(logits, targets, frames, counts, 0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_torch_compiles_layer_and_function_as_a_whole(backend: str) -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import CTCLoss

    layer, given = CTCLoss(), tuple(map(torch.from_numpy, GIVEN))
    functions = (
        lambda x: layer(x.log_softmax(2), *given),
        lambda x: ctc_loss(x, *given),
        lambda x: ctc_loss(x, given[0], [12, 9, 7], (4, 0, 2)),
        lambda x: ctc_loss(x.transpose(0, 1).contiguous().transpose(0, 1), given[0]),
    )
    for function in functions:
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        for _ in range(2):  # the second finds nothing of the first in the program
            x = torch.randn(LOGITS.shape, requires_grad=True)
            expected, found = function(x), compiled(x)
            torch.testing.assert_close(found, expected)
            gradients = [torch.autograd.grad(loss, x)[0] for loss in (found, expected)]
            torch.testing.assert_close(*gradients)


def test_jax_compiles_the_gradient_that_torch_has() -> None:
    jax = pytest.importorskip("jax")
    expected = value_and_gradient_of_torch(GIVEN)
    found = jax.jit(jax.value_and_grad(ctc_loss))(LOGITS, *GIVEN)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_jax_maps_the_gradient_of_a_branch_that_some_items_do_not_take() -> None:
    """They get zeros for what that branch keeps, among them its targets."""
    jax = pytest.importorskip("jax")

    def loss(is_taken: Any, x: Any) -> Any:
        def taken(x: Any) -> Any:
            return ctc_loss(x, jax.numpy.array([[1, 2], [3, 1]]))

        return jax.lax.cond(is_taken, taken, lambda x: (x**2).sum(), x)

    taken, x = jax.numpy.array([True, False, True]), RANDOM.standard_normal((3, 6, 2, 5))
    found = jax.vmap(jax.grad(loss, 1))(taken, jax.numpy.asarray(x))
    alone = [jax.grad(loss, 1)(*item) for item in zip(taken, jax.numpy.asarray(x), strict=True)]
    np.testing.assert_allclose(found, np.stack(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes_known", [True, False])
@pytest.mark.parametrize("with_lengths", [True, False])
def test_tensorflow_compiles_the_gradient_that_torch_has(with_lengths, sizes_known) -> None:
    tf = pytest.importorskip("tensorflow")
    arrays = (LOGITS, *GIVEN) if with_lengths else (LOGITS, GIVEN[0])
    sizes = [a.shape if sizes_known else [None] * a.ndim for a in arrays]

    @tf.function(input_signature=list(map(tf.TensorSpec, sizes, [a.dtype for a in arrays])))
    def value_and_gradient(logits, *given):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = ctc_loss(logits, *given)
        return loss, tape.gradient(loss, logits)

    found, expected = value_and_gradient(*arrays), value_and_gradient_of_torch(arrays[1:])
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_optax_function_equals_optax_with_its_gradient() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    from nativeops.layers.flax.ctc import ctc_loss as ours

    x = jax.numpy.asarray(RANDOM.standard_normal((3, 30, 6)), "float32")
    labels = jax.numpy.asarray(RANDOM.integers(1, 6, (3, 4)))
    no_frame = (np.arange(30) >= np.array([[30], [22], [17]])).astype(np.float32)
    no_label = (np.arange(4) >= np.array([[4], [0], [2]])).astype(np.float32)

    def both(function):
        def total(x):
            loss = function(x, no_frame, labels, no_label, blank_id=0, log_epsilon=-1e5)
            return loss.sum(), loss

        return jax.jit(jax.grad(total, has_aux=True))(x)

    for mine, theirs in zip(both(ours), both(optax.ctc_loss), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-5)


def test_tensorflow_takes_targets_one_behind_the_other_whose_number_it_does_not_know() -> None:
    tf = pytest.importorskip("tensorflow")
    targets, _, counts = GIVEN
    flat = np.concatenate([row[:n] for row, n in zip(targets, counts, strict=True)])
    kinds = [tf.TensorSpec([None] * 3, "float32"), tf.TensorSpec([None], "int32")]

    @tf.function(input_signature=kinds)
    def loss(logits, flat):
        return ctc_loss(logits, flat, None, counts.tolist())

    np.testing.assert_allclose(loss(LOGITS, flat), ctc_loss(LOGITS, targets, None, counts), 1e-6)
    for wrong in (flat[:-1], np.append(flat, 1)):
        text = f"ctc_loss: `target_lengths` has the sum {counts.sum()}, but `targets` has another"
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            loss(LOGITS, wrong)


def test_optax_function_has_optax_arguments() -> None:
    optax = pytest.importorskip("optax")
    from nativeops.layers.flax.ctc import ctc_loss as ours

    mine, theirs = (inspect.signature(f).parameters.values() for f in (ours, optax.ctc_loss))
    assert [(p.name, p.kind, p.default) for p in mine] == [
        (p.name, p.kind, p.default) for p in theirs
    ]


def test_optax_function_needs_no_log_epsilon_for_what_is_impossible() -> None:
    jax = pytest.importorskip("jax")
    from nativeops.layers.flax.ctc import ctc_loss as ours

    x, labels = jax.numpy.zeros((1, 2, 3)), jax.numpy.array([[1, 1]])  # needs a third frame

    def loss(x):
        return ours(x, np.zeros((1, 2)), labels, np.zeros((1, 2)), log_epsilon=-1.0)[0]

    value, gradient = jax.value_and_grad(loss)(x)
    assert value == np.inf
    assert not np.any(gradient)


# Each weight of the model is a logit, so that a step of gradient descent shows the gradient.
KERAS = """
import numpy as np, keras
from nativeops.layers import keras_ctc
from nativeops.layers.keras import CTC
assert CTC is keras_ctc.CTC
random = np.random.default_rng(1)
logits = random.standard_normal((3, 20, 6)).astype("float32")
labels = random.integers(1, 6, (3, 4)); labels[1, 2:] = 0
for reduction in ("sum", "sum_over_batch_size"):
    theirs, ours = (make(reduction=reduction)(labels, logits) for make in (keras.losses.CTC, CTC))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(ours),
                               keras.ops.convert_to_numpy(theirs), rtol=1e-4)
again = keras.losses.deserialize(keras.losses.serialize(CTC()))
assert type(again) is CTC

try:
    CTC()(labels[0], logits[0])
except ValueError as error:
    assert "CTC: `y_pred` must have 3 axes [b t c], but has 2." in str(error), error
else:
    raise AssertionError

frames = np.eye(60, dtype="float32").reshape(3, 20, 60)
def train(loss):
    model = keras.Sequential([keras.Input((20, 60)), keras.layers.Dense(6, use_bias=False)])
    model.set_weights([logits.reshape(60, 6)])
    model.compile(keras.optimizers.SGD(1.0), loss)
    model.fit(frames, labels, batch_size=3, verbose=0)
    return model, logits.reshape(60, 6) - model.get_weights()[0]
(_, theirs), (model, ours) = train(keras.losses.CTC()), train(CTC())
assert abs(theirs).max() > 0.1
np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

before = float(CTC()(labels, model.predict(frames, verbose=0)))
losses = model.fit(frames, labels, batch_size=3, epochs=8, verbose=0).history["loss"]
after = model.evaluate(frames, labels, verbose=0)
np.testing.assert_allclose(losses[0], before, rtol=1e-5)
np.testing.assert_allclose(after, float(CTC()(labels, model.predict(frames, verbose=0))), rtol=1e-5)
assert all(np.diff([*losses, after]) < 0) and after < 0.7 * before, (losses, after)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_keras_loss_equals_keras_with_its_gradient_and_trains(backend: str) -> None:
    pytest.importorskip("keras")
    pytest.importorskip(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", KERAS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_framework_gives_the_same_loss() -> None:
    x, targets = RANDOM.standard_normal((9, 2, 5)).astype("float32"), np.array([[1, 2], [3, 3]])
    expected = float(ctc_loss(x, targets, [9, 8], [2, 1]))
    joined = np.array([1, 2, 3])
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    tf = pytest.importorskip("tensorflow")
    for make in (torch.from_numpy, jax.numpy.asarray, tf.constant):
        for given in (targets, joined):
            for lengths in (([9, 8], [2, 1]), (make(np.array([9, 8])), make(np.array([2, 1])))):
                found = float(ctc_loss(make(x), make(given), *lengths))
                assert abs(found - expected) < 1e-6 * expected


def test_axes_in_another_order_and_a_batch_left_away_are_hinted_at() -> None:
    with pytest.raises(ShapeError, match=r"did you mean `logits\.swapaxes\(-3, -2\)`\?"):
        ctc_loss(np.zeros((2, 50, 30)), np.ones((2, 3), int))
    with pytest.raises(ShapeError, match=r"add 1 axis of size 1 with `logits\[:, None\]`"):
        ctc_loss(np.zeros((50, 30)), np.ones((1, 3), int))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_array_of_no_lengths_is_not_taken_for_none(framework: str) -> None:
    pytest.importorskip(framework)
    place = arrays_of(framework, "cpu").place
    x, nothing = place(np.zeros((4, 2, 3)), "float32").array, place(np.zeros(0), "int32").array
    targets = place(np.ones((2, 1)), "int32").array
    for name in ("input_lengths", "target_lengths"):
        with pytest.raises(ShapeError, match=f"axis `b` is 2 in `logits` but 0 in `{name}`"):
            ctc_loss(x, targets, **{name: nothing})
    with pytest.raises(ShapeError, match="ctc_greedy_decode: axis `b` is 2"):
        ctc_greedy_decode(x, nothing)


def test_numpy_gets_what_the_gradients_op_takes() -> None:
    torch = pytest.importorskip("torch")
    from nativeops.ops.ctc_loss import ctc_losses, ctc_losses_grad

    x, targets = RANDOM.standard_normal((9, 2, 5)), np.array([[1, 2], [3, 3]])
    made = ctc_losses.only(["loss", "log_sums", "slopes"])(x, targets)
    d_loss = np.array([1.0, -2.0])
    found = ctc_losses_grad(
        x, targets, made.log_sums, made.slopes, d_loss, blank=0, normalized=False
    )
    logits = torch.from_numpy(x).requires_grad_()
    loss = ctc_loss(logits, torch.from_numpy(targets), reduction="none")
    (expected,) = torch.autograd.grad(loss, logits, torch.from_numpy(d_loss))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert ctc_losses(x, targets).slopes is None
    with pytest.raises(RangeError, match=r"`want` must be among \['loss'\]"):
        ctc_losses.only(["loss", "slopes"])(logits, torch.from_numpy(targets))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_targets_of_any_numbers_that_torch_takes(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import CTCLoss

    x = torch.from_numpy(LOGITS).log_softmax(-1)
    for targets in (torch.tensor([[1, 2], [3, 1], [4, 4]]), torch.tensor([1, 2, 3, 1, 4])):
        lengths = torch.tensor([9, 9, 8]), torch.tensor([2, 2, 1])
        given = x, targets.to(getattr(torch, dtype)), *lengths
        torch.testing.assert_close(CTCLoss()(*given), torch.nn.CTCLoss()(*given))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("counts", "error", "text"),
    [
        ([2, -2, 1], RangeError, r"`target_lengths\[1\]` is -2, but must be from 0 to 2147483647"),
        ([2**40, 3 - 2**40, 0], RangeError, rf"`target_lengths\[0\]` is {2**40}, but must"),
        ([2**31 - 1] * 3, ShapeError, f"sum {3 * (2**31 - 1)}, but `targets` has 3 labels"),
        (np.array([[1], [1], [1]]), ShapeError, r"must have 1 axis \[b\], but has 2 axes"),
        (np.array(3), ShapeError, r"must have 1 axis \[b\], but has 0 axes"),
        ([1, 1, 2], ShapeError, "sum 4, but `targets` has 3 labels"),
    ],
)
def test_lengths_of_targets_one_behind_the_other_are_checked(
    framework: str, counts: Any, error: type[Exception], text: str
) -> None:
    pytest.importorskip(framework)
    place = arrays_of(framework, "cpu").place
    x, joined = place(LOGITS, "float32").array, place(np.array([1, 2, 3]), "int32").array
    with pytest.raises(error, match=f"^ctc_loss: .*{text}"):
        ctc_loss(x, joined, None, counts)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("given", "told"), [(-5, -5), (2**40, 2**31 - 1), (2**63, 2**31 - 1), (-(2**70), -(2**31))]
)
def test_a_length_out_of_its_range_is_told(framework: str, given: int, told: int) -> None:
    """As it is, or as near as an int32 can be."""
    pytest.importorskip(framework)
    x = arrays_of(framework, "cpu").place(LOGITS, "float32").array
    for function in (lambda x, n: ctc_loss(x, [[1], [2], [3]], n), ctc_greedy_decode):
        with pytest.raises(RangeError, match=rf"`input_lengths\[0\]` is {told}, but must be"):
            function(x, [given, 6, 6])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_many_losses_of_half_precision_are_added_up_in_more(
    framework: str, dtype: str, digits: int
) -> None:
    pytest.importorskip("ml_dtypes" if framework == "numpy" else framework)
    arrays = arrays_of(framework, "cpu")
    many = 70000  # more than float16 can count, and than bfloat16 can add ones
    x = arrays.place(np.zeros((1, many, 2)), dtype).array
    targets = arrays.place(np.ones((many, 1)), "int32").array
    for reduction, expected in (("sum", many * np.log(2)), ("mean", np.log(2))):
        found = ctc_loss(x, targets, reduction=reduction)
        assert dtype_name(found) == dtype
        np.testing.assert_allclose(float(found), expected, rtol=2.0 ** (1 - digits))


# In a process of its own, since a maximum over the life of a process cannot be reset.
PEAK = """
import torch, nativeops
from nativeops.bench.memory import peak
t, b, c, s = 1000, 8, 500, 120
x = torch.randn(t, b, c, requires_grad=True)
targets = torch.randint(1, c, (b, s))
small = nativeops.ctc_loss(x[:40], targets[:, :4])
torch.autograd.grad(small, x)
before = peak()
gradient, = torch.autograd.grad(nativeops.ctc_loss(x, targets), x)
print((peak() - before - gradient.nbytes) / (4 * t * b * (2 * s + 1)))
"""


@without_sanitizer
def test_memory_beyond_the_gradient_is_below_one_and_a_half_numbers_per_state() -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 1.5


@pytest.mark.parametrize(
    ("framework", "word"),
    [("torch", "from_numpy"), ("jax.numpy", "asarray"), ("tensorflow", "constant")],
)
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_lengths_may_be_integers_of_any_width(framework: str, word: str, dtype: str) -> None:
    make = getattr(pytest.importorskip(framework), word)
    x = np.random.default_rng(0).standard_normal((140, 3, 5), dtype=np.float32)
    targets, lengths = np.array([[1, 2, 3]] * 3, np.int32), np.array([110, 80, 70])
    expected = ctc_loss(x, targets, lengths, reduction="none")
    found = ctc_loss(make(x), make(targets), make(lengths.astype(dtype)), reduction="none")
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


def test_lengths_of_numpy_beside_tensors_are_copied() -> None:
    torch = pytest.importorskip("torch")
    x, targets = torch.from_numpy(LOGITS).requires_grad_(), torch.tensor([[1], [2], [3]])
    lengths = np.array([9, 7, 5], np.int32)
    loss = ctc_loss(x, targets, lengths)
    (expected,) = torch.autograd.grad(loss, x, retain_graph=True)
    lengths[:] = 1  # the gradient still needs those that were given
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
    for given in (np.array([5, 7, 9])[::-1], np.array([9, 7, 5], ">i4")):
        torch.testing.assert_close(ctc_loss(x, targets, given), loss)
    with pytest.raises(DtypeError, match="`input_lengths` must have integers"):
        ctc_loss(x, targets, ["9", "7", "5"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_targets_may_be_a_list(framework: str) -> None:
    pytest.importorskip(framework)
    place = arrays_of(framework, "cpu").place
    x = place(LOGITS, "float32").array
    targets, lengths = [[1, 2], [3, 1], [4, 0]], [2, 2, 1]
    as_array = place(np.array(targets), "int32").array
    for reduction in ("none", "sum", "mean"):
        options = {"target_lengths": lengths, "reduction": reduction}
        found, expected = (ctc_loss(x, given, **options) for given in (targets, as_array))
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(ctc_loss(x, [1, 2, 3, 1, 4], **options), expected)
    without = ctc_loss(x, [[1, 2], [3, 1], [4, 5]])
    np.testing.assert_allclose(without, ctc_loss(x, [[1, 2], [3, 1], [4, 5]], None, [2, 2, 2]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_length_or_none_in_place_of_a_batch_is_refused_alike(framework: str) -> None:
    pytest.importorskip(framework)
    x = arrays_of(framework, "cpu").place(LOGITS, "float32").array
    with pytest.raises(ShapeError, match=r"`input_lengths` must have 1 axis \[b\], but has 0 axes"):
        ctc_loss(x, [[1], [2], [3]], 12)
    with pytest.raises(ShapeError, match="axis `b` is 3 in `logits` but 0 in `target_lengths`"):
        ctc_loss(x, [[1], [2], [3]], None, [])


def test_tensorflow_compiles_targets_of_unknown_rank() -> None:
    tf = pytest.importorskip("tensorflow")
    kinds = [tf.TensorSpec(None, "float32"), *[tf.TensorSpec(None, "int32")] * 3]
    given = [LOGITS, *(array.astype("int32") for array in GIVEN)]
    found = tf.function(ctc_loss, input_signature=kinds)(*given)
    np.testing.assert_allclose(found, ctc_loss(*given), 1e-5)


def test_lengths_that_jax_traces_beside_logits_of_numpy_are_refused() -> None:
    jax = pytest.importorskip("jax")
    logits, targets = np.zeros((6, 2, 4), "f"), np.array([[1, 2], [3, 3]])
    mixed = "`logits` is a numpy array but `input_lengths` is a jax array"
    for function in (partial(ctc_loss, logits, targets), partial(ctc_greedy_decode, logits)):
        with pytest.raises(ArgumentError, match=mixed):
            jax.jit(function)(np.array([6, 5]))
