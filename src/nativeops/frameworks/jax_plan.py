# SPDX-License-Identifier: Apache-2.0
"""Ops on arrays that are spread over devices: what may stay apart follows from the signature.

Leading axes may always be spread. So may the named axes that the op declares to be independent: a
result with such an axis is made of its parts, and one without it is the sum over them. Along any
other axis a device must have all numbers.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import NamedSharding, PartitionSpec

from nativeops.signature import ArraySpec

if TYPE_CHECKING:
    from nativeops.frameworks.jax_call import Call

Label = int | str | None  # a leading axis counted from the right, an independent axis, or neither


def labels(call: "Call", spec: ArraySpec, shape: Sequence[Any]) -> list[Label]:
    """What may be spread of an array, per axis."""
    if spec.is_absent(shape):
        return [None] * len(shape)
    lead = len(shape) - len(spec.axes)
    spread = all(made.batch for made in call.made)
    found: list[Label] = [lead - i if spread and shape[i] != 1 else None for i in range(lead)]
    names = [axis.name for axis in spec.axes]
    return found + [name if name in call.op.independent else None for name in names]


class Plan:
    """How the arrays of a call are spread: which axes of the mesh, by label."""

    def __init__(
        self, call: "Call", mesh: Any, specs: Sequence[ArraySpec], arrays: Sequence[Any]
    ) -> None:
        self.call, self.mesh = call, mesh
        self.chosen: dict[Label, tuple[str, ...]] = {}
        taken: set[str] = set()
        for spec, array in zip(specs, arrays, strict=True):
            for label, size, entry in zip(
                labels(call, spec, array.shape), array.shape, _entries(array), strict=True
            ):
                axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
                parts = math.prod(mesh.shape[axis] for axis in axes)
                free = axes and not taken & set(axes) and label not in self.chosen
                if label is not None and free and size % parts == 0:
                    self.chosen[label] = axes
                    taken.update(axes)

    def spec(self, spec: ArraySpec, shape: Sequence[Any]) -> PartitionSpec:
        """How one array is spread."""
        entries = [self.chosen.get(label) for label in labels(self.call, spec, shape)]
        return PartitionSpec(*(e[0] if e and len(e) == 1 else e for e in entries))

    def sharding(self, spec: ArraySpec, array: Any) -> NamedSharding:
        """The same with the mesh."""
        return NamedSharding(self.mesh, self.spec(spec, array.shape))

    def summed(self, spec: ArraySpec) -> tuple[str, ...]:
        """The mesh axes over which the parts of a result must be summed."""
        own = {axis.name for axis in spec.axes}
        chosen = self.chosen.items()
        return tuple(
            a for label, axes in chosen for a in axes if isinstance(label, str) and label not in own
        )


def _entries(array: Any) -> tuple[Any, ...]:
    spec = tuple(getattr(array.sharding, "spec", ()))
    return spec + (None,) * (len(array.shape) - len(spec))


def rule(call: "Call", takes: Sequence[Sequence[int]], gives: Sequence[Sequence[int]]) -> str:
    """The signature as Shardy reads it: one word per axis, alike where axes are spread alike."""
    words: dict[Any, str] = {}

    def side(specs: Sequence[ArraySpec], shapes: Sequence[Sequence[int]]) -> str:
        arrays = []
        for spec, shape in zip(specs, shapes, strict=True):
            keys = [object() if x is None else x for x in labels(call, spec, shape)]
            arrays.append(" ".join(words.setdefault(key, f"a{len(words)}") for key in keys))
        return ", ".join(arrays)

    return f"{side(call.inputs, takes)} -> {side(call.made, gives)}"
