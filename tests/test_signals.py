# SPDX-License-Identifier: Apache-2.0
"""A handler of signals that raises: its exception arrives, and the kernel runs once."""

import importlib
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from nativeops import lstm_layer
from nativeops.testing import installed
from nativeops.testing.marks import missing

T, B, H = 400, 4, 128


class LateError(Exception):
    """What the handler raises, as tools that limit the time of a task do."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def arguments(make: Any) -> list[Any]:
    random = np.random.default_rng(0)
    sizes = (T, B, H), (4 * H, H), (4 * H, H)
    return [make(random.standard_normal(size).astype("float32") / 12) for size in sizes]


def maker(framework: str) -> Any:
    """What makes an array of a framework of NumPy's."""
    if framework == "numpy":
        return np.asarray
    if not installed(framework):
        missing(framework, f"install it with `pip install {framework}`")
    words = {"torch": "as_tensor", "jax": "numpy.asarray", "tensorflow": "constant"}
    return attrgetter(words[framework])(importlib.import_module(framework))


def wait_after(delay: float, call: Callable[[], Any]) -> None:
    """A call with a signal after so many seconds, and time enough for one that comes later."""
    signal.setitimer(signal.ITIMER_REAL, delay)
    call()
    time.sleep(1.0)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_its_exception_arrives_once_the_call_ends(framework: str) -> None:
    given = arguments(maker(framework))
    started = time.perf_counter()
    for _ in range(4):
        started = time.perf_counter()
        np.asarray(lstm_layer(*given).output)
    once = time.perf_counter() - started
    for part in (0.2, 0.4, 0.6, 0.8):
        with pytest.raises(LateError):
            wait_after(once * part, lambda: np.asarray(lstm_layer(*given).output))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_states_in_place_are_those_after_one_call(framework: str) -> None:
    make = maker(framework)
    given, start = arguments(make), np.full((B, H), 0.5, "float32")
    expected = lstm_layer(*given, h_0=make(start), c_0=make(start))
    for delay in (2e-4, 4e-4, 8e-4, 1.6e-3):
        h, c, output = (make(a) for a in (start.copy(), start.copy(), np.empty((T, B, H), "f4")))
        with pytest.raises(LateError):
            wait_after(delay, partial(lstm_layer, *given, h_0=h, c_0=c, out=(output, h, c)))
        found = np.asarray(c)  # those before, if the signal came before the call
        assert np.array_equal(found, np.asarray(expected.c_n)) or np.array_equal(found, start)
