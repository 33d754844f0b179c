# SPDX-License-Identifier: Apache-2.0
"""Faster layers in the models of others."""

import sys
from dataclasses import dataclass, field
from typing import Any

from nativeops.errors import ArgumentError, message
from nativeops.layers._checks import checked
from nativeops.ops._steps import Precision
from nativeops.signature import VARIABLES


@dataclass(frozen=True)
class Accelerated:
    """The names of the layers that `accelerate` swapped, and why it left others."""

    swapped: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"swapped {_shown(name)}" for name in self.swapped]
        lines += [f"left {_shown(name)}: {why}" for name, why in self.left.items()]
        return "\n".join(lines) or "there is no recurrent layer"


def accelerate(model: Any, *, precision: Precision = "default") -> Accelerated:
    """Swap each recurrent layer of a PyTorch model for this package's, in place.

    Each ``torch.nn.LSTM``, ``GRU`` and ``RNN`` becomes the layer of that name in
    ``nativeops.layers.torch``. It stays the same object: parameters, hooks, name, mode, and every
    place that shares it, also optimizers. Calling it again changes nothing. Code that asks for its
    class, as ``isinstance(layer, torch.nn.LSTM)``, does not find that any more. A layer on a GPU
    stays as it is: move the model there afterwards to have it swapped.

    Args:
        model: A ``torch.nn.Module``, or one of these layers itself.
        precision: Of the layers that are swapped: see `lstm_layer`.

    Returns: what it swapped and what it left, and why; ``print`` it.
    Raises: ``ArgumentError`` for what is no module, ``RangeError`` for an unknown precision.
    Gradient: as of the model.
    Cost: O(number of layers) time; no memory.
    Same as: no equivalent.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.LSTM(80, 256), torch.nn.LSTM(256, 9, proj_size=2))
    >>> print(nativeops.accelerate(model))
    swapped 0
    swapped 1
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        text = f"`model` must be a torch.nn.Module, but is {type(model).__name__}."
        raise ArgumentError(message("accelerate", text))
    from nativeops.layers.torch import FUSED

    checked("accelerate", "precision", precision)
    report = Accelerated()
    for name, module in model.named_modules():
        why = _obstacle(torch, module, FUSED)
        if why is None:
            module.__class__ = FUSED[type(module)]
            module.precision = precision
            report.swapped.append(name)
        elif why:
            report.left[name] = why
    return report


def _obstacle(torch: Any, module: Any, fused: dict[Any, Any]) -> str | None:
    """Why a module stays as it is; None if it can be swapped, empty if nobody would ask."""
    if isinstance(module, tuple(fused.values())):
        return "it is fused already"
    if isinstance(module, torch.jit.ScriptModule):
        known = module.original_name in {kind.__name__ for kind in fused}
        return "it is compiled by TorchScript" if known else ""
    base = next((kind for kind in fused if isinstance(module, kind)), None)
    if base is None:
        return ""
    if type(module) is not base:
        return f"its class {type(module).__name__} is derived from torch.nn.{base.__name__}"
    if "forward" in vars(module):  # as tools that wrap it do; a class would be asked in vain
        return "its method `forward` was replaced"
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in module.parameters()}
    if dtypes := dtypes - set(VARIABLES["Float"]):
        return f"it is of {min(dtypes)}, for which there is no kernel"
    devices = {str(weight.device) for weight in module.parameters()} - {"cpu", "meta"}
    if devices:
        return f"it is on {min(devices)}, where PyTorch has fused layers of its own"
    return None


def _shown(name: str) -> str:
    return name or "the model itself"
