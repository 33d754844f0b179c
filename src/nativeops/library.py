# SPDX-License-Identifier: Apache-2.0
"""The compiled kernels: finding the built-in ones, and defining ops in the core."""

import importlib
import operator
import os
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nativeops.attributes import AttributeSpec
from nativeops.errors import BuildError, DeviceError, NativeOpsError, RangeError, called, message
from nativeops.signature import FIXED, VARIABLES, ArraySpec, Signature
from nativeops.sizes import Size

if TYPE_CHECKING:
    from nativeops.call import Op

LEVELS = ("portable", "avx2", "avx512", "amx")
_ATTRIBUTE = {int: 0, float: 1, bool: 2, str: 3}
# The dtypes in the core's order (bindings/core.cpp: kDtypes); variables have numbers below 0.
DTYPES = (*VARIABLES["Float"], *VARIABLES["Int"], *(d for d in FIXED if d in ("uint8", "bool")))
_KINDS = {"Float": -1, "Int": -2, "Accum": -3}

_ops_by_id: list["Op[Any]"] = []
_loaded: set[Path] = set()
_MOST_THREADS = 1024


def lock_over_forks() -> Any:
    """A lock that no other thread holds when a process is forked: in the child it would stay so."""
    lock = threading.RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


_defining = lock_over_forks()
_forked_with: set[str] = set()  # the modules of a parent whose threads the child would wait for


def _note_fork() -> None:
    _forked_with.update({"torch"} & sys.modules.keys())


os.register_at_fork(after_in_child=_note_fork)


def is_forked_with(module: str) -> bool:
    """Whether this process was forked from one that had imported a module, and this package."""
    return module in _forked_with


def extension() -> ModuleType:
    """The compiled core."""
    try:
        return importlib.import_module("nativeops._nativeops")
    except ImportError as error:
        text = f"the compiled core cannot be loaded ({error})."
        hint = "install the package with `pip install .`, or run `make setup` in a checkout."
        raise BuildError(message("nativeops", text, hint=hint)) from error


def define(op: "Op[Any]") -> None:
    """Make an op known to the core and load its kernels; once per op."""
    if op.id < 0:
        with _defining:  # another thread may have been faster
            if op.id < 0:
                _define(op)


def _define(op: "Op[Any]") -> None:
    core = extension()
    _read_environment()
    signature = op.signature
    slots = {name: i for i, name in enumerate(_names(signature))}
    op_id = core.define(
        op.name,
        called(op.name),
        op.key,
        op.built_for,
        tuple(_array(spec, slots) for spec in signature.inputs),
        tuple(_array(spec, slots) for spec in signature.outputs),
        tuple(_attribute(spec, slots) for spec in signature.attributes),
        op.wanted(None),
        signature.certain,
    )
    _ops_by_id.append(op)
    _load_kernels(op)
    core.load("")  # chooses the kernels of the new op
    op.id = op_id


def missing_kernel(op: "Op[Any]", dtypes: dict[str, str], device: str) -> NativeOpsError:
    """The error for a call that no compiled kernel serves."""
    what = ", ".join(dtypes.values()) or "its arguments"
    kind = device.partition(":")[0]
    if kind == "cuda" and kind not in op.devices:
        text = f"it runs on the CPU only, but the arrays are on {device}."
        return DeviceError(message(op.name, text, hint="move them to the CPU."))
    if kind == "cuda" and not has_cuda(op):
        if not op.built_in:
            from nativeops.user_ops import missing_cuda

            return BuildError(missing_cuda(op))
        text = f"the CUDA kernels are not built, so it cannot run on {device}."
        hint = "reinstall with nvcc on the PATH, or with `NATIVEOPS_CUDA=on` to see why not."
    else:
        text = f"there is no compiled kernel for {what} on {kind} that fits `{op.signature}`."
        hint = "the build is older than the declaration: run `make setup` or reinstall."
    return BuildError(message(op.name, text, hint=hint))


def has_cuda(op: "Op[Any]") -> bool:
    """Whether the op has kernels for CUDA; a user's are known once the op is defined."""
    if "cuda" not in op.devices:
        return False
    if op.built_in:
        return cuda_is_built()
    from nativeops.user_ops import has_cuda

    return has_cuda(op)


def cuda_is_built() -> bool:
    """Whether the CUDA kernels of the built-in ops are there."""
    return any("cuda" in path.name for path in kernel_libraries())


def kernel_libraries() -> list[Path]:
    """The libraries of built-in kernels that were installed."""
    return sorted(Path(str(extension().__file__)).parent.glob("libnativeops_*.so"))


def select(level: str, *, user_ops: bool = True) -> None:
    """Use no better instruction set than this one from now on.

    Users' ops are built for one level: for another they may have to be compiled. Without `user_ops`
    they stay as they are.
    """
    _read_environment()
    _select(level, user_ops)


def _select(level: str, user_ops: bool) -> None:
    if level not in LEVELS:
        text = f"`NATIVEOPS_ISA` must be one of {list(LEVELS)}, but is {level!r}."
        raise RangeError(message("nativeops", text))
    core = extension()
    if LEVELS.index(level) > core.levels()[0]:
        best = LEVELS[core.levels()[0]]
        text = f"`NATIVEOPS_ISA` is {level}, but this machine has only {best}."
        raise RangeError(message("nativeops", text, hint=f"use {best} or lower."))
    with _defining:
        core.select_level(LEVELS.index(level))
        newest = {op.name: op for op in _ops_by_id if user_ops and not op.built_in}
        for op in newest.values():
            with suppress(BuildError):  # its next call tells that there is no kernel
                _load_kernels(op)


def selected() -> str:
    """The instruction set in use."""
    _read_environment()
    return LEVELS[extension().levels()[1]]


def set_num_threads(n: int) -> None:
    """Use at most `n` threads in a kernel on the CPU; results do not depend on it.

    With PyTorch's tensors kernels run on PyTorch's threads: ``torch.set_num_threads`` counts too.

    >>> nativeops.set_num_threads(2)
    >>> nativeops.get_num_threads()
    2
    """
    _read_environment()
    try:
        number = operator.index(n)
    except TypeError:
        number = 0
    if not 1 <= number <= _MOST_THREADS:
        text = f"`n` must be from 1 to {_MOST_THREADS}, but is {n!r}."
        raise RangeError(message("set_num_threads", text))
    extension().set_num_threads(number)


def get_num_threads() -> int:
    """The number of threads that a kernel on the CPU may use.

    The default is the number of CPUs that this process may use, or NATIVEOPS_NUM_THREADS.

    >>> nativeops.get_num_threads() >= 1
    True
    """
    _read_environment()
    n: int = extension().get_num_threads()
    return n


def empty_cache() -> None:
    """Give back to the system the memory of the CPU that is kept for later results.

    What large results and workspaces lay in is lent again, which saves the system from clearing new
    pages. Up to 2 GB are kept, of which the system takes all but 64 MB by itself when it is short.
    Weights that recurrent layers have packed for few sequences stay, at most 64 MB of them.

    >>> nativeops.empty_cache()
    """
    extension().empty_cache()


@cache
def _read_environment() -> None:
    """Before anything else is set or asked: what a program sets later counts."""
    threads = os.environ.get("NATIVEOPS_NUM_THREADS")
    if threads:
        if not threads.isdecimal() or not 1 <= int(threads) <= _MOST_THREADS:
            text = f"`NATIVEOPS_NUM_THREADS` must be from 1 to {_MOST_THREADS}, but is {threads!r}."
            raise RangeError(message("nativeops", text))
        extension().set_num_threads(int(threads))
    if level := os.environ.get("NATIVEOPS_ISA"):
        _select(level, user_ops=True)


def _load_kernels(op: "Op[Any]") -> None:
    core = extension()
    if not op.built_in:
        from nativeops.user_ops import load

        load(op)
        return
    usable = {f"libnativeops_cpu_{level}.so" for level in LEVELS[: core.levels()[0] + 1]}
    for path in kernel_libraries():
        if path not in _loaded and (path.name in usable or "cuda" in path.name):
            core.load(str(path))
            _loaded.add(path)  # now: an interrupt before leaves it to the next call


def _names(signature: Signature) -> list[str]:
    """All names that sizes may use: axes, then integer attributes."""
    names: dict[str, None] = {}
    for spec in (*signature.inputs, *signature.outputs):
        for axis in spec.axes:
            names.update(dict.fromkeys(sorted(axis.names())))
    names.update(dict.fromkeys(a.name for a in signature.attributes if a.type in (int, bool)))
    return list(names)


def _axis(axis: Size, slots: dict[str, int]) -> Any:
    return axis.steps(slots) if axis.name is None else slots[axis.name]


def _array(spec: ArraySpec, slots: dict[str, int]) -> tuple[Any, ...]:
    kind = _KINDS.get(spec.kind)
    kind = DTYPES.index(spec.dtypes[0]) if kind is None else kind
    axes = tuple(_axis(axis, slots) for axis in spec.axes)
    return kind, bool(spec.batch), axes, spec.optional, spec.name, spec.reuse


def _attribute(spec: AttributeSpec, slots: dict[str, int]) -> tuple[Any, ...]:
    slot = slots.get(spec.name, -1) if spec.type in (int, bool) else -1
    return (
        spec.name,
        _ATTRIBUTE[spec.type],
        spec.required,
        spec.default,
        float(spec.low),
        float(spec.high),
        spec.choices,
        slot,
    )
