# SPDX-License-Identifier: Apache-2.0
"""Large results of eager calls in JAX: in memory that an earlier result has given back.

XLA takes new pages for each result, and the system clears them while they are written: a fifth of
the time of a result of 64 MB. In a compiled program XLA lays out the memory, and it stays so.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax._src.core import trace_state_clean

from nativeops.call import Op
from nativeops.frameworks import numpy
from nativeops.library import extension

if TYPE_CHECKING:
    from nativeops.frameworks.jax_call import Call

_LARGE = extension().large  # bytes of a result from which on it lies in memory that is kept
_MOST = 1024  # shapes whose answer is remembered, per call
# What NumPy and JAX both have, whatever JAX is set to, and hand to each other without a copy.
_DTYPES = ("float16", "float32", "int32")


def makes_large(call: "Call", arrays: Sequence[Any]) -> bool:
    """Whether a result is large; raises the errors of wrong arguments."""
    key = tuple((array.shape, array.dtype) for array in arrays)
    if key not in call.large:
        if len(call.large) >= _MOST:
            call.large.clear()
        types = call.outputs([array.aval for array in arrays], call.made)
        sizes = [math.prod(one.shape) * one.dtype.itemsize for one in types]
        both = all(one.dtype.name in _DTYPES for one in [*types, *arrays])
        call.large[key] = both and max(sizes, default=0) >= _LARGE
    return call.large[key]


def is_usual() -> bool:
    """Whether the only device is the CPU, and nothing traces, looks at or guards what is done."""
    config = jax.config
    watched = config.jax_debug_nans or config.jax_debug_infs or config.jax_disable_jit
    # This way puts an array on the device by name; other guards let that pass.
    guarded = "explicit" in (config.jax_transfer_guard_host_to_device or "")
    here = not (watched or guarded) and trace_state_clean()
    return here and jax.default_backend() == "cpu" and jax.device_count() == 1


def compute(op: Op[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The call by way of NumPy, whose results lie in that memory; nothing is copied.

    As XLA's, they are bound to the device only if an argument is: a program of other arguments
    would be compiled again.
    """
    given = {name: _read(value) for name, value in kwargs.items()}
    results = numpy.framework.run(op, tuple(map(_read, args)), given)
    bound = any(getattr(value, "committed", False) for value in (*args, *kwargs.values()))
    place = jax.devices()[0] if bound else None
    return jax.tree.map(lambda made: jax.device_put(made, place, may_alias=True), results)


def _read(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, jax.Array) else value
