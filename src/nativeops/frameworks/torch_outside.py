# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's compiler leaves its program for.

A file of its own, imported while a program is traced: the decorator loads the whole compiler.
"""

from typing import Any

import torch

_REASON = "it asks for the numbers of a tensor: give these as a list"


@torch.compiler.disable(reason=_REASON)  # type: ignore[no-untyped-call, untyped-decorator]
def outside(function: Any, *arguments: Any) -> Any:
    """What a function gives, for which PyTorch's compiler leaves its program, or refuses to."""
    return function(*arguments)
