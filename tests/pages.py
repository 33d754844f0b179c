# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a Markdown page, for the tests that run them.

A comment before a block says what to do with it: ``<!-- file: NAME -->`` write it to that file,
``<!-- from: PATH -->`` it quotes that file, any other word is up to the test.
"""

import re
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)```\n", re.S
)


class Block(NamedTuple):
    """One block of code."""

    language: str
    text: str
    mark: str
    line: int

    @property
    def path(self) -> str:
        """The file that a mark `file: NAME` or `from: PATH` names."""
        return self.mark.partition(": ")[2] if self.mark.startswith(("file: ", "from: ")) else ""


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(m["language"], m["text"], m["mark"] or "", text[: m.start("text")].count("\n") + 1)
        for m in FENCE.finditer(text)
    ]
