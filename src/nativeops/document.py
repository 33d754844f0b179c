# SPDX-License-Identifier: Apache-2.0
"""The text of ``help(op)``, ``nativeops show OP`` and the reference pages, from the declaration."""

import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nativeops.attributes import AttributeSpec
from nativeops.call import Directions, Op, TwoLayers
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.glue import defines
from nativeops.identity import variants
from nativeops.signature import ArraySpec, Signature

# In the order in which a call meets them; the second word is the built-in class that catches it.
ERRORS = {
    "ArgumentError (TypeError)": "a missing or unknown argument, no array, or two frameworks",
    "DtypeError (TypeError)": "a dtype that is not listed here, or two arrays of different dtypes",
    "RangeError (ValueError)": "a number, a choice, or a number in an array outside its range",
    "ShapeError (ValueError)": "axes that do not fit the signature or another array",
    "DeviceError (RuntimeError)": "arrays on different devices",
    "AllocationError (MemoryError)": "too little memory for a result or a workspace",
    "BuildError (RuntimeError)": "no compiled kernel for the device",
    "KernelError (RuntimeError)": "a kernel that threw what the text says",
    "GradientError (NotImplementedError)": "a derivative that the op does not have",
}


def document(op: Op[Any]) -> str:
    """All there is to say about an op: what its author wrote, and what its declaration states."""
    signature = op.signature
    shown = [spec for spec in signature.outputs if not spec.kept]
    parts = [
        inspect.cleandoc(op.reference.__doc__ or ""),
        f"Signature:\n    {signature}",
        _table("Arguments", [*_inputs(signature), *map(_attribute, signature.attributes)]),
        _table("Results", [_result(spec, signature) for spec in shown]) + _hidden(signature),
        _axes(signature),
        _table("Errors", [pair for pair in ERRORS.items() if _can_raise(op, pair[0])]),
        _where(op),
    ]
    return "\n\n".join(part for part in parts if part)


def _hidden(signature: Signature) -> str:
    """What a caller sees of results that exist for the gradient."""
    kept = [spec.name for spec in signature.outputs if spec.kept]
    if not kept:
        return ""
    return f"\n    Read them by name: fields for the gradient are None ({', '.join(kept)})."


def _table(title: str, rows: Iterable[Sequence[str]]) -> str:
    """Lines of aligned columns under a title."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n    ".join([f"{title}:", *lines])


def _inputs(signature: Signature) -> list[tuple[str, str, str]]:
    first: dict[str, str] = {}  # of each dtype variable, the input that chooses
    rows = []
    for spec in signature.inputs:
        chooser = first.setdefault(spec.kind, spec.name)
        same = chooser != spec.name and spec.kind in signature.variables
        dtypes = f"the dtype of {chooser}" if same else " or ".join(spec.dtypes)
        dtypes = _dtype_of_sums(signature) if spec.kind == "Accum" else dtypes
        dtypes += ", from any integers" * spec.lengths + ", optional" * spec.optional
        rows.append((spec.name, str(spec), dtypes))
    return rows


def _dtype_of_sums(signature: Signature) -> str:
    chooser = next(spec.name for spec in signature.inputs if spec.kind == "Float")
    return f"float64 where {chooser} is, else float32"


def _attribute(spec: AttributeSpec) -> tuple[str, str, str]:
    kind = " or ".join(map(repr, spec.choices)) or spec.type.__name__
    default = "required" if spec.required else f"default {spec.default!r}"
    return spec.name, kind, ", ".join(filter(None, [default, spec.bounds]))


def _result(spec: ArraySpec, signature: Signature) -> tuple[str, str, str]:
    chooser = next((s.name for s in signature.inputs if s.kind == spec.kind), "")
    dtype = f"the dtype of {chooser}" if spec.kind in signature.variables else spec.dtypes[0]
    dtype = _dtype_of_sums(signature) if spec.kind == "Accum" else dtype
    return spec.name, str(spec), dtype + ", optional" * spec.optional


def _axes(signature: Signature) -> str:
    star = next((spec.batch for spec in signature.inputs if spec.batch), "")
    if not star:
        return ""
    return f"Leading axes `*{star}` are any number of axes, also none; they broadcast as in NumPy."


def _can_raise(op: Op[Any], error: str) -> bool:
    if error.startswith("KernelError"):
        return not op.built_in
    has_range = any(spec.bounds or spec.choices for spec in op.signature.attributes)
    has_range = has_range or any(spec.lengths for spec in op.signature.inputs)
    told = "RangeError" in (op.reference.__doc__ or "")  # of labels, states and the like
    return has_range or told or not error.startswith("RangeError")


def is_tuned(op: Op[Any], device: str) -> bool:
    """Whether a header beside the kernel has a variant for the device, alone or with others."""
    headers = variants(op.kernel).items()
    return any(of in (device, "tuned") and defines(path, op.kernel_name) for of, path in headers)


def _where(op: Op[Any]) -> str:
    tuned = [device for device in op.devices if is_tuned(op, device)]
    arrays = {spec.name for spec in (*op.signature.inputs, *op.signature.outputs)}
    kept = [name for name in op.gradient_names if name in arrays]
    kept = [f"{n} (with {op.kept_with[n]})" if n in op.kept_with else n for n in kept]
    gradient = f"yes; it keeps {', '.join(kept) or 'nothing'}" if op.gradient_rule else "no"
    rows = [
        ("Frameworks", ", ".join(FRAMEWORKS)),
        ("Devices", ", ".join(op.devices)),
        ("Tuned for", ", ".join(tuned) or "none; the portable kernel runs everywhere"),
        ("Gradient", gradient),
    ]
    return _table("Where", rows)


# The tests of ops that are derived from another one.
_TESTS = {Directions: "recurrent_directions", TwoLayers: "recurrent_two_layers"}


def main() -> None:
    """Write a page per built-in op, and a list of them, into the directory given."""
    import nativeops.ops  # noqa: F401  declares them
    from nativeops.registry import ops

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    listed = ["# Reference", "", "Made by `make docs` from the declarations.", ""]
    for op in ops():
        folder_of = "../../src/nativeops/ops"
        source = f"{folder_of}/{op.kernel.stem}"
        tests = f"{folder_of}/{_TESTS.get(type(op.twice), op.kernel.stem)}_test.py"
        links = f"[declaration]({source}.py) · [kernel]({source}.h) · [test]({tests})"
        page = f"# {op.name}\n\n{links}\n\n```text\n{document(op)}\n```\n"
        (folder / f"{op.name}.md").write_text(page, "utf-8")
        listed.append(f"- [{op.name}]({op.name}.md): {document(op).partition(chr(10))[0]}")
    (folder / "README.md").write_text("\n".join(listed) + "\n", "utf-8")


if __name__ == "__main__":
    main()
