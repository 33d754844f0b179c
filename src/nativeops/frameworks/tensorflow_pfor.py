# SPDX-License-Identifier: Apache-2.0
"""`tf.vectorized_map` and jacobians over any op: the mapped axis becomes a leading axis of it."""

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

if TYPE_CHECKING:
    from nativeops.frameworks.tensorflow_handle import Handle

_handles: dict[str, "Handle"] = {}  # by the name of the nodes; the last one declared


def connect_pfor(handle: "Handle") -> None:
    """Register how a node is vectorised. Ops without leading axes are left to a loop."""
    name = handle.name
    signature = handle.op.signature
    if not all(spec.batch for spec in (*signature.inputs, *signature.outputs)):
        return
    if name not in _handles:
        pfor.RegisterPFor(name)(lambda given: _vectorise(_handles[name], given))
    _handles[name] = handle  # last: if it is interrupted, the next call begins anew


def _vectorise(handle: "Handle", given: Any) -> list[Any]:
    """One node for all items, with the mapped axis in front of all leading axes."""
    specs = handle.op.signature.inputs
    inputs = [given.input(i) for i in range(len(specs))]
    ranks = [one.t.shape.rank for one in inputs]
    if None in ranks:
        raise pfor.ConversionNotImplementedError("the number of axes is not known")
    leads = [
        rank - len(spec.axes) - one.is_stacked
        for rank, spec, one in zip(ranks, specs, inputs, strict=True)
    ]
    tensors = []
    for one, lead in zip(inputs, leads, strict=True):
        tensor = one.t
        for _ in range(max(leads) - lead if one.is_stacked else 0):
            tensor = tf.expand_dims(tensor, 1)
        tensors.append(tensor)
    call = handle.read(given.op)
    node, mask = handle.build_recorded(tensors, call)
    # An output that was not made is the same empty tensor for all items.
    made = [bool(mask >> bit & 1) for bit in range(len(node.outputs))]
    return [pfor.wrap(output, each) for output, each in zip(node.outputs, made, strict=True)]
