# SPDX-License-Identifier: Apache-2.0
"""Cases under AddressSanitizer, in a child process that its library was loaded into first."""

from typing import Any

from nativeops.call import Op
from nativeops.checking import invoke, source
from nativeops.checking.finding import Case, Steps, found
from nativeops.testing import cases, installed

MEMORY = "address,undefined"


def memory_steps(op: Op[Any]) -> Steps:
    """Arrays of exactly their size, which AddressSanitizer watches the ends of."""
    invoke.use(op, "cpu", MEMORY)
    for case in cases(op):
        usable = "bfloat16" not in case.dtypes.values() or installed("ml_dtypes")
        if not usable or case.layout not in ("contiguous", "transposed", "backwards"):
            continue
        yield Case(str(case))  # before it runs: the process may not live on
        if said := invoke.run(case, compare=False):
            yield found(op.name, "the kernel fails", f"{said} ({case})", source.kernel(op))
            return
