# SPDX-License-Identifier: Apache-2.0
"""Two recurrent layers, one behind the other, as one op that is derived from the op of one."""

from dataclasses import replace
from functools import partial
from typing import Any

from nativeops.call import Op, TwoLayers
from nativeops.ops import _steps
from nativeops.ops._twice import derived, width_of, words

_FORMULA = """``output = {layer}(between, ..).output`` with ``between = {layer}(x, ..).output``.
``lengths`` and the attributes are those of both layers; all else but ``x`` and ``output`` exists
twice, with ``_next`` for the second layer. On the CPU each layer is a thread's where a step is too
short to be shared by threads: the second follows the first by a few steps."""
_GRAD_FORMULA = """``d_between``, which arrives at the output of the first layer, is ``d_x`` of the
second, and ``d_x`` that of the first; the gradients of all else exist twice, with ``_next`` for the
second layer. On the CPU both are computed at once as in `{forward}`."""
_SOURCE = """El Hihi & Bengio 1995, Hierarchical recurrent neural networks for long-term
    dependencies; Graves 2013, Generating sequences with recurrent neural networks."""


def two_layers(layer: Op[Any], grad: Op[Any], kind: str) -> tuple[Op[Any], Op[Any]]:
    """Two layers of the same size, and their gradient.

    Args:
        layer: A layer whose axes of time, batch and inputs are ``t``, ``b`` and ``i``.
        grad: The op of its gradient.
        kind: What PyTorch calls it.
    """
    name = f"two_{layer.name}s"
    links = {"lengths": ("lengths",) * 2, "x": ("x", "between"), "output": ("between", "output")}
    of_layer = TwoLayers(layer, links, "between")
    texts = words(layer, kind, "num_layers=2") | {"forward": name, "source": _SOURCE}
    cost = "and t·b·{width} numbers; the workspaces of both at once where each is a thread's"
    both = _derived(name, of_layer, texts | {
        "first": "Two {what} layers in one direction over a batch of sequences.".format(**texts),
        "formula": _FORMULA,
        "returns": "``output`` of the second layer, 0 beyond the end of a sequence, and the final\n"
        "    states of both.",
        "but": "", "gradient": "for all float arguments", "same": "", "cost": cost,
    })  # fmt: skip
    links = links | {"d_x": ("d_x", "d_between"), "d_output": ("d_between", "d_output")}
    both_grad = _derived(f"{name}_grad", TwoLayers(grad, links, "d_between", True), texts | {
        "first": f"What flows back through `{name}`.",
        "formula": _GRAD_FORMULA,
        "returns": f"As `{grad.name}`, of both layers.",
        "but": ", but for the gradients of weights and biases", "gradient": "none", "cost": cost,
        "same": "the gradient of ",
    })  # fmt: skip

    @both.example
    def _(random, given):  # type: ignore[no-untyped-def]
        assert layer.make_example is not None
        first = layer.make_example(random, given)
        second = layer.make_example(random, {**given, "i": first["w_hh"].shape[1]})
        parts = {**first, **{f"{name}_next": array for name, array in second.items()}}
        return {spec.name: parts[spec.name] for spec in both.signature.inputs}

    _steps.connect(both, both_grad)
    return both, both_grad


def _derived(name: str, layers: TwoLayers, texts: dict[str, str]) -> Op[Any]:
    def explain(parameter: str) -> str:
        if parameter == "between":
            return "What passes between the layers: the first one's outputs."
        of_second = parameter.endswith("_next") or parameter in ("output", "d_output")
        return f"As in `{layers.layer.name}`{', of the second layer' * of_second}."

    declare, compute = partial(_declared, layers), partial(_computed, layers)
    return derived(name, layers, declare, compute, texts, explain)


def _declared(layers: TwoLayers, array: str, place: int, declared: Any) -> Any:
    """As the layer declares it; inputs of the second layer are as wide as outputs of the first."""
    name = layers.names(array)[place]
    if name == layers.passing and (array == "x" or layers.backwards):
        return None  # no argument of the op
    if place == 1:
        width = width_of(layers.layer)
        axes = [width if axis == "i" else axis for axis in declared.axes.split()]
        declared = replace(declared, axes=" ".join(axes))
    return replace(declared, kept=True) if name == layers.passing else declared


def _computed(layers: TwoLayers, arguments: dict[str, Any]) -> dict[str, Any]:
    """All arrays of the op, and what passes between both calls."""
    one, known = layers.layer, {**arguments}
    for place in (1, 0) if layers.backwards else (0, 1):
        names = [spec.name for spec in one.signature.inputs]
        given = {name: known[layers.names(name)[place]] for name in names}
        given |= {spec.name: known[spec.name] for spec in one.signature.attributes}
        made = one.reference(**given)._asdict()
        known |= {layers.names(name)[place]: array for name, array in made.items()}
    return known
