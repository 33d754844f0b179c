# SPDX-License-Identifier: Apache-2.0
"""An op inside a function that a framework compiles: `jax.jit`, `tf.function`, `torch.compile`."""

from collections.abc import Callable
from typing import Any

from nativeops.call import Op
from nativeops.frameworks import framework_of


class CompiledOp:
    """Called as the op itself, by name; compiled per set of attributes."""

    def __init__(self, op: Op[Any], compiled: Callable[[Any], Callable[..., Any]]) -> None:
        self.op = op
        self.signature, self.result = op.signature, op.result
        self._compiled = compiled
        self._functions: dict[str, Callable[..., Any]] = {}

    def __call__(self, /, **arguments: Any) -> Any:
        """Arrays are arguments of the compiled function; all else is a constant in it."""
        names = [spec.name for spec in self.signature.inputs]
        places = [name for name in names if framework_of(type(arguments.get(name)))]
        fixed = {name: value for name, value in arguments.items() if name not in places}
        key = repr(fixed)
        if key not in self._functions:
            self._functions[key] = self._compiled(_function(self.op, places, fixed))
        return self._functions[key](*(arguments[name] for name in places))


def _function(op: Op[Any], places: list[str], fixed: dict[str, Any]) -> Callable[..., Any]:
    """The op as a function of its arrays."""
    if places == [spec.name for spec in op.signature.inputs]:
        return lambda *arrays: op(*arrays, **fixed)
    return lambda *arrays: op(**dict(zip(places, arrays, strict=True)), **fixed)


def said_in(said: str, text: str, mode: str) -> bool:
    """Whether an error said our text: alone, or compiled, amid a compiler's own words."""
    if mode == "eager":
        return said == text
    return " ".join(text.split()) in " ".join(said.replace("\\n", " ").split())
