# SPDX-License-Identifier: Apache-2.0
"""What JAX needs of an op: the ways to call it, each compiled once."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from nativeops.call import Op
from nativeops.frameworks import jax_sharding
from nativeops.frameworks.absent import absent
from nativeops.frameworks.failures import check_addressable
from nativeops.frameworks.jax_absent import nothing
from nativeops.frameworks.jax_primitive import compute, primitive
from nativeops.library import define

_MOST = 64  # calls with different attributes that are kept compiled, per op: a megabyte each
_DTYPES = {"bfloat16": np.dtype(jax.numpy.bfloat16)}  # NumPy itself has none


class Call:
    """One way to call an op: its attributes, and which results it makes. Equal ones are one."""

    def __init__(
        self, handle: "Handle", attributes: Mapping[str, Any], mask: int, reuses: bool = True
    ) -> None:
        op = handle.op
        self.handle, self.op, self.attributes, self.mask = handle, op, attributes, mask
        self.inputs = op.signature.inputs
        self.large: dict[Any, bool] = {}  # see `jax_large`
        self.made = [s for bit, s in enumerate(op.signature.outputs) if mask >> bit & 1]
        # Results that take over an input's memory, which XLA copies first if it is still needed: an
        # eager call keeps all its inputs, so it would be a copy for nothing.
        names = [spec.name for spec in self.inputs]
        pairs = [(names.index(s.reuse), place) for place, s in enumerate(self.made) if s.reuse]
        self.reuses = pairs if reuses else []
        eager = Call(handle, attributes, mask, reuses=False) if self.reuses else self
        self.compiled = _jit(op.name, lambda *arrays: compute(eager, arrays))
        # What eager transforms run. JAX's own cache of such programs would keep thousands of them.
        self.applied = _jit(op.name, lambda *arrays: primitive.bind(*arrays, call=self), True)
        self.partitioned = jax_sharding.partitioned(self, primitive)
        # What the handler reads. The first two names are none that an attribute could have.
        self.parameters = {"op.key": op.key, "op.want": np.int64(mask)}
        for spec in op.signature.attributes:
            number = {int: np.int64, float: np.float64}.get(spec.type, spec.type)
            self.parameters[spec.name] = number(attributes[spec.name])

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.attributes.items())
        return f"{self.op.name}({given})"

    def solve(self, avals: Sequence[Any]) -> Any:
        """Everything that can be checked without the arrays' numbers."""
        described = [
            spec.given(str(aval.dtype), aval.shape)
            for spec, aval in zip(self.inputs, avals, strict=True)
        ]
        return self.op.check(described, [""] * len(described), self.attributes)

    def outputs(self, avals: Sequence[Any], specs: Sequence[Any]) -> list[Any]:
        """The types of these results."""
        signature, solution = self.op.signature, self.solve(avals)
        shapes = [signature.output_shape(spec, solution) for spec in specs]
        names = [signature.output_dtype(spec, solution) for spec in specs]
        dtypes = [_DTYPES.get(name) or np.dtype(name) for name in names]
        for shape, name in zip(shapes, names, strict=True):
            check_addressable(self.op, shape, name)  # JAX would say so where the result is used
        return jax_sharding.types(self, avals, specs, shapes, dtypes)

    def collect(self, results: Sequence[Any]) -> Any:
        """What the caller gets, from the results that were made."""
        if self.op.result is None:
            return results[0]
        left = iter(results)
        bits = range(len(self.op.signature.outputs))
        return self.op.collect([next(left) if self.mask >> bit & 1 else None for bit in bits])


class Handle:
    """An op as JAX knows it."""

    def __init__(self, op: Op[Any]) -> None:
        define(op)
        self.op = op
        self.n_inputs = len(op.signature.inputs)
        self.absent = absent(op, nothing)
        # What the gradient rule reads must be made, though nobody else may want it.
        self.asked = sum(
            1 << bit
            for bit, s in enumerate(op.signature.outputs)
            if s.kept or s.name in op.gradient_names
        )
        self.calls: dict[Any, Call] = {}
        self.known: dict[Any, Call] = {}  # by the keywords as they were written
        # The extension's way past `find`: how many arrays, and what computes them without keywords.
        self.direct: tuple[int, Any] | None = None

    def call(self, attributes: Mapping[str, Any], mask: int) -> Call:
        """The call with these checked attributes that makes these results."""
        key = (mask, *map(repr, attributes.values()))  # 0.0 and -0.0 are equal, but not the same
        if len(self.calls) > _MOST:
            for old in list(self.calls.values()):
                old.compiled.clear_cache()
                old.applied.clear_cache()
            self.calls.clear()
            self.known.clear()
        return self.calls.get(key) or self.calls.setdefault(key, Call(self, attributes, mask))

    def find(self, kwargs: Mapping[str, Any]) -> Call | None:
        """The call with these keywords, if there was one before."""
        try:
            return self.known.get((*kwargs.items(), *map(type, kwargs.values())))
        except TypeError:  # what cannot be hashed
            return None

    def remember(self, kwargs: Mapping[str, Any], call: Call) -> None:
        """Let `find` find a call; but not one with a zero, whose sign it would not see."""
        if not kwargs:
            self.direct = self.n_inputs, call.compiled
        key = (*kwargs.items(), *map(type, kwargs.values()))
        try:
            hash(key)  # an array has none; to compare it would be a step of what is traced
        except TypeError:
            return
        if not any(not isinstance(v, int) and v == 0 for v in kwargs.values()):
            self.known[key] = call


def device_of(array: Any) -> str:
    """Where an array is: ``cpu``, ``cuda:0``; several devices if it is spread over them."""
    if isinstance(array, jax.core.Tracer):
        return str(jax.default_backend())
    devices = sorted(array.devices(), key=lambda device: device.id)
    numbers = ",".join(str(device.id) for device in devices)
    platform = {"gpu": "cuda"}.get(devices[0].platform, devices[0].platform)
    return platform if (platform, numbers) == ("cpu", "0") else f"{platform}:{numbers}"


def _jit(name: str, function: Any, is_primitive: bool = False) -> Any:
    function.__name__ = function.__qualname__ = name  # what profilers and XLA show
    # Else JAX calls it once more without `jit`, to see where a NaN is from: here, without end.
    function._apply_primitive = is_primitive
    return jax.jit(function)
