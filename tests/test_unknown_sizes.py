# SPDX-License-Identifier: Apache-2.0
"""Every op in programs that are built before the sizes of arrays are known, with its gradient."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nativeops.ops  # declares the built-in ops
from nativeops.call import Op
from nativeops.errors import DtypeError
from nativeops.frameworks import framework_of
from nativeops.registry import ops
from nativeops.testing import Case, cases
from nativeops.testing.compiled import CompiledOp
from nativeops.testing.draw import FLOATS

OPS = [op for op in ops() if op.built_in]


def plain(op: Op[Any]) -> Case:
    """A case of middle sizes with all inputs."""
    return next(case for case in cases(op, "tensorflow", mode="compiled") if not case.absent)


def of_any_rank(function: Callable[..., Any]) -> Callable[..., Any]:
    """A TensorFlow function that knows nothing of its arrays but their dtypes."""
    return of_shapes(function, lambda array: None)


def of_any_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A TensorFlow function that knows the number of axes."""
    return of_shapes(function, lambda array: [None] * len(array.shape))


def of_shapes(function: Callable[..., Any], shape: Callable[[Any], Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def call(*arrays: Any) -> Any:
        signature = [tf.TensorSpec(shape(array), array.dtype) for array in arrays]
        return tf.function(function, input_signature=signature)(*arrays)

    return call


@pytest.mark.parametrize("unknown", [of_any_rank, of_any_sizes], ids=["rank", "sizes"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_tensorflow_functions_take_any_sizes(op: Op[Any], unknown: Any) -> None:
    pytest.importorskip("tensorflow")
    case = replace(plain(op), framework="tensorflow", mode="compiled")
    case.__dict__["callable"] = CompiledOp(op, unknown)  # in place of the cached one
    case._run()


@pytest.mark.parametrize("op", [op for op in OPS if op.gradient_rule], ids=lambda op: op.name)
def test_tapes_inside_such_functions_give_the_same_gradients(op: Op[Any]) -> None:
    tf = pytest.importorskip("tensorflow")
    case = plain(op)
    floats = [spec.name for spec in case.inputs if spec.kind in FLOATS]
    assert floats
    names = [name for name, value in case.given.items() if framework_of(type(value))]
    fixed = {name: value for name, value in case.given.items() if name not in names}
    arrays = [case.given[name] for name in names]

    def gradients(*arrays: Any) -> Any:
        given = dict(zip(names, arrays, strict=True))
        leaves = [given[name] for name in floats]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            result = op(**given, **fixed)
            outputs = [o for o in (result if op.result else [result]) if is_float(o)]
            loss = tf.add_n([tf.reduce_sum(tf.sin(tf.cast(o, tf.float64))) for o in outputs])
        return [0 if g is None else g for g in tape.gradient(loss, leaves)]

    for found, expected in zip(of_any_rank(gradients)(*arrays), gradients(*arrays), strict=True):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def is_float(output: Any) -> bool:
    """Whether an output was made and has a gradient."""
    return output is not None and "float" in str(output.dtype)


def is_plain(op: Op[Any]) -> bool:
    """Whether all sizes of inputs are names, each of its own."""
    return all(axis.name for spec in op.signature.inputs for axis in spec.axes)


@pytest.mark.parametrize("op", [op for op in OPS if is_plain(op)], ids=lambda op: op.name)
def test_jax_programs_with_symbolic_sizes_take_any(op: Op[Any]) -> None:
    jax = pytest.importorskip("jax")
    case = replace(plain(op), framework="jax")
    with case.scope():
        names = [name for name, value in case.given.items() if framework_of(type(value))]
        fixed = {name: value for name, value in case.given.items() if name not in names}
        arrays = {name: case.given[name] for name in names}
        floats = [spec.name for spec in case.inputs if spec.kind in FLOATS]
        differentiable = op.gradient_rule is not None and floats

        def program(arrays: dict[str, Any]) -> Any:
            if not differentiable:
                return values(arrays)
            leaves = {name: arrays[name] for name in floats}
            return jax.value_and_grad(lambda leaves: loss({**arrays, **leaves}))(leaves)

        def values(arrays: dict[str, Any]) -> Sequence[Any]:
            result = op(**arrays, **fixed)
            return [one for one in (result if op.result else (result,)) if one is not None]

        def loss(arrays: dict[str, Any]) -> Any:
            return sum(jax.numpy.sin(o).sum() for o in values(arrays) if is_float(o))

        scope = jax.export.SymbolicScope()
        kinds = {}
        for spec in case.inputs:
            array = arrays[spec.name]
            lead = ["lead"] * (array.ndim - len(spec.axes))
            words = ", ".join([*lead, *(axis.name for axis in spec.axes)])
            shape = jax.export.symbolic_shape(words, scope=scope)
            kinds[spec.name] = jax.ShapeDtypeStruct(shape, array.dtype)
        allowed = [jax.export.DisabledSafetyCheck.custom_call("nativeops")]
        exported = jax.export.export(jax.jit(program), disabled_checks=allowed)(kinds)
        saved = jax.export.deserialize(exported.serialize())
        found, expected = saved.call(arrays), program(arrays)
        for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-5)


HINT = "hint: an attribute is a constant of a program: give it as a Python number."


def test_a_size_that_a_graph_does_not_know_is_no_attribute() -> None:
    tf = pytest.importorskip("tensorflow")

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 3])])
    def cut(x: Any) -> Any:
        return nativeops.chunk(x, chunk_size=x.shape[0], chunk_step=1).chunks

    with pytest.raises(DtypeError, match=rf"`chunk_size` must be int, but is None\.\s*{HINT}"):
        cut(np.zeros((5, 2, 3), np.float32))


def test_a_symbolic_size_is_no_attribute() -> None:
    jax = pytest.importorskip("jax")

    def cut(x: Any) -> Any:
        return nativeops.chunk(x, chunk_size=x.shape[0], chunk_step=1).chunks

    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("t, b, d"), np.float32)
    with pytest.raises(DtypeError, match=rf"`chunk_size` must be int, but is t\.\s*{HINT}"):
        jax.export.export(jax.jit(cut))(shape)
