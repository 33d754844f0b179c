# SPDX-License-Identifier: Apache-2.0
"""Cases under AddressSanitizer, in a child process that its library was loaded into first."""

from typing import Any

from nativeops.call import Op
from nativeops.checking import invoke, source
from nativeops.checking.finding import Case, Steps, found
from nativeops.testing import cases, installed

MEMORY = "address,undefined"


def memory_steps(op: Op[Any]) -> Steps:
    """Arrays of exactly their size, which AddressSanitizer watches the ends of.

    Without a gradient nobody keeps results for one, and the kernel has no memory for them.
    """
    invoke.use(op, "cpu", MEMORY)
    kept = [spec for spec in op.signature.outputs if spec.kept]
    for case in cases(op):
        usable = "bfloat16" not in case.dtypes.values() or installed("ml_dtypes")
        if not usable or case.layout not in ("contiguous", "transposed", "backwards"):
            continue
        for absent in [(), kept] if kept else [()]:
            name = f"{case} without its kept results" if absent else str(case)
            yield Case(name)  # before it runs: the process may not live on
            said, _ = invoke.results(case, absent=absent)
            if said:
                yield found(op.name, "the kernel fails", f"{said} ({name})", source.kernel(op))
                return
