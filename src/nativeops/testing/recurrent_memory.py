# SPDX-License-Identifier: Apache-2.0
"""How much memory a recurrent layer takes at its peak: in a process of its own, since what other
calls left behind would count as its own. ``python -m nativeops.testing.recurrent_memory KIND ...``
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from nativeops.bench.memory import growth
from nativeops.testing.recurrent import (
    KINDS,
    Kind,
    Values,
    draw,
    draw_arriving,
    run_all,
    to_gradient,
)

Sizes = tuple[int, int, int, int]
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "batch first": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "inputs first": np.asfortranarray,
}


def peak(kind: Kind, sizes: Sizes, what: str, layout: str = "contiguous", **more: Any) -> int:
    """Bytes beyond the arguments at the peak of one call, the results included.

    Args:
        kind: The layer.
        sizes: Steps, sequences, inputs and hidden units; the numbers are float32.
        what: ``inference``, ``training`` (all that is kept is made, too), or ``gradient``.
        layout: How `x` lies: one of `LAYOUTS`.
        more: Further arguments of the op.
    """
    job = json.dumps([kind.name, sizes, what, layout, more])
    command = [sys.executable, "-m", "nativeops.testing.recurrent_memory", job]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def _measure(name: str, sizes: Sizes, what: str, layout: str, more: Values) -> int:
    kind = next(kind for kind in KINDS if kind.name == name)
    small = min(sizes[0], 4), min(sizes[1], 4), 8, 8
    _call(kind, small, what, layout, more)()  # so that what is done only once does not count
    return growth(_call(kind, sizes, what, layout, more))


def _call(kind: Kind, sizes: Sizes, what: str, layout: str, more: Values) -> Callable[[], object]:
    given = {**draw(kind, sizes, None, dtype="float32"), **more}
    given["x"] = LAYOUTS[layout](given["x"])
    if what == "inference":
        return lambda: kind.op(**given)
    if what == "training":
        return lambda: run_all(kind.op, given)
    known = {**given, **run_all(kind.op, given), **draw_arriving(kind, given)}
    arguments = to_gradient(kind, known)
    del known
    return lambda: kind.grad(**arguments)


if __name__ == "__main__":
    print(_measure(*json.loads(sys.argv[1])))
