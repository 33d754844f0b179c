# SPDX-License-Identifier: Apache-2.0
"""The public names and all error texts, as files to review; `make golden` rewrites them."""

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import nativeops.declare
from nativeops import build, compilers, errors, library, pairwise_l1, pairwise_lp, registry
from nativeops.call import Op
from nativeops.errors import NativeOpsError
from nativeops.frameworks import base
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.signature import array_spec
from nativeops.testing import installed
from nativeops.testing.arrays import STRIDED, arrays_of

Case = Callable[[], object]


class Arrays(NamedTuple):
    """How a framework makes the arrays of the cases."""

    zeros: Callable[..., Any]
    wide: Callable[[int, int], Any]  # of many bytes as an input to a result of too many


def arrays_in(framework: str) -> Arrays:
    place = arrays_of(framework, "cpu").place

    def zeros(*shape: int, dtype: str = "float32") -> Any:
        return place(np.zeros(shape), dtype).array

    def wide(n: int, d: int) -> Any:
        layout = "one row repeated" if framework in STRIDED else "contiguous"
        return place(np.zeros((n, d)), "float32", layout).array

    return Arrays(zeros, wide)


PRESENT = [name for name in FRAMEWORKS if installed(name)]


def everywhere(arrays: Arrays) -> dict[str, Case]:
    """Mistakes that one can make in every framework."""
    a, wide = arrays.zeros, arrays.wide
    return {
        "too few axes": lambda: pairwise_l1(a(4), a(5, 4)),
        "no axes": lambda: pairwise_l1(a(3, 4), a()),
        "another size": lambda: pairwise_l1(a(3, 4), a(5, 6)),
        "another size, transposed": lambda: pairwise_l1(a(3, 4), a(4, 6)),
        "leading axes that do not broadcast": lambda: pairwise_l1(a(2, 3, 4), a(5, 3, 4)),
        "integers": lambda: pairwise_l1(a(3, 4, dtype="int32"), a(5, 4, dtype="int32")),
        "complex numbers": lambda: pairwise_l1(a(3, 4, dtype="complex64"), a(5, 4)),
        "two dtypes": lambda: pairwise_l1(a(3, 4), a(5, 4, dtype="float64")),
        "a list": lambda: pairwise_l1(a(3, 4), [[1.0]]),
        "a list first": lambda: pairwise_l1([[1.0]], a(3, 4)),
        "a missing argument": lambda: pairwise_l1(a(3, 4)),
        "an unknown argument": lambda: pairwise_l1(a(3, 4), a(3, 4), metric="l1"),
        "too many arguments": lambda: pairwise_lp(a(3, 4), a(3, 4), 1.0),
        "a number out of range": lambda: pairwise_lp(a(3, 4), a(3, 4), p=0.5),
        "not a number": lambda: pairwise_lp(a(3, 4), a(3, 4), p=float("nan")),
        "a word for a number": lambda: pairwise_lp(a(3, 4), a(3, 4), p="two"),
        "an unknown optional result": lambda: _gradient()(a(3, 4), a(5, 4), a(3, 5), want=["d_z"]),
        "a result that does not fit into memory": lambda: pairwise_l1(
            wide(10_000_000, 1), wide(10_000_000, 1)
        ),
    }


class OnGpu:
    """An array of another library, on a device whose memory NumPy cannot read."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def numpy_only() -> dict[str, Case]:
    """Mistakes with NumPy arrays alone, or together with another framework's."""
    x, y = np.zeros((3, 4), "float32"), np.zeros((5, 4), "float32")
    read_only = np.zeros((3, 5), "float32")
    read_only.flags.writeable = False
    return {
        "swapped bytes": lambda: pairwise_l1(x.astype(">f4"), y),
        "an array of objects": lambda: pairwise_l1(x.astype(object), y),
        "NumPy and torch": lambda: pairwise_l1(x, torch.zeros(5, 4)),
        "torch and NumPy": lambda: pairwise_l1(torch.zeros(3, 4), y),
        "DLPack on another device": lambda: pairwise_l1(x, OnGpu()),
        "out is read-only": lambda: pairwise_l1(x, y, out=read_only),
        "out has another shape": lambda: pairwise_l1(x, y, out=np.zeros((5, 3), "float32")),
        "out has another dtype": lambda: pairwise_l1(x, y, out=np.zeros((3, 5), "float64")),
        "out is a list": lambda: pairwise_l1(x, y, out=[]),
        "out for two results": lambda: _gradient()(x, y, np.zeros((3, 5), "float32"), out=x),
    }


def torch_only() -> dict[str, Case]:
    """Mistakes that need a gradient or a device."""
    x, y = torch.ones(3, 4, requires_grad=True), torch.zeros(5, 4)

    def twice() -> object:
        (first,) = torch.autograd.grad(pairwise_l1(x, y).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    def forward_mode() -> object:
        return torch.func.jvp(lambda a: pairwise_l1(a, y), (x.detach(),), (x.detach(),))

    return {
        "differentiated twice": twice,
        "forward mode": forward_mode,
        "two devices": lambda: pairwise_l1(x.detach(), y.to("meta")),
    }


def _gradient() -> Op[Any]:
    return registry.find("pairwise_l1_grad")


def setup(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    """Mistakes of an installation, of a declaration or of settings, as far as they can be acted."""
    x = np.zeros((3, 4), "float32")
    float32 = {"Float": "float32"}

    def absent_framework() -> object:
        missing = ModuleNotFoundError("No module named 'torch'", name="torch")
        with monkeypatch.context() as patch:
            patch.delitem(base._LOADED, "torch", raising=False)
            patch.setattr(importlib, "import_module", lambda name: _raise(missing))
            return base.load("torch")

    def stale_build() -> object:
        changed = array_spec("y", "Float", "*b m e")
        own = pairwise_l1.signature
        signature = replace(own, inputs=(own.inputs[0], changed))
        return Op(pairwise_l1.reference, signature, pairwise_l1.kernel, "float32")(x, x)

    def absent_core() -> object:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "nativeops._nativeops", None)
            patch.delattr(nativeops, "_nativeops", raising=False)
            return library.extension()

    def absent_cuda() -> object:
        with monkeypatch.context() as patch:
            patch.setattr(library, "kernel_libraries", list)
            raise library.missing_kernel(pairwise_l1, float32, "cuda:0")

    def absent_header() -> object:
        kernel = Path("/nowhere/other.h")
        return build.build(Op(pairwise_l1.reference, pairwise_l1.signature, kernel, "float32"))

    def absent_compiler() -> object:
        with monkeypatch.context() as patch:
            patch.delenv("CXX", raising=False)
            patch.setenv("PATH", "")
            return compilers.cpp_compiler()

    def declared_twice() -> object:
        kernel = Path("/somewhere/pairwise_l1.h")
        other = Op(pairwise_l1.reference, pairwise_l1.signature, kernel, "float32")
        with monkeypatch.context() as patch:
            patch.setattr(pairwise_l1, "kernel", Path("/elsewhere/pairwise_l1.h"))
            return registry.register(other)

    return {
        "a framework that is not installed": absent_framework,
        "a build older than the declaration": stale_build,
        "no compiled core": absent_core,
        "no CUDA kernels": absent_cuda,
        "no kernel header of a user's op": absent_header,
        "no compiler for a user's op": absent_compiler,
        "an op declared twice": declared_twice,
        "an unknown op": lambda: registry.find("pairwise_l2"),
        "an unknown op unlike all others": lambda: registry.find("zzz"),
        "no threads": lambda: library.set_num_threads(0),
        "an unknown instruction set": lambda: library.select("sse9"),
        "NATIVEOPS_NUM_THREADS": lambda: _fresh(NATIVEOPS_NUM_THREADS="many"),
        "NATIVEOPS_ISA": lambda: _fresh(NATIVEOPS_ISA="fast"),
    }


def _raise(error: Exception) -> object:
    raise error


FRESH = """
import numpy, nativeops
try:
    nativeops.pairwise_l1(numpy.zeros((1, 1)), numpy.zeros((1, 1)))
except nativeops.errors.RangeError as error:
    print(error, end="")
"""


def _fresh(**settings: str) -> object:
    """A call in a new process with these environment variables."""
    command = [sys.executable, "-c", FRESH]
    variables = {**os.environ, **settings}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    raise errors.RangeError(done.stdout)


def text_of(case: Case) -> str:
    """The class and the message of the error that a case raises."""
    with pytest.raises(NativeOpsError) as raised:
        case()
    error = raised.value
    caught = next(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins")
    return f"{type(error).__name__}({caught}): {error}\n"


def page(cases: Mapping[str, Case]) -> str:
    """The errors of all cases."""
    return "\n".join(f"# {title}\n{text_of(case)}" for title, case in cases.items())


Golden = Callable[[str, str], None]


def test_errors_have_the_agreed_texts(golden: Golden) -> None:
    golden("errors.txt", page(everywhere(arrays_in("numpy"))))


@pytest.mark.parametrize("framework", PRESENT)
@pytest.mark.parametrize("title", everywhere(arrays_in("numpy")))
def test_error_is_the_same_in_all_frameworks(title: str, framework: str) -> None:
    with arrays_of(framework, "cpu").scope({"float64"}):
        said = text_of(everywhere(arrays_in(framework))[title])
    assert said == text_of(everywhere(arrays_in("numpy"))[title])


def test_errors_of_numpy_have_the_agreed_texts(golden: Golden) -> None:
    golden("errors_numpy.txt", page(numpy_only()))


def test_errors_of_torch_have_the_agreed_texts(golden: Golden) -> None:
    golden("errors_torch.txt", page(torch_only()))


def test_errors_of_the_installation_have_the_agreed_texts(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden("errors_setup.txt", page(setup(monkeypatch)))


def public_names(module: ModuleType) -> str:
    """A line per public name: what it is and how it is called."""
    lines = [f"# {module.__name__}"]
    names = getattr(module, "__all__", None) or exceptions(module)
    return "\n".join([*lines, *(describe(name, getattr(module, name)) for name in names), ""])


def exceptions(module: ModuleType) -> list[str]:
    return [n for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, Exception)]


def describe(name: str, value: Any) -> str:
    if isinstance(value, Op):
        return f"op {value.signature}"
    if inspect.isclass(value) and issubclass(value, Exception):
        return f"class {name}({', '.join(c.__name__ for c in value.__bases__)})"
    if inspect.isclass(value):
        return f"class {name}{inspect.signature(value)}"
    return f"def {name}{inspect.signature(value)}" if inspect.isfunction(value) else name


def test_public_names_are_the_agreed_ones(golden: Golden) -> None:
    modules = [nativeops, nativeops.declare, nativeops.errors]
    golden("api.txt", "\n".join(public_names(module) for module in modules))
