# SPDX-License-Identifier: Apache-2.0
"""The one primitive that stands for all ops in JAX, and its lowering to XLA.

A primitive of our own, and not `jax.custom_vjp` around `jax.ffi.ffi_call`, because only it is told
which gradients are needed, and has its own word where a derivative does not exist.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core
import jax.ffi
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.interpreters import mlir

from nativeops.errors import DeviceError, NativeOpsError, message, thrown
from nativeops.frameworks import jax_sharding
from nativeops.library import has_cuda, missing_kernel

if TYPE_CHECKING:
    from nativeops.frameworks.jax_call import Call

TARGET = "nativeops"  # what saved programs call the handler

primitive: Any = jax.extend.core.Primitive(TARGET)
primitive.multiple_results = True
# The lowering asks which devices the program is for.
prim_requires_devices_during_lowering.add(primitive)


def bind(call: "Call", arrays: Sequence[Any]) -> list[Any]:
    """The results that the call makes; the arrays may be traced by any transform."""
    result: list[Any] = primitive.bind(*jax_sharding.unify(call, arrays), call=call)
    return result


def compute(call: "Call", arrays: Sequence[Any]) -> Any:
    """The same as the caller gets them."""
    return call.collect(bind(call, arrays))


@contextmanager
def explained(op: str) -> Iterator[None]:
    """Outside compiled functions what a kernel throws is told as in an eager call."""
    try:
        yield
    except NativeOpsError:
        raise
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # a ValueError from JAX's fast path
        raise thrown(op, str(error)) or error from None


def _run(*arrays: Any, call: "Call") -> Any:
    with explained(call.op.name), jax.disable_jit(False):
        return call.applied(*arrays)


def _lower(ctx: Any, *operands: Any, call: "Call") -> Any:
    platforms, exported = ctx.module_context.platforms, jax_sharding.is_export(ctx)
    for platform in platforms:
        if platform not in ("cpu", "cuda"):
            text = f"there are no kernels for {platform}."
            raise DeviceError(message(call.op.name, text, hint="use the cpu or cuda."))
        if platform == "cuda" and not exported and not has_cuda(call.op):
            raise missing_kernel(call.op, call.solve(ctx.avals_in).dtypes, "cuda")
    if exported or jax_sharding.is_for_one_device(call, ctx):
        shapes, results = ([a.shape for a in avals] for avals in (ctx.avals_in, ctx.avals_out))
        aliases = {i: out for i, out in call.reuses if shapes[i] == results[out]}
        # Not as keywords of the lowering: an attribute may have the name of one.
        config = {name: mlir.ir_attribute(value) for name, value in call.parameters.items()}
        return jax.ffi.ffi_lowering(
            TARGET, operand_output_aliases=aliases or None, backend_config=config
        )(ctx, *operands)
    return mlir.lower_fun(call.partitioned, multiple_results=True)(ctx, *operands)


primitive.def_impl(_run)
primitive.def_abstract_eval(lambda *avals, call: call.outputs(avals, call.made))
mlir.register_lowering(primitive, _lower)
