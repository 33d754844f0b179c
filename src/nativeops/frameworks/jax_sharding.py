# SPDX-License-Identifier: Apache-2.0
"""How JAX's transforms over several devices see an op; `jax_plan` has the rules."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import NamedSharding

from nativeops.errors import DeviceError, message
from nativeops.frameworks.jax_plan import Plan, rule
from nativeops.signature import ArraySpec

if TYPE_CHECKING:
    from nativeops.frameworks.jax_call import Call


def partitioned(call: "Call", primitive: Any) -> Any:
    """The op as a function that XLA may split over devices."""

    def plan(mesh: Any, arrays: Sequence[Any], results: Sequence[Any] = ()) -> Plan:
        specs = [*call.inputs, *call.made[: len(results)]]
        return Plan(call, mesh, specs, [*arrays, *results])

    def infer(mesh: Any, arrays: Any, results: Any) -> list[NamedSharding]:
        made = plan(mesh, arrays)
        return [made.sharding(s, r) for s, r in zip(call.made, results, strict=True)]

    def partition(mesh: Any, arrays: Any, results: Any) -> Any:
        made = plan(mesh, arrays, results)

        def part(*parts: Any) -> list[Any]:
            outputs = zip(call.made, primitive.bind(*parts, call=call), strict=True)
            pairs = [(output, made.summed(spec)) for spec, output in outputs]
            return [jax.lax.psum(output, axes) if axes else output for output, axes in pairs]

        takes = tuple(made.sharding(s, a) for s, a in zip(call.inputs, arrays, strict=True))
        gives = [made.sharding(s, r) for s, r in zip(call.made, results, strict=True)]
        return mesh, part, gives, takes

    split = custom_partitioning(lambda *arrays: primitive.bind(*arrays, call=call))
    split.def_partition(
        partition,
        infer_sharding_from_operands=infer,
        sharding_rule=lambda mesh, takes, gives: rule(
            call, [t.shape for t in takes], [t.shape for t in gives]
        ),
    )
    return split


def is_for_one_device(call: "Call", ctx: Any) -> bool:
    """Whether a program runs on one device, or says itself what each device does (`shard_map`)."""
    context = ctx.module_context.axis_context
    if not isinstance(context, mlir.SPMDAxisContext):
        return isinstance(context, mlir.ShardingContext) and context.num_devices == 1
    if set(context.manual_axes) == set(context.mesh.axis_names):
        return True
    if not jax.config.jax_use_shardy_partitioner:  # the older partitioner aborts the process
        text = "cannot run in a `shard_map` over a part of the mesh's axes with GSPMD."
        hint = 'set `jax.config.update("jax_use_shardy_partitioner", True)`, or map over all axes.'
        raise DeviceError(message(call.op.name, text, hint=hint))
    return False


def is_export(ctx: Any) -> bool:
    """Whether a program is lowered to be saved: then it cannot call back to ask how to split."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def varying(aval: Any) -> frozenset[str]:
    """The axes of a `shard_map` along which an array differs."""
    found: frozenset[str] = aval.mat.varying if hasattr(aval, "mat") else aval.vma
    return found


def unify(call: "Call", arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays, all as varying as the most varying of them, and spread as the op allows.

    Both are linear functions to JAX, so that the gradient of an array which was the same on all
    devices is summed over them.
    """
    avals = [jax.typeof(array) for array in arrays]
    everywhere = frozenset[str]().union(*map(varying, avals))
    if everywhere:
        pairs = [(array, everywhere - varying(a)) for array, a in zip(arrays, avals, strict=True)]
        arrays = [_vary(array, tuple(sorted(axes))) if axes else array for array, axes in pairs]
    if any(entry is not None for aval in avals for entry in aval.sharding.spec):
        call.solve(avals)  # a plan is of arguments that fit
        plan = Plan(call, mesh_of(avals), call.inputs, avals)
        wanted = [plan.spec(s, a.shape) for s, a in zip(call.inputs, avals, strict=True)]
        arrays = [
            array if aval.sharding.spec == spec else reshard(array, NamedSharding(plan.mesh, spec))
            for array, aval, spec in zip(arrays, avals, wanted, strict=True)
        ]
    return arrays


def mesh_of(avals: Sequence[Any]) -> Any:
    """The mesh that arrays are spread over; an empty one if there is none."""
    meshes = [aval.sharding.mesh for aval in avals]
    return next((mesh for mesh in meshes if not mesh.empty), meshes[0])


def types(
    call: "Call", avals: Sequence[Any], specs: Sequence[ArraySpec], shapes: Any, dtypes: Any
) -> list[Any]:
    """The types of results: as varying as the inputs, and spread as those allow."""
    like = max(avals, key=lambda aval: len(varying(aval)))
    plan = Plan(call, mesh_of(avals), call.inputs, avals)
    return [
        like.update(
            shape=shape,
            dtype=dtype,
            weak_type=False,
            sharding=NamedSharding(plan.mesh, plan.spec(spec, shape)),
        )
        for spec, shape, dtype in zip(specs, shapes, dtypes, strict=True)
    ]


def _vary(array: Any, axes: tuple[str, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, axes, to="varying")
    return jax.lax.pvary(array, axes)  # JAX 0.6


def reshard(array: Any, sharding: NamedSharding) -> Any:
    """The array, spread in another way."""
    for module in (jax, jax.sharding):  # JAX 0.9, JAX 0.8
        if hasattr(module, "reshard"):
            return module.reshard(array, sharding)
    from jax.experimental import shard  # JAX 0.6

    return shard.reshard(array, sharding)
