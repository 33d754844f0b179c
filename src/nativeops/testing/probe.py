# SPDX-License-Identifier: Apache-2.0
"""Whether a framework works here: ``python -m nativeops.testing.probe FRAMEWORK DEVICE OP...``.

In a process of its own, because importing some frameworks takes seconds, or fails in ways that end
the process. It prints a JSON object: what was tried, and what is wrong with it, if anything.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from nativeops.call import Op
from nativeops.registry import find
from nativeops.testing.case import Case
from nativeops.testing.gradients import check_gradient
from nativeops.testing.matrix import cases, modes

ABSENT = "absent"  # what is wrong if the framework has no such device


def probe(framework: str, device: str, ops: Sequence[Op[Any]]) -> dict[str, str]:
    """The plainest case of each op: its value and its gradient; of the first one compiled, too."""
    if device == "cuda" and not finds_gpu(framework):
        return {ABSENT: "it finds no GPU"}
    eager = [next(cases(op, framework, device)) for op in ops]
    tries: dict[str, Callable[[], None]] = {"value": lambda: _try([_value], eager)}
    if "compiled" in modes(framework):
        compiled = [next(cases(op, framework, device, "compiled")) for op in ops[:1]]
        tries["gradient"] = lambda: _try([check_gradient], eager)
        tries["compiled"] = lambda: _try([_value, check_gradient], compiled)
    return {what: _complaint(attempt) for what, attempt in tries.items()}


def finds_gpu(framework: str) -> bool:
    """Whether PyTorch or JAX finds a GPU; JAX takes memory only as it needs it."""
    if framework == "torch":
        return bool(import_module("torch").cuda.is_available())
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        return bool(import_module("jax").devices("gpu"))
    except RuntimeError:
        return False


def _try(checks: Sequence[Callable[[Case], None]], tried: Sequence[Case]) -> None:
    for case in tried:
        with case.scope():
            for check in checks:
                check(case)


def _value(case: Case) -> None:
    case.check_values(case.results())


def _complaint(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except Exception as error:  # whatever it is, the others are still tried
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], sys.argv[2], [find(name) for name in sys.argv[3:]])))
