# SPDX-License-Identifier: Apache-2.0
"""One op as PyTorch's dispatcher knows it; its kernel is a function in C.

Two overloads serve one op. `default` is what compilers, exporters and transforms see; it has an
Autograd kernel of ours that is also right under `torch.func`. `no_grad` has none and is taken when
eager code needs no gradient, or from inside the gradient's own function: it costs half as much.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from nativeops.call import Op
from nativeops.library import extension, lock_over_forks

SPACE, INTO = "nativeops", "nativeops_into"
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_SCHEMA = {int: "int", float: "float", bool: "bool", str: "int"}

LIBRARY: Any = torch.library.Library(SPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
# Apart, as it is made later than the overloads of the same name: see `name_of`.
_APART: Any = torch.library.Library(INTO, "FRAGMENT")  # type: ignore[no-untyped-call]

_registering = lock_over_forks()
# By key, as a notebook may declare an op again; here, as the adapter's import may be interrupted.
_registered: dict[str, Any] = {}


def once(makers: Mapping[str, Callable[[], Any]]) -> Mapping[str, Any]:
    """What the functions register, by key; one is called for each key, and never interrupted.

    PyTorch takes no name twice, so half of an op could not be mended. Handlers of signals run in
    the main thread: what they raise (Ctrl-C) reaches the caller, while another thread goes on.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with _registering:
                for key, make in makers.items():
                    if key not in _registered:
                        _registered[key] = make()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return _registered


def register(op: Op[Any], name: str) -> Any:
    """The op under a name, with its results as new tensors."""
    n = len(op.signature.outputs)
    gives = "Tensor" if n == 1 else f"({', '.join(['Tensor'] * n)})"
    return _implement(op, LIBRARY, SPACE, f"{name}({', '.join(_takes(op))}) -> {gives}")


def name_of(op: Op[Any]) -> str:
    """What PyTorch calls an op; another version is another op to it, not an overload.

    PyTorch ends a process badly if an op gets an overload with other arguments after its first use.
    """
    return op.key.replace(".", "_")


def register_into(op: Op[Any]) -> Any:
    """The op that writes its results into its last arguments, one for each output."""
    outs = [f"Tensor(a{n}!) out{n}" for n in range(len(op.signature.outputs))]
    name, takes = name_of(op), [*_takes(op), *outs]
    schema = f"{name}({', '.join(takes)}) -> ()"
    key = f"{INTO}::{name}"
    return once({key: partial(_implement, op, _APART, INTO, schema)})[key]


def _takes(op: Op[Any]) -> list[str]:
    signature = op.signature
    takes = [f"Tensor {spec.name}" for spec in signature.inputs]
    takes += [f"{_SCHEMA[spec.type]} {spec.name}" for spec in signature.attributes]
    return takes + ["int want"] * signature.selective


def _implement(op: Op[Any], library: Any, space: str, schema: str) -> Any:
    library.define(schema, tags=_TAGS)
    name = schema.partition("(")[0]
    for key in ("CPU", "CUDA"):
        extension().implement_torch(op.id, space, name, key, space == INTO)
    base, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")
