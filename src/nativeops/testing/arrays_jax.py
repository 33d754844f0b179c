# SPDX-License-Identifier: Apache-2.0
"""JAX arrays for tests; see `nativeops.testing.arrays`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.experimental
import numpy as np

from nativeops.call import Op
from nativeops.testing.arrays import Placed, numpy_dtype

_64_BIT = {"float64", "int64"}


def random(*shape: int, dtype: Any = "float32") -> Any:
    """Normal numbers, the same for a shape each time.

    They are NumPy's: `jax.random` compiles a program for every shape.
    """
    draw = np.random.default_rng(hash(shape) % 2**31).standard_normal
    return jax.numpy.asarray(draw(shape), dtype)


def composed_l1(x: Any, y: Any) -> Any:
    """What `pairwise_l1` is, in JAX's own functions."""
    return jax.numpy.abs(x[..., :, None, :] - y[..., None, :, :]).sum(-1)


class JaxArrays:
    """JAX, on a device. Its arrays are row-major and no views of others."""

    def __init__(self, device: str) -> None:
        self.device = jax.devices({"cpu": "cpu", "cuda": "gpu"}[device.partition(":")[0]])[0]

    def place(self, values: Any, dtype: str, layout: str = "contiguous") -> Placed:
        """See `Arrays`."""
        assert layout == "contiguous", layout
        with self.scope({dtype}):
            array = jax.device_put(np.array(values, numpy_dtype(dtype)), self.device)
        return Placed(array, array)

    def values(self, array: Any) -> Any:
        """See `Arrays`."""
        plain = np.asarray(array)
        return plain.astype(np.float64) if plain.dtype.name == "bfloat16" else plain

    def dtype(self, array: Any) -> str:
        """See `Arrays`."""
        return str(array.dtype)

    def gradients(
        self,
        op: Op[Any],
        arguments: Mapping[str, Any],
        d_outputs: Sequence[Any],
        names: Sequence[str],
    ) -> dict[str, Any]:
        """See `Arrays`."""

        def function(leaves: dict[str, Any]) -> list[Any]:
            result = op(**{**arguments, **leaves})
            return [o for o in (result if op.result else [result]) if o is not None]

        outputs, pull = jax.vjp(function, {name: arguments[name] for name in names})
        arriving = [self._arriving(o, d) for o, d in zip(outputs, d_outputs, strict=True)]
        (found,) = pull(arriving)
        return {name: self.values(gradient) for name, gradient in found.items()}

    def _arriving(self, output: Any, values: Any) -> Any:
        if jax.numpy.issubdtype(output.dtype, jax.numpy.floating):
            return self.place(values, str(output.dtype)).array
        return np.zeros(output.shape, jax.dtypes.float0)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """See `Arrays`."""
        compiled: Callable[..., Any] = jax.jit(function)
        return compiled

    def scope(self, dtypes: Collection[str]) -> AbstractContextManager[Any]:
        """See `Arrays`."""
        return enabled_64_bits() if _64_BIT & set(dtypes) else nullcontext()


def enabled_64_bits() -> AbstractContextManager[Any]:
    """JAX has 64-bit numbers only while this is entered."""
    if hasattr(jax, "enable_x64"):
        enabled: AbstractContextManager[Any] = jax.enable_x64(True)
    else:
        enabled = jax.experimental.enable_x64()
    return enabled
