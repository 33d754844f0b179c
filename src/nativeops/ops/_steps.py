# SPDX-License-Identifier: Apache-2.0
"""The steps of a recurrent layer in NumPy, one sequence after the other: what references share."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from nativeops.call import Op
from nativeops.declare import op

# How exact the products are; the kernels know "high" by its place (devices/recurrent.h).
Precision = Literal["default", "highest", "high"]
# "high" takes a·b as three products of bf16. With a = a₁ + a₂ + a₃, where a₁ is the nearest bf16
# and a₂ the one nearest to the rest, |a₂| is at most 2^-9 |a| and |a₃| 2^-18 |a|. What is left out
# are a₂·b₂, a₃·b and a·b₃, each at most 2^-18 |a·b|.
_ROUNDING = {("precision", "high"): 3 * 2.0**-18}

# How a layer of steps and its gradient are declared.
layer_op = partial(op, independent="b", carries="t", rounding=_ROUNDING)


def order(steps: int, lengths: Any, b: int, reverse: bool) -> list[int]:
    """The times of sequence `b` in the order in which it is walked."""
    times = range(steps if lengths is None else int(lengths[b]))
    return list(reversed(times) if reverse else times)


def initial(state: Any, b: int, like: Any, units: int) -> Any:
    """A state before the first step: zeros where none is given."""
    return np.zeros(units, like.dtype) if state is None else state[b]


def sums(weight: Any, bias: Any, vector: Any) -> Any:
    """The product with a vector, and the bias if there is one."""
    return weight @ vector + (0 if bias is None else bias)


def forward(
    cell: Callable[..., tuple[Any, ...]],
    kept_sizes: tuple[int, ...],
    x: Any,
    weights: tuple[Any, ...],
    states: tuple[Any, ...],
    lengths: Any,
    reverse: bool,
    units: int | None = None,
) -> tuple[Any, ...]:
    """The outputs, the final states, and what is kept of each step.

    Args:
        cell: From both sums and the states to the states after the step and what is kept.
        kept_sizes: How many numbers a step keeps of each, in units.
        x: As the op has it.
        weights: ``w_ih, w_hh, b_ih, b_hh``.
        states: The initial states; the first is the output.
        lengths: As the op has it.
        reverse: As the op has it.
        units: How many there are, if not as many as numbers in the first state.
    """
    w_ih, w_hh, b_ih, b_hh = weights
    (steps, batch, _), width = x.shape, w_hh.shape[1]
    units = width if units is None else units
    output = np.zeros((steps, batch, width), x.dtype)
    final = [np.zeros((batch, units if n else width), x.dtype) for n in range(len(states))]
    kept = [np.zeros((steps, batch, size * units), x.dtype) for size in kept_sizes]
    for b in range(batch):
        now = [initial(s, b, x, len(f[b])) for s, f in zip(states, final, strict=True)]
        for t in order(steps, lengths, b, reverse):
            *now, parts = cell(sums(w_ih, b_ih, x[t, b]), sums(w_hh, b_hh, now[0]), *now)
            output[t, b] = now[0]
            for array, part in zip(kept, parts, strict=True):
                array[t, b] = part
        for array, state in zip(final, now, strict=True):
            array[b] = state
    return (output, *final, *kept)


def backwards(
    steps: int, lengths: Any, batch: int, reverse: bool
) -> Iterator[tuple[int, int, int | None]]:
    """Sequence, time and the time of the step before (None at the first), from the last step."""
    for b in range(batch):
        times = order(steps, lengths, b, reverse)
        for s in reversed(range(len(times))):
            yield b, times[s], times[s - 1] if s else None


def products(d_x_sums: Any, d_h_sums: Any, x: Any, h_before: Any, w_ih: Any) -> tuple[Any, ...]:
    """The gradients of x, both weights and both biases from those of the sums."""
    return (
        d_x_sums @ w_ih,
        np.einsum("tbg,tbi->gi", d_x_sums, x),
        np.einsum("tbg,tbh->gh", d_h_sums, h_before),
        d_x_sums.sum((0, 1)),
        d_h_sums.sum((0, 1)),
    )


def example(random: Any, given: Any, gates: int, states: tuple[str, ...]) -> dict[str, Any]:
    """Valid arguments of a layer: lengths from 0 to the number of steps.

    Weights are so small that rounding does not grow from step to step.
    """
    t, b, i, h = (given[name] for name in "tbih")
    p = given.get("p", h)  # of a projected state
    shapes = {"x": (t, b, i), "w_ih": (gates * h, i), "w_hh": (gates * h, p)}
    shapes |= {"w_hr": (p, h)} if "p" in given else {}
    shapes |= dict.fromkeys(("b_ih", "b_hh"), (gates * h,))
    shapes |= {state: (b, h if n else p) for n, state in enumerate(states)}
    shapes |= {"peepholes": (3 * h,)} if gates == 4 else {}
    arrays = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    for name in arrays.keys() & {"w_ih", "w_hh", "w_hr"}:
        arrays[name] /= 1 + arrays[name].shape[1]
    if "peepholes" in arrays:
        arrays["peepholes"] /= 8
    return {**arrays, "lengths": random.integers(0, t + 1, b).astype(np.int32)}


def connect(layer: Op[Any], grad: Op[Any]) -> None:
    """Declare the op `grad` as a layer's gradient, and examples for it.

    It has arguments of the names of the layer's arguments and results and of what arrives at those.
    With ``low_memory`` it is given the biases, otherwise the gates, of which they are a part. The
    gradients of both biases may be one, ``d_b``.
    """
    inputs = [spec.name for spec in grad.signature.inputs]
    attributes = [spec.name for spec in grad.signature.attributes]
    made = {spec.name for spec in grad.signature.outputs}
    floats = [f"d_{spec.name}" for spec in layer.signature.inputs if spec.kind == "Float"]
    of = {name: name if name in made else re.sub("_[ih]h", "", name) for name in floats}
    has_low = any(spec.name == "low_memory" for spec in layer.signature.attributes)

    asked = [name for name in layer.signature.names()[1:] if name in {*inputs, *attributes}]
    asked += [name for name in inputs if name not in asked]
    asked += ["low_memory"] * has_low + ["needs"]

    def pick(without: tuple[str, ...]) -> Callable[[Any], Any]:
        wanted = [-1 if name.startswith(without) else asked.index(name) for name in inputs]
        return itemgetter(*wanted)

    pick_low, pick_all = pick(("gates",)), pick(("b_ih", "b_hh"))
    of_attributes = [(name, asked.index(name)) for name in attributes]
    made_at = [spec.name for spec in grad.signature.outputs].index
    pick_results = itemgetter(*[made_at(name) for name in of.values()])
    only: dict[Any, Any] = {}  # the ops of what was needed so far

    def rule(*given: Any, **named: Any) -> Any:  # all by place, or all by name
        values = (*(given or [named[name] for name in asked]), None)
        low_memory, needs = has_low and values[-3], values[-2]
        if needs not in only:
            only[needs] = grad.only(tuple(dict.fromkeys([of[name] for name in needs])))
        return pick_results(
            only[needs](
                *(pick_low if low_memory else pick_all)(values),
                **{name: values[place] for name, place in of_attributes},
            )
        )

    vars(rule)["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in asked]
    )
    layer.gradient(rule)
    layer.keep_only_with(
        **{name: "low_memory" for name in inputs if name.startswith("b_") and has_low}
    )
    grad.example(partial(_grad_example, layer=layer, grad=grad))


def _grad_example(random: Any, given: Any, layer: Op[Any], grad: Op[Any]) -> dict[str, Any]:
    """Valid arguments of a layer's gradient: what the layer made of an example."""
    assert layer.make_example is not None
    chosen = {a.name: given[a.name] for a in layer.signature.attributes if a.name in given}
    arguments = {**layer.make_example(random, given)}
    results = layer.reference(**arguments, **chosen)._asdict()
    arrays = {**arguments, **results}
    arrays |= {f"d_{name}": random.standard_normal(array.shape) for name, array in results.items()}
    return {spec.name: arrays[spec.name] for spec in grad.signature.inputs}
