# SPDX-License-Identifier: Apache-2.0
"""The distance computations of the demo, as benchmark cases: one per method."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nativeops import pairwise_l1
from nativeops.bench.case import OURS, Bench
from nativeops.bench.forms import numpy_rival, torch_gradient, torch_rival
from nativeops.demos.digits import CLASSES, digits
from nativeops.demos.l1_learn import MEDIANS, PROTOTYPES
from nativeops.ops.pairwise_l1_bench import (
    distances,
    gradients,
    scipy,
    sklearn,
    torch_broadcast,
    torch_cdist,
)

Arrays = tuple[NDArray[Any], ...]

SIZE = {"d": 64}


def against_training(random: np.random.Generator, **size: int) -> Arrays:
    """Held-out images against training images."""
    return digits().held_out[: size["n"]], digits().train[: size["m"]]


def against_some(random: np.random.Generator, **size: int) -> Arrays:
    """Training images against some of them."""
    return digits().train[: size["n"]], digits().train[: size["m"]]


def with_d_out(random: np.random.Generator, **size: int) -> Arrays:
    """The same, and what flows back from a loss."""
    d_out = random.standard_normal((size["n"], size["m"]), dtype=np.float32)
    return (*against_some(random, **size), d_out)


def _forward(name: str, n: int, m: int, inputs: Callable[..., Arrays]) -> Bench:
    size = {"n": n, "m": m, **SIZE}
    return Bench(
        name,
        "distances",
        sizes=[size],
        memory_sizes=[size],
        inputs=inputs,
        expected=distances,
        rivals=[
            numpy_rival(pairwise_l1, OURS, name="nativeops"),
            numpy_rival(scipy, "scipy", name="SciPy"),
            numpy_rival(sklearn, "scikit-learn", name="scikit-learn"),
            torch_rival(torch_cdist, name="torch.cdist"),
            torch_rival(torch_broadcast, name="torch broadcast"),
        ],
    )


def _step(name: str, n: int, m: int) -> Bench:
    size = {"n": n, "m": m, **SIZE}
    return Bench(
        name,
        "distances and gradients",
        sizes=[size],
        memory_sizes=[size],
        inputs=with_d_out,
        expected=gradients,
        rivals=[
            torch_gradient(pairwise_l1, OURS, name="nativeops"),
            torch_gradient(torch_cdist, name="torch.cdist"),
            torch_gradient(torch_broadcast, name="torch broadcast"),
        ],
    )


BENCHES = [
    _forward("nearest neighbours", 450, 1347, against_training),
    _forward("k-medians", 1347, MEDIANS, against_some),
    _step("learned prototypes", 1347, CLASSES * PROTOTYPES),
]
