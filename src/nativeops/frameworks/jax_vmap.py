# SPDX-License-Identifier: Apache-2.0
"""`jax.vmap` over any op: a mapped axis becomes a leading axis where the op has them.

Where it has none, the mapped axis becomes a part of an independent one, or the op is called in a
loop."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.core import get_axis_env
from jax.interpreters import batching
from jax.sharding import NamedSharding, PartitionSpec

from nativeops.frameworks.jax_call import Call
from nativeops.frameworks.jax_primitive import bind, explained, primitive
from nativeops.frameworks.jax_sharding import mesh_of, reshard
from nativeops.frameworks.vmap import place_of, shared_axis


def _rule(arrays: Sequence[Any], dims: Sequence[Any], *, call: Call) -> tuple[list[Any], list[int]]:
    # The mapped axis must not stand in for a named one that an item lacks.
    items = [_item(a, d) for a, d in zip(arrays, dims, strict=True)]
    sizes = call.solve(items).sizes
    moved = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(arrays, dims, strict=True)]
    mapped = [dim is not None for dim in dims]
    takes = [spec.batch for spec, is_mapped in zip(call.inputs, mapped, strict=True) if is_mapped]
    folds = all(takes) and all(spec.batch for spec in call.made)
    if not folds and not _is_spread(arrays):
        pairs = zip(call.inputs, items, mapped, strict=True)
        shapes = [(spec, item.shape) for spec, item, is_mapped in pairs if is_mapped]
        if name := shared_axis(call.op.independent, shapes, call.made):
            return _merge(call, moved, mapped, name, sizes[name])
    results = (_fold if folds else _loop)(call, moved, mapped)
    return results, [0] * len(results)


def _item(array: Any, dim: int | None) -> Any:
    """What one item is to the mapped function."""
    aval = jax.typeof(array)
    shape = tuple(size for axis, size in enumerate(aval.shape) if axis != dim)
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _is_spread(arrays: Sequence[Any]) -> bool:
    """Whether it is a part of types which axes are spread over devices: two do not become one."""
    return any(name is not None for array in arrays for name in jax.typeof(array).sharding.spec)


def _fold(call: Call, arrays: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    """One call with the mapped axis in front of all leading axes."""
    ranks = [a.ndim - m - len(s.axes) for s, a, m in zip(call.inputs, arrays, mapped, strict=True)]
    placed = [
        jnp.expand_dims(array, tuple(range(1, 1 + max(ranks) - rank))) if is_mapped else array
        for array, is_mapped, rank in zip(arrays, mapped, ranks, strict=True)
    ]
    return bind(call, placed)


def _merge(
    call: Call, arrays: Sequence[Any], mapped: Sequence[bool], name: str, size: int
) -> tuple[list[Any], list[int]]:
    """One call with the items one behind the other along an axis, which has a size in each."""
    count = next(array.shape[0] for array, m in zip(arrays, mapped, strict=True) if m)
    placed = []
    for spec, array, is_mapped in zip(call.inputs, arrays, mapped, strict=True):
        place = place_of(name, spec)
        if not place or spec.is_absent(array.shape):
            placed.append(array)
            continue
        each = array if is_mapped else jnp.broadcast_to(array, (count, *array.shape))
        axis = each.ndim - 1 + place
        each = jnp.moveaxis(each, 0, axis)
        placed.append(_sized(each, axis, 2, (count * size,)))
    results = bind(call, placed)
    axes = [r.ndim + place_of(name, s) for s, r in zip(call.made, results, strict=True)]
    pairs = zip(results, axes, strict=True)
    return [_sized(result, axis, 1, (count, size)) for result, axis in pairs], axes


def _sized(array: Any, axis: int, axes: int, sizes: Sequence[Any]) -> Any:
    """The array with axes of these sizes in place of some that begin with `axis`."""
    return array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + axes :])


def _loop(call: Call, arrays: Sequence[Any], mapped: Sequence[bool]) -> list[Any]:
    """One call per item: the op has no leading axes to fold the mapped one into."""

    def loop(*arrays: Any) -> list[Any]:
        def one(items: Sequence[Any]) -> list[Any]:
            left = iter(items)
            pairs = zip(arrays, mapped, strict=True)
            return bind(call, [next(left) if is_mapped else array for array, is_mapped in pairs])

        items = [array for array, is_mapped in zip(arrays, mapped, strict=True) if is_mapped]
        results: list[Any] = jax.lax.map(one, items)
        return results

    with explained(call.op.name):
        return _along_items(loop, arrays, mapped)


def _along_items(
    loop: Callable[..., list[Any]], arrays: Sequence[Any], mapped: Sequence[bool]
) -> list[Any]:
    """A loop over the first axis of what is mapped: where that is spread, each device has its own.

    JAX itself loops over an axis only if all devices have it whole.
    """
    avals = [jax.typeof(array) for array in arrays]
    # JAX has made sure that it is the same for all of them.
    names = next(aval.sharding.spec[0] for aval, m in zip(avals, mapped, strict=True) if m)
    if names is None:
        return loop(*arrays)
    mesh, own, whole = mesh_of(avals), PartitionSpec(names), PartitionSpec()
    taken = getattr(get_axis_env(), "explicit_mesh_axis_names", ())
    if not set(mesh.axis_names).isdisjoint(taken):  # JAX 0.8: `vmap` has the axis for itself
        results = loop(*(reshard(array, NamedSharding(mesh, whole)) for array in arrays))
        return [reshard(result, NamedSharding(mesh, own)) for result in results]
    specs = tuple(own if is_mapped else whole for is_mapped in mapped)
    pairs = zip(arrays, specs, strict=True)
    placed = [reshard(array, NamedSharding(mesh, spec)) for array, spec in pairs]
    parts: Any = jax.shard_map(loop, mesh=mesh, in_specs=specs, out_specs=own)
    return list(parts(*placed))


batching.primitive_batchers[primitive] = _rule
