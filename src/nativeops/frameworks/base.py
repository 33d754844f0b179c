# SPDX-License-Identifier: Apache-2.0
"""The contract between a call and a framework, and how the framework of an array is found."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from nativeops.errors import ArgumentError, message


class About(NamedTuple):
    """What a framework's adapter does: values always, and with a compiler's name also gradients."""

    package: str  # to install
    devices: tuple[str, ...]
    compiler: str = ""
    also: tuple[str, ...] = ()  # other packages that bring the same


# The frameworks, each with a file of that name in this folder.
FRAMEWORKS = {
    "numpy": About("numpy", ("cpu",)),
    "torch": About("torch", ("cpu", "cuda"), "torch.compile"),
    "jax": About("jax", ("cpu", "cuda"), "jax.jit"),
    "tensorflow": About(
        "tensorflow", ("cpu",), "tf.function", ("tensorflow-cpu", "tensorflow-rocm", "tf-nightly")
    ),
}

# The package that an array type, or a base of it, lives in: its framework, and the type's names.
_ARRAYS = {
    "numpy": ("numpy", ("ndarray",)),
    "torch": ("torch", ("Tensor", "_TensorBase", "TensorBase")),
    "jax": ("jax", ("Tracer", "Array", "jaxlib._jax.Array")),
    "jaxlib": ("jax", ("ArrayImpl",)),
    "tensorflow": (
        "tensorflow",
        ("Tensor", "Variable", "RaggedTensor", "SparseTensor", "IndexedSlices"),
    ),
}

# In place of a framework's name: any other array that has the methods of DLPack is read as NumPy's.
DLPACK = "dlpack"
# The type of what stands for an array while Keras builds a functional model.
SYMBOLIC = "KerasTensor"

# The function that runs a call that begins with an array of that type: run(op, args, kwargs).
ENTRIES: dict[type, Callable[..., Any]] = {}
_BY_TYPE: dict[type, str | None] = {}
_LOADED: dict[str, "Framework"] = {}


class Framework(Protocol):
    """What a framework's file provides; it serves every op and names none."""

    name: str

    def describe(self, array: Any) -> tuple[str, tuple[Any, ...], str]:
        """The array's dtype in NumPy's words, its shape, and its device: ``cpu``, ``cuda:0``."""

    def integers(self, values: Sequence[Any], dtype: Any, like: Any) -> Any:
        """A list as an array, of a dtype or its name, on the device of another array."""

    def run(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """One call with unchecked arguments: check, compute, and connect the gradient."""


def framework_of(array_type: type) -> str | None:
    """The framework that a type of array belongs to; imports nothing.

    It is `DLPACK` for arrays of any other library that offers them through DLPack.
    """
    if array_type in _BY_TYPE:
        return _BY_TYPE[array_type]
    found = None
    for base in array_type.__mro__:
        package = base.__module__.partition(".")[0]
        name, types = _ARRAYS.get(package, (None, ()))
        if base.__name__ in types:
            found = name
            break
    else:
        if array_type.__name__ == SYMBOLIC:
            found = None  # it has all these methods, and each of them raises
        elif hasattr(array_type, "__jax_array__"):  # variables of Flax, of Keras with JAX
            found = "jax"
        elif hasattr(array_type, "__torch_function__"):  # values of a symbolic trace (torch.fx)
            found = "torch"
        elif hasattr(array_type, "__dlpack__") and hasattr(array_type, "__dlpack_device__"):
            found = DLPACK
    _BY_TYPE[array_type] = found
    return found


def has_entry(array_type: type) -> bool:
    """Whether the type is one of arrays; then it has an entry from now on."""
    if array_type in ENTRIES:
        return True
    name = framework_of(array_type)
    if name is None:
        return False
    ENTRIES[array_type] = load("numpy" if name == DLPACK else name).run
    return True


def load(name: str) -> Framework:
    """The framework of that name, imported on first use.

    A program saved by `torch.export`, `jax.export` or as a SavedModel only names its ops. They are
    known if the framework was imported before this package, or after a first call with one of its
    arrays, or after ``load("torch")``.
    """
    if name not in _LOADED:
        try:
            module = importlib.import_module(f"nativeops.frameworks.{name}")
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            hint = f"install it, for example with `pip install {FRAMEWORKS[name].package}`."
            text = f"{name} is not installed."
            raise ArgumentError(message("nativeops", text, hint=hint)) from None
        _LOADED[name] = module.framework
    return _LOADED[name]


def load_imported() -> None:
    """Load what the program has imported already: saved programs only name their ops."""
    for name in FRAMEWORKS:
        if name != "numpy" and name in sys.modules:
            with suppress(Exception):  # the first call with an array raises it again
                load(name)


# PyTorch's compiler runs these functions while it traces, instead of tracing into them. What they
# return is a constant to it: that is why `has_entry` fills ENTRIES, which traced code may read.
for _function in (framework_of, has_entry, load):
    vars(_function)["_dynamo_marked_constant"] = True
