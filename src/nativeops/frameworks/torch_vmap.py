# SPDX-License-Identifier: Apache-2.0
"""`torch.func.vmap` over any op: a mapped axis becomes a leading axis where the op has them.

Where it has none, the mapped axis becomes a part of an independent one, or the op is called in a
loop."""

from typing import TYPE_CHECKING, Any

import torch

from nativeops.frameworks.vmap import place_of, shared_axis

if TYPE_CHECKING:
    from nativeops.call import Op
    from nativeops.frameworks.torch_handle import Handle


def vmap_rule(handle: "Handle") -> Any:
    """The rule for `torch.library.register_vmap`."""
    signature = handle.op.signature
    specs = signature.inputs
    folds = all(spec.batch for spec in (*specs, *signature.outputs))

    def rule(info: Any, in_dims: Any, *values: Any) -> Any:
        # The mapped axis must not stand in for a named one that an item lacks.
        items = tuple(map(_item, values, in_dims))
        made = handle.outputs(items)
        # An output that was not made is the same empty tensor for all items.
        mask = values[-1] if signature.selective else -1
        dims = [0 if mask >> i & 1 else None for i in range(len(signature.outputs))]
        if folds:
            outputs = _fold(in_dims, values)
        elif name := _shared(handle.op, items, in_dims, dims):
            merged = _merge(specs, name, info.batch_size, in_dims, values)
            outputs = _tuple(handle.full(*merged))
            dims, outputs = _split(signature.outputs, name, info.batch_size, dims, made, outputs)
        elif info.batch_size > 0:
            outputs = _loop(handle, info.batch_size, in_dims, values)
        else:
            outputs = [values[0].new_empty((0, *shape), dtype=dtype) for shape, dtype in made]
        return (tuple(outputs), tuple(dims)) if len(outputs) > 1 else (outputs[0], dims[0])

    def _fold(in_dims: Any, values: Any) -> list[Any]:
        """One call with the mapped axis in front of all leading axes."""
        rank = max(
            value.dim() - len(spec.axes) - (dim is not None)
            for spec, value, dim in zip(specs, values, in_dims, strict=False)
        )
        arrays = []
        for spec, value, dim in zip(specs, values, in_dims, strict=False):
            if dim is None:
                arrays.append(value)
                continue
            moved = value.movedim(dim, 0)
            missing = rank - (moved.dim() - 1 - len(spec.axes))
            arrays.append(moved.reshape(moved.shape[0], *[1] * missing, *moved.shape[1:]))
        return _tuple(handle.full(*arrays, *values[len(specs) :]))

    return rule


def _shared(op: "Op[Any]", items: Any, in_dims: Any, dims: Any) -> str:
    """The axis in which the items may lie one behind the other."""
    takes = zip(op.signature.inputs, items, in_dims, strict=False)
    gives = zip(op.signature.outputs, dims, strict=True)
    mapped = [(spec, item.shape) for spec, item, dim in takes if dim is not None]
    wanted = [spec for spec, dim in gives if dim is not None]
    return shared_axis(op.independent, mapped, wanted)


def _merge(specs: Any, name: str, count: int, in_dims: Any, values: Any) -> list[Any]:
    """The arguments with the items one behind the other along an axis."""
    arrays = [*values]
    for i, (spec, value, dim) in enumerate(zip(specs, values, in_dims, strict=False)):
        place = place_of(name, spec)
        if place and not spec.is_absent(value.shape):
            each = value.expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
            axis = each.dim() - 1 + place
            arrays[i] = each.movedim(0, axis).flatten(axis, axis + 1)
    return arrays


def _split(
    specs: Any, name: str, count: int, dims: Any, made: Any, outputs: list[Any]
) -> tuple[list[int | None], list[Any]]:
    """The outputs of items one behind the other, with an axis for the items."""
    places = [
        None if dim is None else len(shape) + place_of(name, spec)
        for dim, (shape, _), spec in zip(dims, made, specs, strict=True)
    ]
    return places, [
        output if place is None else output.unflatten(place, (count, shape[place]))
        for output, place, (shape, _) in zip(outputs, places, made, strict=True)
    ]


def _loop(handle: "Handle", size: int, in_dims: Any, values: Any) -> list[Any]:
    """One call per item: the op has no axis to take the mapped one."""
    items = [
        _tuple(
            handle.full(
                *(
                    value if dim is None else value.select(dim, i)
                    for value, dim in zip(values, in_dims, strict=True)
                )
            )
        )
        for i in range(size)
    ]
    return [torch.stack(parts) for parts in zip(*items, strict=True)]


def _item(value: Any, dim: int | None) -> Any:
    """What one item is to the mapped function, without its numbers."""
    if dim is None:
        return value
    shape = [size for axis, size in enumerate(value.shape) if axis != dim % value.dim()]
    return value.new_empty(()).expand(shape)


def _tuple(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]
