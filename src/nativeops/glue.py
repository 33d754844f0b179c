# SPDX-License-Identifier: Apache-2.0
"""The C entries of declared ops: C++ source, generated from the declarations.

Used by the package's own build (``python -m nativeops.glue DIRECTORY``) and for a user's ops. One
source serves every device and instruction set; the compiler checks that kernel and declaration
agree.
"""

import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nativeops.call import Directions, Op, TwoLayers
from nativeops.errors import BuildError, message
from nativeops.identity import kernel_files, variants
from nativeops.signature import VARIABLES, ArraySpec, Signature

# The name of a dtype variable in a kernel's template, and the C++ type of each dtype.
TEMPLATE = {"Float": "T", "Int": "I", "Accum": "Accum<T>"}
CPP = {
    "float32": "float",
    "float64": "double",
    "bfloat16": "bf16",
    "float16": "f16",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
ATTRIBUTE = {int: "int64_t", float: "double", bool: "bool", str: "int64_t"}


def kernel_source(ops: Iterable[Op[Any]], include: str, digest: str = "") -> str:
    """The C++ source with the entries of all ops whose kernels are in one header.

    Args:
        ops: The ops.
        include: How the source names the header.
        digest: The hash of a user's kernel, as `Op.built_for` has it.
    """
    ops = list(ops)
    header = ops[0].kernel
    found = variants(header)
    for path in found.values():
        _check_variant(ops, path)
    tuned = {macro: found[of] for macro, of in TUNED.items() if of in found}
    parts = [
        f"// Generated from the declarations beside {header.name}; do not edit.",
        *["#define NATIVEOPS_THREADS_APART"] * (raw_text(header) == "apart"),
        '#include "nativeops/devices/entry.h"',
        *['#include "nativeops/devices/twice.h"'] * any(op.twice for op in ops),
    ]
    if any("cuda" in op.devices for op in ops):
        parts += [f'#include "{include}"']
    else:
        parts += [*_ON_CPU, f'#include "{include}"', "#endif"]
    for macro, path in tuned.items():
        name = include.replace(header.name, path.name)
        parts += [f"#if {macro}", f'#include "{name}"', "#endif"]
    parts.append("\nnamespace nativeops {\nnamespace {\n")
    # The portable kernel is compiled where there is no variant of it: half of the build otherwise.
    groups = defaultdict(list)
    for op in ops:
        macros = tuple(m for m, path in tuned.items() if _tunes(path, op.kernel_name))
        groups[op.devices, macros].append(op)
    for number, ((devices, macros), group) in enumerate(groups.items()):
        parts += _ON_CPU * ("cuda" not in devices)
        for turn, macro in enumerate(macros):
            parts.append(f"#{'elif' if turn else 'if'} {macro}")
            parts += [_entry(op, tuned[macro], "_tuned", "nativeops::tuned") for op in group]
            parts.append(_table(group, digest, "_tuned", number))
        parts += ["#else"] * bool(macros)
        parts += [_entry(op, header, "", "nativeops") for op in group]
        parts += [_table(group, digest, "", number), *["#endif"] * bool(macros)]
        parts += ["#endif"] * ("cuda" not in devices)
    return "\n".join([*parts, "}  // namespace", "}  // namespace nativeops", ""])


_ON_CPU = ["#if !defined(__CUDACC__)"]
# When each of the variants is compiled: that for one device, and that for all which have more than
# the portable kernel.
TUNED = {
    "!defined(__CUDACC__) && !defined(NATIVEOPS_CPU_THREADS) && NATIVEOPS_LEVEL > 0": "cpu",
    "defined(__CUDACC__)": "cuda",
    "defined(__CUDACC__) || defined(NATIVEOPS_CPU_THREADS) || NATIVEOPS_LEVEL > 0": "tuned",
}
# What tiles multiply; the rest of a layer runs its AVX-512 kernel, which need not be built twice. A
# user's op has no other library.
TILED = {"bfloat16", "float32"}
UNTILED = "NATIVEOPS_LEVEL < 3 || defined(NATIVEOPS_USER_OP)"


_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.S)
_TUNED = re.compile(r"\bnamespace\s+(?:nativeops\s*::\s*)?tuned\b")
_LAUNCH = re.compile(r"\blaunch\s*\(")
_TOGETHER = re.compile(
    r"(?<!\.)\bsync\s*\(|\b(?:__sync|__shfl|warp_|block_)\w+|\b(?:warpSize|SHARED|__shared__)\b"
    r"|\brange\s*\("
)
_KERNEL = re.compile(r"\bvoid\s+(\w+)\s*\(\s*Device\b")


def kernel_line(header: Path, name: str) -> int:
    """The line where a header has a kernel of that name; 0 if nowhere.

    It is a function, a constant, or what a macro makes whose own name is in capitals, from the
    kernel's name as its first argument.
    """
    text = _code(header)
    made = rf"^[ \t]*[A-Z][A-Z0-9_]*\s*\(\s*{name}\s*[,)]"
    found = re.search(rf"\bvoid\s+{name}\s*\(|\bconstexpr\s+auto\s+{name}\s*=|{made}", text, re.M)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def _code(header: Path) -> str:
    """The text of a header with nothing but line ends in place of comments."""
    text = header.read_text(encoding="utf-8", errors="replace")
    return _COMMENT.sub(lambda found: found[1] or " " + "\n" * found[0].count("\n"), text)


def defines(header: Path, name: str) -> bool:
    """Whether a header has a kernel of that name."""
    return kernel_line(header, name) > 0


def _tunes(variant: Path, name: str) -> bool:
    """Whether a variant has a kernel of that name, or a file with tuned kernels that it includes.

    It may include portable kernels of the same names, too.
    """
    included = (path for path in kernel_files(variant) if path != variant)
    return defines(variant, name) or any(
        defines(path, name) for path in included if _TUNED.search(_code(path))
    )


def _check_variant(ops: list[Op[Any]], variant: Path) -> None:
    """Refuse a file of tuned kernels that would not be used, as it has none of the header's.

    One that the header includes is no variant, whatever it is called.
    """
    header = ops[0].kernel
    if f'"{variant.name}"' in _code(header):
        return
    portable = [header, *({*kernel_files(header)} - {*kernel_files(variant)})]
    names = {op.name for op in ops}.union(*map(_kernels, portable))
    if not any(_tunes(variant, name) for name in names):
        text = f"{variant} has no tuned kernel of the ops of {header.name}."
        hint = f"write `void {ops[0].name}(...)` in its namespace nativeops::tuned, or rename it."
        raise BuildError(message(ops[0].name, text, hint=hint))


def raw_text(header: Path) -> str:
    """What the threads do that a header launches as in CUDA; empty if it launches none.

    ``"apart"``: nothing with the others of their block, so that the CPU runs all of them in turn,
    and an index that is used once is as good as a loop. ``"together"``: there is one for each block
    on the CPU.
    """
    code = "".join(map(_code, kernel_files(header)))
    if not _LAUNCH.search(code):
        return ""
    return "together" if _TOGETHER.search(code) else "apart"


def _kernels(path: Path) -> list[str]:
    """The names of all functions of a file that take a device."""
    return _KERNEL.findall(_code(path))


def _entry(op: Op[Any], header: Path, suffix: str, namespace: str) -> str:
    """The C function of one op, generic in its dtype variables."""
    if isinstance(op.twice, Directions):
        return _entry_of_directions(op, op.twice, suffix, namespace)
    if op.twice:
        return _entry_of_layers(op, op.twice, suffix, namespace)
    signature = op.signature
    name, variables = signature.op, [TEMPLATE[v] for v in signature.variables]
    template = f"template <{', '.join(f'class {v}' for v in variables)}>\n" if variables else ""
    call = f"{namespace}::{name}" + (f"<{', '.join(variables)}>" if variables else "")
    arrays = ["Device&"]
    arrays += [_view("In", spec) for spec in signature.inputs]
    arrays += [_view("Out", spec) for spec in signature.outputs]
    attributes = [ATTRIBUTE[spec.type] for spec in signature.attributes]
    types = [*arrays, *attributes]
    checked = [*arrays, *(f"Attribute<{each}>" for each in attributes)]
    names = ["dev", *(spec.name for spec in (*signature.inputs, *signature.outputs))]
    names += [spec.name for spec in signature.attributes]
    values = _values(signature)
    wanted = ", ".join(f"{t} {n}" for t, n in zip(types, names, strict=True))
    return f"""\
{template}struct {name}{suffix}_kernel {{
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) const
      -> decltype({call}(std::forward<Arguments>(arguments)...)) {{
    return {call}(std::forward<Arguments>(arguments)...);
  }}
}};
{template}int32_t {name}{suffix}_entry(const NativeopsCall* call) {{
  using Kernel = {name}{suffix}_kernel{f"<{', '.join(variables)}>" if variables else ""};
  static_assert(std::is_invocable_v<Kernel, {", ".join(checked)}>,
                "the kernel `{name}` in {header.name} does not take what its declaration says: "
                "({wanted})");
  return guard(call, [&](Device& dev) {{
    if constexpr (std::is_invocable_v<Kernel, {", ".join(types)}>)
      Kernel()({", ".join(["dev", *values])});
  }});
}}
"""


def _values(signature: Signature) -> list[str]:
    """What a call gives as arrays and attributes, in their order."""
    values = [f"input<{_type(s)}, {_rank(s)}>(call, {i})" for i, s in enumerate(signature.inputs)]
    values += [
        f"output<{_type(s)}, {_rank(s)}>(call, {i})" for i, s in enumerate(signature.outputs)
    ]
    values += [
        f"call->attributes[{i}].{'real' if spec.type is float else 'integer'}"
        + " != 0" * (spec.type is bool)
        for i, spec in enumerate(signature.attributes)
    ]
    return values


def _entry_of_directions(op: Op[Any], directions: Directions, suffix: str, namespace: str) -> str:
    """The C function of an op that calls a layer's kernel for both directions."""
    one = directions.layer.signature
    values = dict(zip(op.signature.names()[1:], _values(op.signature), strict=True))
    summed, arguments = [], []
    for spec in (*one.inputs, *one.outputs):
        first, second = (values[name] for name in directions.names(spec.name))
        if first != second:
            arguments.append(f"second ? {second} : {first}")
        elif spec.name in directions.joined:
            arguments.append(f"half_of({first}, second)")
        elif spec in one.inputs:
            arguments.append(first)
        else:
            summed.append((spec.name, first))
            arguments.append(f"{spec.name}.of(second)")
    arguments += [values.get(spec.name, "second") for spec in one.attributes]
    x, products = values[one.inputs[0].name], _products(op, directions, values)[0]
    before = "".join(f"    const SumOfBoth<T> {name}(dev, {value});\n" for name, value in summed)
    after = "".join(f"    {name}.finish(dev);\n" for name, _ in summed)
    return f"""\
template <class T>
int32_t {op.name}{suffix}_entry(const NativeopsCall* call) {{
  return guard(call, [&](Device& dev) {{
    const In<T, 3> inputs = {x};
{before}    both_directions(
        dev, inputs.size(0), {products},
        [&](Device& one, bool second) {{
          {namespace}::{one.op}<T>(one, {", ".join(arguments)});
        }});
{after}  }});
}}
"""


def _entry_of_layers(op: Op[Any], layers: TwoLayers, suffix: str, namespace: str) -> str:
    """The C function of an op that calls a layer's kernel for it and for the next."""
    one = layers.layer.signature
    values = dict(zip(op.signature.names()[1:], _values(op.signature), strict=True))
    passing = layers.passing
    inputs, outputs = values | {passing: f"{passing}.read()"}, values | {passing: f"{passing}.made"}
    arguments = []
    for known, specs in ((inputs, one.inputs), (outputs, one.outputs)):
        for spec in specs:
            first, second = (known[name] for name in layers.names(spec.name))
            arguments.append(first if first == second else f"second ? {second} : {first}")
    arguments += [values[spec.name] for spec in one.attributes]
    turns, steps, begin, end = _products(op, layers, values), "inputs.size(0)", "", ""
    if layers.backwards:  # the first layer may have nothing that is wanted
        turns = turns[::-1]
        wanted = (f"bool({outputs[layers.names(spec.name)[0]]})" for spec in one.outputs)
        steps = f"first ? {steps} : 0"
        begin = f"    const bool first = {' || '.join(wanted)};\n"
        end = "    if (!first) return compute(dev, 0);\n"
    return f"""\
template <class T>
int32_t {op.name}{suffix}_entry(const NativeopsCall* call) {{
  return guard(call, [&](Device& dev) {{
    const In<T, 3> inputs = {values["x"]};
{begin}    const Between<T> {passing}(dev, {values.get(passing, "{}")}, {steps}, inputs.size(1),
                               {values["output"]}.size(2));
    const auto compute = [&](Device& one, int turn) {{
      const bool second = turn == {int(not layers.backwards)};
      {namespace}::{one.op}<T>(one, {", ".join(arguments)});
    }};
{end}    two_layers(dev, inputs.size(0), {", ".join(turns)}, compute);
  }});
}}
"""


def _products(op: Op[Any], twice: Directions | TwoLayers, values: dict[str, str]) -> list[str]:
    """How many numbers a step multiplies in each of both calls."""
    names = [
        twice.names(spec.name)
        for spec in twice.layer.signature.inputs
        if _rank(spec) == 2 and not any(axis.names() & {*op.independent} for axis in spec.axes)
    ]
    weights = [", ".join(values[each[place]] for each in names) for place in (0, 1)]
    return [f"products_of_step<T>(inputs, {{{each}}})" for each in weights]


def _table(ops: Iterable[Op[Any]], digest: str, suffix: str, number: int) -> str:
    """The rows of the library's table: one for each op and combination of dtypes."""
    rows = []
    for op in ops:
        # A word of an attribute may have quotes; C++ escapes them as JSON does.
        built_for = json.dumps(f"{op.signature} {digest}".rstrip(), ensure_ascii=False)
        for dtypes in itertools.product(*(VARIABLES[v] for v in op.signature.variables)):
            types = f"<{', '.join(CPP[d] for d in dtypes)}>" if dtypes else ""
            row = (
                f'    {{"{op.name}", {built_for}, "{",".join(dtypes)}", {int(bool(suffix))}, '
                f"{op.name}{suffix}_entry{types}}},"
            )
            tiled = not suffix or TILED.intersection(dtypes)
            rows += [row] if tiled else [f"#if {UNTILED}", row, "#endif"]
    listed = "\n".join(rows)
    return f"const Registered entries_{number}({{\n{listed}\n}});\n"


def _type(spec: ArraySpec) -> str:
    return TEMPLATE.get(spec.kind) or CPP[spec.dtypes[0]]


def _rank(spec: ArraySpec) -> int:
    return len(spec.axes) + bool(spec.batch)


def _view(direction: str, spec: ArraySpec) -> str:
    return f"{direction}<{_type(spec)}, {_rank(spec)}>"


def write_if_changed(path: Path, text: str) -> None:
    """Write a file, but leave it alone if it says the same: nothing is compiled again."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def write_sources(ops: Iterable[Op[Any]], directory: Path) -> None:
    """Write one source per kernel header; the `.cu` twin only includes it."""
    by_header = defaultdict(list)
    for op in ops:
        by_header[op.kernel].append(op)
    for header, group in sorted(by_header.items()):
        write_if_changed(
            directory / f"{header.stem}.cpp", kernel_source(group, f"nativeops/ops/{header.name}")
        )
        write_if_changed(directory / f"{header.stem}.cu", f'#include "{header.stem}.cpp"\n')


def main() -> None:
    """Write the sources of all built-in ops into the directory given."""
    import nativeops.ops  # noqa: F401  declares them
    from nativeops.registry import ops

    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_sources(ops(), target)


if __name__ == "__main__":
    main()
