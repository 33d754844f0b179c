# SPDX-License-Identifier: Apache-2.0
"""The gradient of any op in JAX.

JAX differentiates backwards by transposing a linear function. That function is a primitive here
which can only be transposed: that applies the op's gradient rule. To compute it would be forward
mode, which no op has.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from nativeops.errors import GradientError, message
from nativeops.frameworks.absent import without_absent
from nativeops.frameworks.jax_call import Call
from nativeops.frameworks.jax_primitive import primitive
from nativeops.frameworks.rule import check_fit, check_gradients
from nativeops.signature import VARIABLES, ArraySpec

_FLOATS = VARIABLES["Float"]  # Float32 and Float64 have dtypes from among these

linear: Any = jax.extend.core.Primitive("nativeops_linear")
linear.multiple_results = True


_instantiate: Any = ad.instantiate_zeros


class Linear:
    """What one call's derivative needs: the names of what is kept, and of what flows."""

    def __init__(
        self, call: Call, inputs: Sequence[Any], saved: Sequence[str], needs: Sequence[str]
    ) -> None:
        self.call, self.saved, self.needs = call, saved, needs
        self.shown = [spec for spec in call.made if _is_float(spec)]
        outputs = call.op.signature.outputs
        types = call.outputs([jax.typeof(array) for array in inputs], outputs)
        self.types = {s.name: t for s, t in zip(outputs, types, strict=True) if _is_float(s)}

    def __repr__(self) -> str:
        return repr(self.call)


def _is_float(spec: ArraySpec) -> bool:
    return spec.dtypes[0] in _FLOATS


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, call: Call
) -> tuple[list[Any], list[Any]]:
    """The results, and their tangents by the linear primitive; nothing is computed for those."""
    op = call.op
    moving = {
        spec.name: tangent
        for spec, primal, tangent in zip(call.inputs, primals, tangents, strict=True)
        if type(tangent) is not ad.Zero and _is_float(spec) and not spec.is_absent(primal.shape)
    }
    if not moving or not any(map(_is_float, call.made)):
        results = primitive.bind(*primals, call=call)
        return results, [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]
    full = call.handle.call(call.attributes, call.mask | call.handle.asked)
    made = primitive.bind(*primals, call=full)
    known = dict(zip([spec.name for spec in full.made], made, strict=True))
    results = [known[spec.name] for spec in call.made]
    known.update(zip([spec.name for spec in call.inputs], primals, strict=True))
    saved = [name for name in op.gradient_names if name in known]
    rule = Linear(call, primals, saved, list(moving))
    flows = iter(linear.bind(*[known[name] for name in saved], *moving.values(), rule=rule))
    return results, [
        next(flows) if _is_float(spec) else ad.Zero(jax.typeof(result).to_tangent_aval())
        for spec, result in zip(call.made, results, strict=True)
    ]


def _transpose(arriving: Sequence[Any], *arguments: Any, rule: Linear) -> list[Any]:
    """The gradient rule, on what was kept and what arrives."""
    op, n_saved = rule.call.op, len(rule.saved)
    targets = arguments[n_saved:]
    if all(type(one) is ad.Zero for one in arriving):
        return [None] * n_saved + [ad.Zero(target.aval) for target in targets]
    d_outputs = {s.name: one for s, one in zip(rule.shown, arriving, strict=True)}
    _check_kept(rule, d_outputs)
    # What JAX kept of NumPy's arrays, and what arrives, may still be NumPy's.
    saved = [jnp.asarray(array) for array in arguments[:n_saved]]
    known = without_absent(op, dict(zip(rule.saved, saved, strict=True)), jnp.shape)
    known |= dict(rule.call.attributes)
    known["needs"] = tuple(f"d_{name}" for name in rule.needs)
    for name, kind in rule.types.items():
        if f"d_{name}" in op.gradient_names:
            known[f"d_{name}"] = jnp.asarray(_instantiate(d_outputs.get(name, ad.Zero(kind))))
    gradients = op.differentiate(known)
    names = [spec.name for spec in rule.call.inputs if _is_float(spec)]
    check_gradients(op.name, gradients, len(names))
    by_name = dict(zip(names, gradients, strict=True))
    pairs = zip(rule.needs, targets, strict=True)
    return [None] * n_saved + [_fit(op.name, by_name[name], target.aval) for name, target in pairs]


def _check_kept(rule: Linear, d_outputs: dict[str, Any]) -> None:
    """Nothing may flow into what only the gradient reads, unless the rule takes it."""
    for spec in rule.shown:
        if rule.call.op.stops_at(spec) and type(d_outputs[spec.name]) is not ad.Zero:
            raise GradientError(rule.call.op.not_through(spec.name))


def _fit(op: str, gradient: Any, target: Any) -> Any:
    """The gradient in the input's shape: summed over the axes along which that was repeated."""
    if gradient is None:
        return ad.Zero(target)
    check_fit(op, *((one.dtype.name, one.shape) for one in (gradient, target)))
    extra = gradient.ndim - target.ndim
    shape = gradient.shape[extra:]
    ones = [i for i, n in enumerate(target.shape) if n == 1 and shape[i] != 1]
    if extra or ones:
        gradient = jnp.sum(gradient, (*range(extra), *(extra + i for i in ones)))
        gradient = jnp.expand_dims(gradient, tuple(ones))
    return gradient


def _refuse_transpose(*_: Any, call: Call) -> Any:
    text = "cannot be transposed: that is for functions which JAX knows to be linear."
    raise GradientError(message(call.op.name, text, hint="use `jax.vjp` or `jax.grad`."))


def _refuse(*_: Any, rule: Linear, **__: Any) -> Any:
    raise GradientError(rule.call.op.no_forward_mode)


ad.primitive_jvps[primitive] = _jvp
ad.primitive_transposes[primitive] = _refuse_transpose
ad.primitive_transposes[linear] = _transpose
linear.def_abstract_eval(
    lambda *_, rule: [rule.types[s.name].to_tangent_aval() for s in rule.shown]
)
linear.def_impl(_refuse)
ad.primitive_jvps[linear] = _refuse
batching.primitive_batchers[linear] = _refuse
mlir.register_lowering(linear, _refuse)
