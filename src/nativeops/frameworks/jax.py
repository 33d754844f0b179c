# SPDX-License-Identifier: Apache-2.0
"""JAX arrays: what a call does. `jax_primitive` is what JAX sees of an op.

Importing this file makes all built-in ops known to the core, so that saved programs that contain
them run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.ffi

from nativeops.call import Op, check_frameworks, given
from nativeops.errors import BuildError, NativeOpsError, message
from nativeops.frameworks import jax_gradient, jax_large, jax_vmap  # noqa: F401  they have rules
from nativeops.frameworks.failures import failure
from nativeops.frameworks.jax_call import Call, Handle, device_of
from nativeops.frameworks.jax_primitive import TARGET, compute
from nativeops.library import extension
from nativeops.registry import ops

with jax.ensure_compile_time_eval():  # the first call of a program may be a traced one
    _Array = type(jax.numpy.zeros(0))
_made_large = extension().made_large_in_jax
_NOT_BUILT = "was built without what JAX needs, because jaxlib was not installed then."


class Jax:
    """The adapter; see `frameworks.base.Framework`."""

    name = "jax"

    def __init__(self) -> None:
        for platform in ("cpu", "CUDA"):
            handler = extension().xla_handler(platform)
            if handler is None:
                hint = "install jaxlib and then build the package anew: `pip install .` does both."
                raise BuildError(message("nativeops", _NOT_BUILT, hint=hint))
            jax.ffi.register_ffi_target(TARGET, handler, platform=platform)
        # The extension takes plain arrays without keywords, and calls `call` for all else.
        extension().connect_jax(_Array, call, refuse)
        self.run = extension().eager_jax

    def describe(self, array: Any) -> tuple[str, tuple[Any, ...], str]:
        """See `frameworks.base.Framework`."""
        return str(array.dtype), tuple(array.shape), device_of(array)

    @staticmethod
    def integers(values: Sequence[Any], dtype: Any, like: Any) -> Any:
        """See `frameworks.base.Framework`."""
        return jax.numpy.asarray(values, dtype)


def call(op: Op[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One call with all that the extension leaves out: tracing, attributes, errors, first calls."""
    handle = op.handles.get("jax") or connect(op)
    written = args, kwargs
    if handle.absent:
        args, kwargs = handle.absent.take(args, kwargs)
    way = handle.find(kwargs)
    if way is None or len(args) != handle.n_inputs:
        args, way = arrange(handle, args, kwargs)
    for array in args:
        if type(array) is not _Array:
            args = [_held(one) for one in args]
            check_frameworks(op, args)
            return compute(way, args)  # something is traced: it must see the op itself
    try:
        if _made_large(op) and jax_large.makes_large(way, args) and jax_large.is_usual():
            return jax_large.compute(op, *written)
        return way.compiled(*args)
    except Exception as error:
        raise _explain(way, args, error) from None


def refuse(op: Op[Any], arrays: Sequence[Any], error: Exception) -> None:
    """Raise the error that tells of a call by the extension what JAX said of it."""
    args, way = arrange(connect(op), arrays, {})
    raise _explain(way, args, error) from None


def _held(value: Any) -> Any:
    """The array in what JAX itself takes for one, such as a variable of Flax or Keras."""
    holds = hasattr(value, "__jax_array__") and not isinstance(value, jax.Array)
    return value.__jax_array__() if holds else value


def connect(op: Op[Any]) -> Handle:
    """What JAX needs of an op; made once."""
    handle: Handle = op.handles.setdefault("jax", Handle(op))
    return handle


def arrange(
    handle: Handle, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Call]:
    """The arrays in order, and the call that the other arguments ask for."""
    op = handle.op
    declared, want = op.split_want(kwargs)
    arrays, attributes = op.bind(args, declared)
    call = handle.call(attributes, op.wanted(want))
    if len(args) == len(arrays):  # else the keywords hold arrays
        handle.remember(kwargs, call)
    return handle.absent.fill(arrays) if handle.absent else arrays, call


def _explain(call: Call, arrays: Sequence[Any], error: Exception) -> Exception:
    """The error that says in the op's own words what JAX refused."""
    op = call.op
    committed = [device_of(array) for array in arrays if array.committed]
    # JAX moves what was not put on a device to the device of the others.
    devices = [device_of(a) if a.committed else committed[0] if committed else "" for a in arrays]
    try:
        solution = op.check(given(op, framework, arrays), devices, call.attributes)
    except NativeOpsError as explained:
        return explained.with_traceback(None)
    if isinstance(error, NativeOpsError):
        return error
    return failure(op, solution, error, devices[0] or device_of(arrays[0]), call.made) or error


framework = Jax()
for _op in ops():
    if _op.built_in:
        connect(_op)
