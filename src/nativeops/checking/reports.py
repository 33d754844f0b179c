# SPDX-License-Identifier: Apache-2.0
"""What sanitizers and compilers report, read as findings in the user's files."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from nativeops.checking.finding import Finding, found
from nativeops.checking.source import Place

FRAME = re.compile(r"^ +#\d+ .*? (/.+?):(\d+)", re.M)
ACCESS = re.compile(r"^ {2}(?:Previous )?(?:atomic )?(read|write) of size", re.M | re.I)
SNIPPET = re.compile(r"\d* ?\|")  # a line of source, or the marks below it
COMPILER = re.compile(r"(/.+?):(\d+)(?::\d+)?: error: (.*)")
RUNTIME = re.compile(r"^(/.+?):(\d+):\d+: runtime error: (.*)$", re.M)
BARRIER = re.compile(r"(divergent barrier|barrier not reached by all)[^\n]*")


class Access(NamedTuple):
    """One of the two accesses of a race."""

    kind: str  # read or write
    place: Place | None


def first_own(frames: str, own: Sequence[str]) -> Place | None:
    """The innermost frame that lies in one of the user's files."""
    for file, line in FRAME.findall(frames):
        if file in own:
            return Place(file, int(line))
    return None


def race(report: str, op: str, own: Sequence[str], default: Place) -> Finding | None:
    """The finding for the reports of ThreadSanitizer about one case."""
    pairs = [
        accesses(part, own)
        for part in re.split(r"^WARNING: ThreadSanitizer: ", report, flags=re.M)[1:]
        if part.startswith("data race")
    ]
    pairs = [pair for pair in pairs if len(pair) == 2]
    if not pairs:
        return None
    known = [pair for pair in pairs if pair[0].place and pair[1].place] or pairs
    apart = [pair for pair in known if pair[0].place != pair[1].place]
    first, second = (apart or known)[0]
    place = first.place or second.place or default
    if apart:
        lines = " and ".join(str(p.line) for p in (second.place, first.place) if p)
        text = f"threads of a block access one number at lines {lines} without an order: put a "
        text += "`sync()` between the two phases, or give each number one owner."
        return found(op, "missing barrier", text, place)
    if any(access.kind == "read" for pair in known for access in pair):
        text = "several threads read, change and write one number: use `atomicAdd` (of integers) "
        text += "or give each number one owner."
        return found(op, "update without atomics", text, place)
    text = "several threads write one number: let one of them, `if (threadIdx.x == 0)`."
    return found(op, "race on a shared value", text, place)


def accesses(part: str, own: Sequence[str]) -> list[Access]:
    """The two accesses of one report."""
    body = re.split(r"\n\n +(?:Location|Thread|As if|SUMMARY|Mutex)", part)[0]
    kinds = list(ACCESS.finditer(body))
    ends = [*(kind.start() for kind in kinds[1:]), len(body)]
    frames = [body[kind.end() : end] for kind, end in zip(kinds, ends, strict=True)]
    return [
        Access(kind[1].lower(), first_own(text, own))
        for kind, text in zip(kinds, frames, strict=True)
    ]


def barrier(message: str, op: str, own: Sequence[str], default: Place) -> Finding | None:
    """The finding for what the debug device says about a barrier."""
    said = BARRIER.search(message)
    if said is None:
        return None
    places = [Place(f, int(n)) for f, n in re.findall(r"at (\S+?):(\d+)", said[0]) if f in own]
    return found(op, said[1], said[0], places[0] if places else default)


def memory(report: str, op: str, own: Sequence[str], default: Place) -> Finding | None:
    """The finding for what AddressSanitizer and UBSanitizer report."""
    if undefined := RUNTIME.search(report):
        file, line, said = undefined.groups()
        place = Place(file, int(line)) if file in own else first_own(report, own) or default
        overflow = "overflow" in said or "too large" in said
        bug = "integer overflow" if overflow else "undefined behaviour"
        return found(op, bug, said, place)
    error = re.search(r"ERROR: AddressSanitizer: ([\w-]+)", report)
    if error is None:
        return None
    access = re.search(r"^(READ|WRITE) of size (\d+)", report, re.M)
    signal = re.search(r"caused by a (READ|WRITE)", report)
    kind = (access or signal or error)[1]
    verb = {"READ": "reads", "WRITE": "writes"}.get(kind, "goes")
    where = re.search(
        r"is located (\d+) bytes (to the right|to the left|after|before|inside) ", report
    )
    side = {"to the left": "before the start", "before": "before the start"}
    edge = side.get(where[2], "past the end") if where else "outside"
    text = error[1] + (f", {access[2]} bytes" if access else "")
    if where:
        text += f", {where[1]} bytes {edge} of an array"
    bug = f"{verb} {edge} of an array" if where else f"{verb} outside of its arrays"
    return found(op, bug, text, first_own(report, own) or default)


def compiler_errors(said: str, own: Sequence[str]) -> tuple[Place | None, str]:
    """The place of a compiler's first error in one of the user's files, and what it is.

    Without such an error, all that was said; and if there is no such kernel, only that.
    """
    lines = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    lines = [line for line in lines if not SNIPPET.match(line)]
    absent = [line for line in lines if line.startswith("there is no kernel `")]
    for number, line in enumerate(lines):
        error = COMPILER.match(line)
        if error and error[1] in own:
            way_out = takewhile(lambda each: not COMPILER.match(each), lines[number + 1 :])
            text = "\n".join(dict.fromkeys([error[3], *way_out, *absent]))
            return Place(error[1], int(error[2])), text
    hint = [line.strip() for line in said.splitlines() if line.startswith("  hint: ")]
    return None, "\n".join(absent or [*lines, *hint] if lines else [said.strip()])
