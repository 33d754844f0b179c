# SPDX-License-Identifier: Apache-2.0
"""Rivals from plain functions of arrays of any framework, with or without gradient.

A gradient's last input is what flows back; its results are the gradients of the other inputs.
Every gradient call computes the result, too: that is what a training step does.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nativeops.bench.case import OURS, Known, NdArray, Rival

Function = Callable[..., Any]
Memory = Callable[..., float]


def _name(function: Function, name: str | None) -> str:
    return name or str(function.__name__)


def numpy_rival(
    function: Function, package: str, *, name: str | None = None, memory: Memory | None = None
) -> Rival:
    """A function of NumPy arrays."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        return partial(function, *arrays)

    return Rival(_name(function, name), prepare, package, "numpy", memory)


def numpy_gradient(op: Any, package: str = OURS, *, name: str) -> Rival:
    """The result of an op and then, by its gradient rule, the gradients of all its inputs."""
    inputs = [spec.name for spec in op.signature.inputs]
    (output,) = (spec.name for spec in op.signature.outputs)

    def both(*arrays: NdArray) -> Any:
        values = dict(zip(inputs, arrays, strict=False)) | {f"d_{output}": arrays[-1]}
        needs = tuple(f"d_{each}" for each in inputs)
        return op.differentiate({**values, output: op(*arrays[:-1]), "needs": needs})

    return numpy_rival(both, package, name=name)


def torch_rival(
    function: Function,
    package: str = "torch",
    *,
    name: str | None = None,
    memory: Memory | None = None,
    needs_gradient: bool = False,
) -> Rival:
    """A function of PyTorch tensors, which keeps what a gradient needs only if told so."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import torch

        tensors = (torch.tensor(array) for array in arrays)
        return partial(function, *(tensor.requires_grad_(needs_gradient) for tensor in tensors))

    return Rival(_name(function, name), prepare, package, "torch", memory)


def torch_gradient(
    function: Function,
    package: str = "torch",
    *,
    name: str | None = None,
    memory: Memory | None = None,
) -> Rival:
    """The result and then, by autograd, the gradients of all its inputs that are no integers."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import torch

        *inputs, d_out = (torch.tensor(array) for array in arrays)
        floats = [each.requires_grad_() for each in inputs if each.is_floating_point()]
        return lambda: torch.autograd.grad(function(*inputs), floats, d_out)

    return Rival(_name(function, name), prepare, package, "torch", memory)


def exact_in_torch(rival: Rival) -> Callable[..., list[Known]]:
    """For `Bench.expected`: what a rival of PyTorch's makes of the same numbers in float64."""

    def expected(*arrays: NdArray) -> list[Known]:
        made: Any = rival.prepare(*(array.astype(np.float64) for array in arrays))()
        several = made if isinstance(made, tuple) else (made,)
        return [Known(..., np.asarray(each.detach())) for each in several]

    return expected


def jax_rival(
    function: Function,
    package: str = "jax",
    *,
    name: str | None = None,
    memory: Memory | None = None,
    eager: bool = False,
    calls: int = 1,
) -> Rival:
    """A function of JAX arrays: compiled beforehand, or called as it is.

    Of many `calls` in a row only the last is waited for: to wait takes a microsecond itself.
    """

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import jax

        wait: Callable[[Any], Any] = jax.block_until_ready
        inputs = [jax.numpy.asarray(array) for array in arrays]
        call = function if eager else jax.jit(function).lower(*inputs).compile()

        def loop() -> Any:
            for _ in range(calls - 1):
                call(*inputs)
            return wait(call(*inputs))

        return loop

    return Rival(_name(function, name), prepare, package, "jax", memory, calls)


def jax_gradient(
    function: Function,
    package: str = "jax",
    *,
    name: str | None = None,
    memory: Memory | None = None,
    eager: bool = False,
    calls: int = 1,
) -> Rival:
    """The result and the gradients, under one ``jit`` or as it is."""

    def both(*arrays: Any) -> Any:
        import jax

        result, backward = jax.vjp(function, *arrays[:-1])
        return result, backward(arrays[-1])

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        call = jax_rival(both, eager=eager, calls=calls).prepare(*arrays)
        return lambda: call()[1]

    return Rival(_name(function, name), prepare, package, "jax", memory, calls)


def tensorflow_rival(
    function: Function,
    package: str = "tensorflow",
    *,
    name: str | None = None,
    memory: Memory | None = None,
    eager: bool = False,
) -> Rival:
    """A function of TensorFlow's tensors: in a graph, or called as it is."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        import tensorflow

        inputs = [tensorflow.constant(array) for array in arrays]
        return partial(function if eager else tensorflow.function(function), *inputs)

    return Rival(_name(function, name), prepare, package, "tensorflow", memory)


def tensorflow_gradient(function: Function, package: str = "tensorflow", *, name: str) -> Rival:
    """The result and then, by a tape, the gradients of all its inputs, in eager code."""

    def both(*arrays: Any) -> Any:
        import tensorflow

        with tensorflow.GradientTape() as tape:
            tape.watch(arrays[:-1])
            result = function(*arrays[:-1])
        return tape.gradient(result, arrays[:-1], arrays[-1])

    return tensorflow_rival(both, package, name=name, eager=True)


_OURS_IN: dict[str, tuple[str, Callable[..., Rival], Callable[..., Rival]]] = {
    "numpy": ("ours, NumPy", numpy_rival, numpy_gradient),
    "torch": ("ours, torch", torch_rival, torch_gradient),
    "jax": ("ours, JAX", jax_rival, jax_gradient),
    "tensorflow": ("ours, TensorFlow", tensorflow_rival, tensorflow_gradient),
}


def ours_in(function: Function, *frameworks: str, gradient: bool = False) -> list[Rival]:
    """A function of this package with the arrays of each framework, under the usual names."""
    return [
        (trained if gradient else plain)(function, OURS, name=name)
        for name, plain, trained in (_OURS_IN[each] for each in frameworks)
    ]


def with_arriving(draw: Function, axes: str) -> Function:
    """For `Bench.inputs`: all that `draw` gives, and what flows back to a result of these axes."""

    def drawn(random: np.random.Generator, **sizes: int) -> tuple[NdArray, ...]:
        arriving = random.standard_normal([sizes[axis] for axis in axes])
        return (*draw(random, **sizes), arriving.astype(np.float32))

    return drawn


def repeated(rival: Rival, calls: int = 100, *, no_grad: bool = False) -> Rival:
    """Many calls in a plain loop, for calls so short that timing each would disturb.

    A rival that repeats its call by itself stays as it is.
    """
    if rival.calls > 1:
        return rival

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        call = rival.prepare(*arrays)

        def loop() -> Any:
            with _no_grad() if no_grad else nullcontext():
                for _ in range(calls - 1):
                    call()
                return call()

        return loop

    return replace(rival, prepare=prepare, calls=calls)


def _no_grad() -> Any:
    import torch

    return torch.no_grad()
