# SPDX-License-Identifier: Apache-2.0
"""A value that a kernel refuses is told in the same words wherever the op runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nativeops import chunk
from nativeops.errors import RangeError

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
