# SPDX-License-Identifier: Apache-2.0
"""Optional inputs: one that is absent travels as an array whose axes are all empty.

So the operands of a compiled, saved or mapped program are the same whether it is given or not, and
only the surface of a call and a gradient rule know of None.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nativeops.arrays import dtype_name
from nativeops.call import Op
from nativeops.signature import ACCUM, VARIABLES

# Makes a framework's empty array: rank, dtype (the framework's, or its name), the call's arrays.
Maker = Callable[[int, Any, Sequence[Any]], Any]


class Absent:
    """Fills in the absent inputs of an op's calls."""

    def __init__(self, op: Op[Any], make: Maker) -> None:
        specs = op.signature.inputs
        self.required, self.make = op.signature.required, make
        self.names = [spec.name for spec in specs]
        self.wanted = [(len(spec.axes), spec.dtypes[0]) for spec in specs]
        # The inputs that must have the same dtype; that of sums follows from one that is there.
        self.alike = [
            [i for i, s in enumerate(specs) if s.kind == spec.kind and s.kind in VARIABLES]
            for spec in specs
        ]
        kinds = [spec.kind for spec in specs]
        self.sums = {i: kinds.index("Float") for i, kind in enumerate(kinds) if kind == "Accum"}

    def take(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The call with all optional inputs among the arguments without a keyword."""
        if not self.required <= len(args) <= len(self.names):
            return args, kwargs  # `Op.bind` finds what is where, or what is wrong
        left = dict(kwargs)
        return self.fill([*args, *(left.pop(name, None) for name in self.names[len(args) :])]), left

    def fill(self, arrays: Sequence[Any]) -> list[Any]:
        """All inputs with an empty array for each that is absent, and what comes after them."""
        filled = [*arrays]
        for place in range(self.required, len(self.names)):
            if arrays[place] is None:
                rank, dtype = self.wanted[place]
                for other in self.alike[place]:
                    if arrays[other] is not None:
                        dtype = getattr(arrays[other], "dtype", dtype)
                        break
                if place in self.sums:
                    dtype = _dtype_of_sums(arrays[self.sums[place]])
                filled[place] = self.make(rank, dtype, arrays)
        return filled


def _dtype_of_sums(array: Any) -> str:
    return ACCUM.get(dtype_name(array), "float32") if hasattr(array, "dtype") else "float32"


def absent(op: Op[Any], make: Maker) -> Absent | None:
    """What fills in the absent inputs of an op; None if all its inputs are required."""
    return Absent(op, make) if op.signature.required < len(op.signature.inputs) else None


def without_absent(
    op: Op[Any], known: Mapping[str, Any], shape: Callable[[Any], Sequence[Any]]
) -> dict[str, Any]:
    """What a gradient rule is given: None where an input is absent."""
    optional = op.signature.inputs[op.signature.required :]
    gone = [s.name for s in optional if s.name in known and s.is_absent(shape(known[s.name]))]
    return {**known, **dict.fromkeys(gone)}
