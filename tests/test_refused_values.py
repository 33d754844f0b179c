# SPDX-License-Identifier: Apache-2.0
"""A value that a kernel refuses is told in the same words wherever the op runs."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nativeops import chunk
from nativeops.errors import RangeError
from nativeops.ops.rnnt_loss import rnnt_costs

X, LENGTHS = np.zeros((4, 2, 5), np.float32), np.array([4, 9], np.int32)
SAID = r"`lengths\[1\]` is 9, but must be from 0 to 4, the frames of `x`\."


def cut(x: Any, lengths: Any) -> Any:
    return chunk(x, None, lengths, chunk_size=2, chunk_step=1).chunks


def in_numpy() -> Any:
    return cut(X, LENGTHS)


def in_torch() -> Any:
    torch = pytest.importorskip("torch")
    return cut(torch.from_numpy(X), torch.from_numpy(LENGTHS))


def in_torch_grad() -> Any:
    torch = pytest.importorskip("torch")
    loss = lambda x: cut(x, torch.from_numpy(LENGTHS)).sum()  # noqa: E731
    return torch.func.grad(loss)(torch.from_numpy(X))


def in_torch_vmap() -> Any:
    torch = pytest.importorskip("torch")
    return torch.func.vmap(cut)(torch.from_numpy(X)[None], torch.from_numpy(LENGTHS)[None])


def in_jax() -> Any:
    jnp = pytest.importorskip("jax.numpy")
    return cut(jnp.asarray(X), jnp.asarray(LENGTHS))


def in_jax_grad() -> Any:
    jax = pytest.importorskip("jax")
    return jax.grad(lambda x: cut(x, jax.numpy.asarray(LENGTHS)).sum())(jax.numpy.asarray(X))


def in_jax_grad_again() -> Any:
    """JAX's own path for calls that succeeded before."""
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(X)
    gradient = jax.grad(lambda x, lengths: cut(x, lengths).sum())
    gradient(x, jax.numpy.asarray([4, 3]))
    return gradient(x, jax.numpy.asarray(LENGTHS))


def in_jax_vmap() -> Any:
    jax = pytest.importorskip("jax")
    return jax.vmap(cut)(jax.numpy.asarray(X)[None], jax.numpy.asarray(LENGTHS)[None])


def in_tensorflow() -> Any:
    tf = pytest.importorskip("tensorflow")
    return cut(tf.constant(X), tf.constant(LENGTHS))


CALLS = [
    in_numpy,
    in_torch,
    in_torch_grad,
    in_torch_vmap,
    in_jax,
    in_jax_grad,
    in_jax_grad_again,
    in_jax_vmap,
    in_tensorflow,
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_outside_compiled_programs_it_is_our_error(call: Callable[[], Any]) -> None:
    with pytest.raises(RangeError, match=f"^chunk: {SAID}"):
        call()


def test_programs_of_jax_call_it_an_invalid_argument() -> None:
    jax = pytest.importorskip("jax")
    arrays = jax.numpy.asarray(X), jax.numpy.asarray(LENGTHS)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: chunk: {SAID}"):
        jax.block_until_ready(jax.jit(cut)(*arrays))
    gradient = jax.jit(jax.grad(lambda x, lengths: cut(x, lengths).sum()))
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: chunk.*: {SAID}"):
        jax.block_until_ready(gradient(*arrays))
    jax.block_until_ready(gradient(arrays[0], jax.numpy.asarray([4, 3])))
    after_success = (jax.errors.JaxRuntimeError, ValueError)
    with pytest.raises(after_success, match=f"INVALID_ARGUMENT: chunk.*: {SAID}"):
        jax.block_until_ready(gradient(*arrays))


def test_functions_of_tensorflow_call_it_an_invalid_argument() -> None:
    tf = pytest.importorskip("tensorflow")
    arrays = tf.constant(X), tf.constant(LENGTHS)
    with pytest.raises(tf.errors.InvalidArgumentError, match=SAID):
        tf.function(cut)(*arrays)
    with pytest.raises(tf.errors.InvalidArgumentError, match=SAID):
        tf.vectorized_map(lambda given: cut(*given), [array[None] for array in arrays])


def test_programs_of_torch_say_it() -> None:
    torch = pytest.importorskip("torch")
    compiled = torch.compile(cut, backend="aot_eager")
    with pytest.raises(RuntimeError, match=SAID):
        compiled(torch.from_numpy(X), torch.from_numpy(LENGTHS))


def of_many(place: str, value: int, lead: tuple[int, ...], swapped: bool = False) -> dict[str, Any]:
    """Arguments of a transducer's loss with leading axes, one of whose values is wrong."""
    numbers: dict[str, Any] = {
        "logits": np.zeros((*lead, 5, 3, 4), np.float32),
        "targets": np.ones((*lead, 2), np.int32),
        "logit_lengths": np.full(lead, 5, np.int32),
        "target_lengths": np.full(lead, 2, np.int32),
    }
    name, _, index = place.rstrip("]").partition("[")
    numbers[name][tuple(map(int, filter(None, index.split(","))))] = value
    if swapped:  # in memory
        swap = lambda a: np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1)  # noqa: E731
        numbers = {name: swap(array) for name, array in numbers.items()}
    return numbers


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("place", "value"),
    [("logit_lengths[1, 2]", 9), ("targets[1, 2, 1]", 7), ("targets[0, 1, 0]", 5)],
)
def test_value_is_named_by_its_place_in_the_array_that_was_given(
    place: str, value: int, swapped: bool, framework: str
) -> None:
    module = pytest.importorskip(framework)
    make = {"torch": "from_numpy", "tensorflow": "constant"}.get(framework, "asarray")
    array = getattr(module.numpy if framework == "jax" else module, make)
    numbers = of_many(place, value, (2, 3), swapped)
    with pytest.raises(RangeError, match=f"^rnnt_loss: `{re.escape(place)}` is {value}, but"):
        rnnt_costs(*map(array, numbers.values()))


def test_value_without_leading_axes_and_of_one_for_all_is_named() -> None:
    for place, value in (("logit_lengths", 9), ("targets[1]", 7)):
        with pytest.raises(RangeError, match=f"^rnnt_loss: `{re.escape(place)}` is {value}, but"):
            rnnt_costs(*of_many(place, value, ()).values())
    numbers = of_many("targets[0, 2, 1]", 7, (2, 3))
    numbers["targets"] = numbers["targets"][:1]
    with pytest.raises(RangeError, match=r"^rnnt_loss: `targets\[0, 2, 1\]` is 7, but"):
        rnnt_costs(*numbers.values())
