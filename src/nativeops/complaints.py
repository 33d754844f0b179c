# SPDX-License-Identifier: Apache-2.0
"""What a compiler complains about, told against the user's own file and line.

An error inside of this package's headers is told where the user's file leads there; the templates
between the two are left out.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nativeops.identity import normal

_MOST = 5  # complaints that are shown
_PLACE = re.compile(
    r"^(?:In file included from |\s+from )?(\S.*?)(?::(\d+):|\((\d+)\):)(?:(\d+):)?"
)
_ERROR = re.compile(r"(?:fatal )?error(?: #[\w-]+)?: (.*)$")
_DIAGNOSTIC = re.compile(r"(?:error|warning|note|remark)(?: #[\w-]+)?: ")
_AGREEMENT = re.compile(r"(the kernel `.*)$")  # of the static_assert that glue.py writes
# nvcc tells it inside of this package's headers; the place is in the text.
_CLOSURE = re.compile(r"(The closure type for a lambda) \(.*defined at (.*?:\d+)\)( .*?), unless")
_WAYS_OUT = (
    (
        r"""['"]gemm['"] (?:was not declared|that is neither|is undefined)|identifier 'gemm'$""",
        'write `#include "nativeops/devices/gemm.h"`',
    ),
    (
        r"^void value not ignored|^'void .*' has incomplete type",
        "the function given to a loop must return the value of an element",
    ),
    (
        r"(?:^no match for 'operator.?=' |^conversion from |^could not convert ).*nativeops::b?f16",
        "bf16 and f16 only hold numbers: compute in `Accum<T>`, and write `T(value)`",
    ),
    (
        r"^no match for 'operator\[\]' .*nativeops::(?:In|Out|View)<",
        "a view takes all its indices at once: `x(b, i)`",
    ),
    (
        "^The closure type for a lambda|lambda cannot capture variables by reference",
        "a GPU runs it: write `[=] KERNEL(...)`",
    ),
    (
        r"'(?:max|min)' was not declared|"
        r'^calling a (?:constexpr )?__host__ function\("(?:(?:::)?std::)?(?:max|min)\b',
        "the larger and the smaller of two numbers are `max2` and `min2`, on every device",
    ),
    (
        r'^calling a (?:constexpr )?__host__ function\("(?:::)?std::',
        "a GPU has no containers or streams of the standard library; `dev.workspace` lends memory",
    ),
    (
        r"^calling a (?:constexpr )?__host__ function",
        "a GPU calls it: write `HOST_DEVICE` before a function of yours",
    ),
    (
        "'__device__'",
        "write `HOST_DEVICE` before a function of yours: the CPU calls it, too",
    ),
    (
        "'__global__'",
        "write its body in `launch(dev, grid, block, [=] KERNEL() { ... })`",
    ),
    (
        r"'atomic(?!Add')[A-Z]\w*'",
        "of atomics there is `atomicAdd`; `team.max` and `block_max` find a largest number",
    ),
    (
        "'__ldg'",
        "write `x(b, i)`: what an `In` gives is only read, which compilers know",
    ),
    (
        "^standard attributes in middle of decl-specifiers",
        "shared memory has a size in the text, `SHARED float part[256]`; `dev.workspace` lends any",
    ),
)
# What is told of a macro of this package's without the line that has it, and what is written there.
_UNPLACED = (
    (
        re.compile("^standard attributes in middle of decl-specifiers"),
        re.compile(r"\bextern\s+(?:__shared__|SHARED)\b"),
    ),
)
_SNIPPET = re.compile(r"^\s+\d* ?\|")


@dataclass
class _Complaint:
    """One error, the places of the user's file that lead to it, and the lines that it shows."""

    text: str
    place: str = ""  # in the user's file
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    snippet: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        agreement = _AGREEMENT.search(self.text)
        if agreement:
            return agreement[1]
        first = f"{self.where}: error: {self.text}" if self.where else f"error: {self.text}"
        ways_out = [way_out for words, way_out in _WAYS_OUT if re.search(words, self.text)]
        return "\n    ".join([first, *self.snippet[:2], *ways_out[:1]])

    @property
    def where(self) -> str:
        """The user's line that tells most: that of the error, or the last on the way to it."""
        return self.place or next(iter([*self.before[-1:], *self.after[:1]]), "")

    @property
    def rank(self) -> int:
        """What tells the user most comes first."""
        if self.place or (self.where and self.text.startswith("expected")):
            return 0  # what is no C++ may also look like a kernel that does not agree
        if _AGREEMENT.search(self.text):
            return 1
        return 2 if self.where else 3


def complaints(output: str, own: Collection[Path]) -> list[str]:
    """The first errors of a compiler; `own` are the user's files."""
    found = list(_read(output.splitlines(), own))
    best = min((each.rank for each in found), default=0)
    # One for each place: the same comes again for each dtype.
    chosen = {each.where or str(each): each for each in reversed(found) if each.rank == best}
    return list(dict.fromkeys(str(each) for each in reversed(chosen.values())))[:_MOST]


def _read(lines: list[str], own: Collection[Path]) -> Iterator[_Complaint]:
    current: _Complaint | None = None
    before: list[str] = []
    shown = False  # whether the lines of source that follow are the error's own
    for line in lines:
        place, error = _place(line, own), _ERROR.search(line)
        if error:
            if current:
                yield current
            closure = _CLOSURE.match(error[1])
            if closure and not place:
                place = _place(f"{closure[2]}:", own)
            text = closure[1] + closure[3] if closure else error[1]
            current = _Complaint(text, place or _written(text, own), before)
            before, shown = [], bool(place)
        elif _SNIPPET.match(line):
            if current and shown:
                current.snippet.append(line)
        elif _DIAGNOSTIC.search(line):
            before, shown = [], False
            if current and place:  # clang tells afterwards what led there
                current.after.append(place)
        elif place:  # gcc tells it before
            before.append(place)
    if current:
        yield current


def _place(line: str, own: Collection[Path]) -> str:
    """The user's file and line that a compiler's line names."""
    found = _PLACE.match(line)
    if not found or normal(Path(found[1])) not in own:
        return ""
    return ":".join(part for part in found.groups() if part)


def _written(text: str, own: Collection[Path]) -> str:
    """The user's line that must be meant by an error which names none."""
    for said, words in _UNPLACED:
        for path in own if said.search(text) else ():
            lines = path.read_text("utf-8", errors="replace").splitlines()
            if found := [number for number, line in enumerate(lines, 1) if words.search(line)]:
                return f"{path}:{found[0]}"
    return ""
