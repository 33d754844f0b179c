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
_GEMM = re.compile(
    r"""['"]gemm['"] (?:was not declared|that is neither|is undefined)|identifier 'gemm'$"""
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
        way_out = ['write `#include "nativeops/devices/gemm.h"`'] if _GEMM.search(self.text) else []
        return "\n    ".join([first, *self.snippet[:2], *way_out])

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
            current = _Complaint(error[1], place, before)
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
