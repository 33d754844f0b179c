# SPDX-License-Identifier: Apache-2.0
"""`jax.vmap` over any op: a mapped axis becomes a leading axis where the op has them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching

from nativeops.frameworks.jax_call import Call
from nativeops.frameworks.jax_primitive import bind, explained, primitive


def _rule(arrays: Sequence[Any], dims: Sequence[Any], *, call: Call) -> tuple[list[Any], list[int]]:
    # The mapped axis must not stand in for a named one that an item lacks.
    call.solve([_item(a, d) for a, d in zip(arrays, dims, strict=True)])
    moved = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(arrays, dims, strict=True)]
    mapped = [dim is not None for dim in dims]
    takes = [spec.batch for spec, is_mapped in zip(call.inputs, mapped, strict=True) if is_mapped]
    folds = all(takes) and all(spec.batch for spec in call.made)
    results = (_fold if folds else _loop)(call, moved, mapped)
    return results, [0] * len(results)


def _item(array: Any, dim: int | None) -> Any:
    """What one item is to the mapped function."""
    aval = jax.typeof(array)
    shape = tuple(size for axis, size in enumerate(aval.shape) if axis != dim)
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _fold(call: Call, arrays: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    """One call with the mapped axis in front of all leading axes."""
    ranks = [a.ndim - m - len(s.axes) for s, a, m in zip(call.inputs, arrays, mapped, strict=True)]
    placed = [
        jnp.expand_dims(array, tuple(range(1, 1 + max(ranks) - rank))) if is_mapped else array
        for array, is_mapped, rank in zip(arrays, mapped, ranks, strict=True)
    ]
    return bind(call, placed)


def _loop(call: Call, arrays: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    """One call per item: the op has no leading axes to fold the mapped one into."""

    def one(items: Sequence[Any]) -> list[Any]:
        left = iter(items)
        pairs = zip(arrays, mapped, strict=True)
        return bind(call, [next(left) if is_mapped else array for array, is_mapped in pairs])

    items = [array for array, is_mapped in zip(arrays, mapped, strict=True) if is_mapped]
    with explained(call.op.name):
        results: list[Any] = jax.lax.map(one, items)
    return results


batching.primitive_batchers[primitive] = _rule
