# SPDX-License-Identifier: Apache-2.0
"""Where a kernel puts a 64-bit number into one of 32 bits, as the compiler's warnings tell."""

import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from nativeops.call import Op
from nativeops.checking import source
from nativeops.checking.finding import Finding, found
from nativeops.checking.source import Place
from nativeops.compilers import cpp_compiler, run
from nativeops.glue import kernel_source

INCLUDE = Path(__file__).resolve().parent.parent.parent
FLAGS = ["-std=c++17", "-fsyntax-only", "-Wconversion", "-Wno-float-conversion"]
PLACE = re.compile(r"^(/.+?):(\d+):")
NARROW = re.compile(
    r"warning: (conversion from .*\b(?:int64_t|long)\b.* to .*\b(?:int|unsigned|short)\b.*)"
    r" may change value|warning: implicit (conversion) loses integer precision"
)


def overflow(op: Op[Any], limit: str, text: str) -> Finding:
    """The finding for an op that is wrong at sizes over a limit, and right just below."""
    bug = f"integer overflow at sizes over {limit}"
    if narrow := narrowing(op):
        place, said = narrow
        return found(op.name, bug, f"{text} There is a {said}: use `int64_t`.", place)
    text += " Is every size and index an `int64_t`?"
    return found(op.name, bug, text, source.kernel(op))


@cache
def narrowing(op: Op[Any]) -> tuple[Place, str] | None:
    """The first such place in the user's files, and what the compiler says of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cpp"
        path.write_text(kernel_source([op], op.kernel.name), "utf-8")
        include = [f"-I{op.kernel.parent}", f"-I{INCLUDE}"]
        done = run([*cpp_compiler(), *FLAGS, "-DNATIVEOPS_LEVEL=0", *include, str(path)])
    own = source.own_files(op)
    led: Place | None = None  # the user's line that an error in a loop shape comes from
    for line in done.stderr.splitlines():
        place = PLACE.match(line)
        here = Place(place[1], int(place[2])) if place and place[1] in own else None
        if narrow := NARROW.search(line):
            if here or led:
                return (here or led or Place("", 0)), narrow[1] or narrow[2]
            led = None
        elif here and "required from" in line:
            led = led or here
    return None
