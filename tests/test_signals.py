# SPDX-License-Identifier: Apache-2.0
"""A handler of signals that raises: its exception arrives, and the kernel runs once."""

import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nativeops import library, lstm_layer, pairwise_l1
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


INTERRUPTED = """
import os, signal
import {imports}

signal.signal(signal.SIGINT, signal.default_int_handler)

class Subclass(torch.Tensor):  # which takes the dispatcher, also with `out`
    pass

x, out = torch.rand(3, 4), torch.empty(3, 3)
define, left = torch.library.Library.define, {n}

def interrupted(library, *args, **kwargs):  # once PyTorch knows an op that is not yet ours
    global left
    defined = define(library, *args, **kwargs)
    left -= library.ns == {space!r}
    if left == 0:
        left = -1
        os.kill(os.getpid(), signal.SIGINT)
    return defined

torch.library.Library.define = interrupted
try:
    {first}
    print("finished")
except KeyboardInterrupt:
    print("interrupted")

import nativeops
from nativeops.frameworks.torch import connect_all

connect_all()
nativeops.pairwise_l1(x.as_subclass(Subclass), x, out=out)
torch.testing.assert_close(out, torch.cdist(x, x, p=1))
w = (x + 1).requires_grad_()
nativeops.pairwise_lp(w, x, p=3.0).sum().backward()
print(bool(w.grad.abs().sum() > 0))
"""
INTO = "nativeops.pairwise_l1(x.as_subclass(Subclass), x, out=out)"


@pytest.mark.parametrize(
    ("imports", "first", "space", "n"),
    [
        ("torch", "import nativeops", "nativeops", 1),
        ("torch", "import nativeops", "nativeops", 40),
        ("nativeops, torch", "nativeops.pairwise_l1(x, x)", "nativeops", 1),
        ("nativeops, torch", "nativeops.pairwise_l1(x, x)", "nativeops", 40),
        ("nativeops, torch", INTO, "nativeops_into", 1),
    ],
)
def test_interrupted_registration_with_pytorch_can_be_repeated(imports, first, space, n) -> None:
    maker("torch")
    program = INTERRUPTED.format(imports=imports, first=first, space=space, n=n)
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["interrupted", "True"], done.stderr


def test_kernels_whose_loading_was_interrupted_are_loaded_by_the_next_call(monkeypatch) -> None:
    core, tried = library.extension(), []

    def load(path: str) -> None:
        tried.append(path)
        if len(tried) == 1:
            raise KeyboardInterrupt

    stand_in = SimpleNamespace(load=load, levels=core.levels, __file__=core.__file__)
    monkeypatch.setattr(library, "extension", lambda: stand_in)
    monkeypatch.setattr(library, "_loaded", set())
    with pytest.raises(KeyboardInterrupt):
        library._load_kernels(pairwise_l1)
    library._load_kernels(pairwise_l1)
    assert tried[1] == tried[0]
