# SPDX-License-Identifier: Apache-2.0
"""What a call costs beyond its kernel, in every framework: tiny arrays, large ones, many threads.

The op is pairwise_l1, since there is one adapter for all ops; its rival is the formula in the
framework's own words.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nativeops import pairwise_l1
from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.bench.forms import (
    jax_gradient,
    jax_rival,
    numpy_rival,
    ours_in,
    repeated,
    tensorflow_gradient,
    tensorflow_rival,
    torch_gradient,
    torch_rival,
)
from nativeops.call import Op
from nativeops.frameworks import ENTRIES
from nativeops.ops.pairwise_l1_bench import distances, gradients, two_sets, with_d_out

TINY = [{"n": 4, "m": 4, "d": 4}]
LARGE = [{"n": 4096, "m": 4096, "d": 256}]
MIDDLE = [{"n": 256, "m": 256, "d": 64}]
CHAIN = 100  # calls in one compiled program
CALLS = 100  # calls of JAX in a row, before their results are waited for
N_THREADS = 8
ROUNDS = 16  # calls of each thread


def formula(x: Any, y: Any) -> Any:
    """The same in a framework's own operations, as one writes it first."""
    return abs(x[:, None] - y).sum(-1)


def native(x: Any, y: Any) -> Any:
    """One operation of the framework itself: what its own calls cost."""
    return x + y


def tensorflow_formula(x: Any, y: Any) -> Any:
    """The same; TensorFlow's tensors have no such methods."""
    import tensorflow as tf

    return tf.reduce_sum(tf.abs(x[:, None] - y), -1)


EAGER = Bench(
    "eager",
    "one call on arrays so small that only the call itself counts",
    sizes=TINY,
    inputs=two_sets,
    expected=distances,
    rivals=[
        repeated(rival)
        for rival in (
            *ours_in(pairwise_l1, "numpy", "torch"),
            jax_rival(pairwise_l1, OURS, name="ours, JAX", eager=True, calls=CALLS),
            tensorflow_rival(pairwise_l1, OURS, name="ours, TensorFlow", eager=True),
            numpy_rival(formula, "numpy", name="formula, NumPy"),
            torch_rival(formula, name="formula, torch"),
            jax_rival(formula, name="formula, JAX", eager=True, calls=CALLS),
            tensorflow_rival(tensorflow_formula, name="formula, TensorFlow", eager=True),
        )
    ],
)

ADDITION = Bench(
    "addition",
    "the same for one addition by the framework itself: what its own calls cost",
    sizes=TINY,
    inputs=two_sets,
    rivals=[
        repeated(rival)
        for rival in (
            numpy_rival(native, "numpy", name="x + y, NumPy"),
            torch_rival(native, name="x + y, torch"),
            jax_rival(native, name="x + y, JAX", eager=True, calls=CALLS),
            tensorflow_rival(native, name="x + y, TensorFlow", eager=True),
        )
    ],
)

EAGER_GRADIENT = Bench(
    "eager with gradient",
    "the same, forward and backward",
    sizes=TINY,
    inputs=with_d_out,
    expected=gradients,
    rivals=[
        repeated(rival)
        for rival in (
            *ours_in(pairwise_l1, "numpy", "torch", gradient=True),
            jax_gradient(pairwise_l1, OURS, name="ours, JAX", eager=True, calls=CALLS),
            tensorflow_gradient(pairwise_l1, OURS, name="ours, TensorFlow"),
            torch_gradient(formula, name="formula, torch"),
            jax_gradient(formula, name="formula, JAX", eager=True, calls=CALLS),
            tensorflow_gradient(tensorflow_formula, name="formula, TensorFlow"),
        )
    ],
)


def chained(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of its own result, many times."""

    def program(x: Any, y: Any) -> Any:
        for _ in range(CHAIN):
            x = function(x, y)
        return x

    return program


def chained_values(x: NdArray, y: NdArray) -> list[Known]:
    """What the chain gives, in float64."""
    program = chained(pairwise_l1.reference)
    return [Known(..., program(x.astype(np.float64), y.astype(np.float64)))]


def compiled_by_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled when it is first called."""

    def call(*arrays: Any) -> Any:
        import torch

        if "compiled" not in vars(call):
            vars(call)["compiled"] = torch.compile(function, fullgraph=True)
        return vars(call)["compiled"](*arrays)

    return call


def in_program(rival: Rival) -> Rival:
    """A call of a program that has the op many times: the time per op."""
    return Rival(rival.name, rival.prepare, rival.package, rival.framework, calls=CHAIN)


COMPILED = Bench(
    "compiled",
    f"per op, where one compiled program has {CHAIN}, each on the result of the one before",
    sizes=[{"n": 1, "m": 1, "d": 1}],
    inputs=two_sets,
    expected=chained_values,
    rivals=[
        in_program(rival)
        for rival in (
            numpy_rival(chained(pairwise_l1), OURS, name="ours, NumPy, in a loop"),
            torch_rival(compiled_by_torch(chained(pairwise_l1)), OURS, name="ours, torch.compile"),
            jax_rival(chained(pairwise_l1), OURS, name="ours, jax.jit"),
            tensorflow_rival(chained(pairwise_l1), OURS, name="ours, tf.function"),
            torch_rival(compiled_by_torch(chained(formula)), name="formula, torch.compile"),
            jax_rival(chained(formula), name="formula, jax.jit"),
            tensorflow_rival(chained(tensorflow_formula), name="formula, tf.function"),
        )
    ],
)


class _Array(np.ndarray[Any, Any]):
    """Stands for a framework's arrays; its adapter does nothing."""


def _nothing(op: Any, args: Any, kwargs: Any) -> None:
    return None


def dispatched() -> Rival:
    """From the public call to an adapter that does nothing."""

    def prepare(x: NdArray, y: NdArray) -> Callable[[], Any]:
        ENTRIES[_Array] = _nothing
        op = Op(pairwise_l1.reference, pairwise_l1.signature, pairwise_l1.kernel, "float32")
        return partial(op, x.view(_Array), y.view(_Array))

    return repeated(Rival("ours, no framework", prepare, OURS, "numpy"), 1000)


def function_call() -> Rival:
    """A plain Python call of the same function."""

    def prepare(x: NdArray, y: NdArray) -> Callable[[], Any]:
        return partial(_nothing, x, (x, y), {})

    return repeated(Rival("a function call", prepare, "numpy", "numpy"), 1000)


DISPATCH = Bench(
    "dispatch",
    "finding the framework of a call, and nothing else",
    sizes=TINY,
    inputs=two_sets,
    rivals=[dispatched(), function_call()],
)

ZERO_COPY = Bench(
    "large",
    "one call on large arrays: what a framework copies would show here, in time and in memory",
    sizes=LARGE,
    inputs=two_sets,
    expected=distances,
    memory_sizes=LARGE,
    work=lambda n, m, d: 3 * n * m * d,
    rivals=[
        *ours_in(pairwise_l1, "numpy", "torch"),
        jax_rival(pairwise_l1, OURS, name="ours, JAX", eager=True),
        jax_rival(pairwise_l1, OURS, name="ours, jax.jit"),
        tensorflow_rival(pairwise_l1, OURS, name="ours, TensorFlow", eager=True),
        tensorflow_rival(pairwise_l1, OURS, name="ours, tf.function"),
    ],
)


def with_threads(rival: Rival, n_threads: int) -> Rival:
    """The same number of calls from this many Python threads: the time per call."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        call = rival.prepare(*arrays)
        total = N_THREADS * ROUNDS

        def some() -> None:
            for _ in range(total // n_threads):
                call()

        def run() -> Any:
            together([some] * n_threads)
            return call()

        return run

    name = f"{rival.name}, {'one thread' if n_threads == 1 else f'{n_threads} threads'}"
    calls = N_THREADS * ROUNDS + 1
    return Rival(name, prepare, rival.package, rival.framework, calls=calls)


def together(tasks: Sequence[Callable[[], None]]) -> None:
    """Run all at the same time, each in a thread, and wait for all."""
    running = [threading.Thread(target=task) for task in tasks]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


THREADS = Bench(
    "threads",
    "per call, where one Python thread calls, and where eight do",
    sizes=MIDDLE,
    inputs=two_sets,
    expected=distances,
    rivals=[
        with_threads(rival, n_threads)
        for rival in (
            *ours_in(pairwise_l1, "numpy", "torch"),
            jax_rival(pairwise_l1, OURS, name="ours, jax.jit"),
            tensorflow_rival(pairwise_l1, OURS, name="ours, TensorFlow", eager=True),
            torch_rival(formula, name="formula, torch"),
        )
        for n_threads in (1, N_THREADS)
    ],
)


def torch_products(side: int = 512) -> Callable[[], Any]:
    """A matrix product on PyTorch's threads."""
    import torch

    a = torch.ones(side, side)
    return lambda: a @ a


def jax_products(side: int = 512) -> Callable[[], Any]:
    """A matrix product on XLA's threads."""
    import jax

    product = jax.jit(lambda a: a @ a)
    a = jax.numpy.ones((side, side))
    wait: Callable[[Any], Any] = jax.block_until_ready
    return lambda: wait(product(a))


WAYS = ("ours alone", "theirs alone", "in turn", "at once")
PER_ROUND = 8  # of our calls: together they take about as long as a product
LONG = 64  # rounds: PyTorch makes threads of its own for each thread that calls it


def beside(rival: Rival, products: Callable[[], Any], name: str, way: str) -> Rival:
    """Rounds of our calls and of a matrix product: one of them, one after the other, or at once."""

    def prepare(*arrays: NdArray) -> Callable[[], Any]:
        call, product = rival.prepare(*arrays), products()

        def calls() -> None:
            for _ in range(PER_ROUND):
                call()

        def both() -> None:
            calls()
            product()

        rounds = {
            "ours alone": [calls],
            "theirs alone": [product],
            "in turn": [both],
            "at once": [calls, product],
        }[way]

        def run() -> Any:
            together([partial(many, each) for each in rounds])
            return call()

        return run

    name = f"{rival.name} and {name}, {way}"
    return Rival(name, prepare, rival.package, rival.framework, calls=LONG)


def many(call: Callable[[], Any]) -> None:
    """All rounds of a thread."""
    for _ in range(LONG):
        call()


NEIGHBOURS = Bench(
    "neighbours",
    f"a round of {PER_ROUND} calls of ours and a matrix product by another library's threads",
    sizes=MIDDLE,
    inputs=two_sets,
    expected=distances,
    rivals=[
        beside(rival, products, name, way)
        for rival, products, name in (
            (torch_rival(pairwise_l1, OURS, name="ours, torch"), torch_products, "torch's product"),
            (jax_rival(pairwise_l1, OURS, name="ours, jax.jit"), jax_products, "XLA's product"),
        )
        for way in WAYS
    ],
)

BENCHES = [DISPATCH, EAGER, ADDITION, EAGER_GRADIENT, COMPILED, ZERO_COPY, THREADS, NEIGHBOURS]
