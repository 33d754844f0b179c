# SPDX-License-Identifier: Apache-2.0
"""What a check finds, and what each of its jobs reports."""

from collections.abc import Iterator
from dataclasses import dataclass

from nativeops.checking.source import Place


@dataclass(frozen=True)
class Finding:
    """One bug: its class in a few words, what was seen, and where in the user's files."""

    op: str
    bug: str
    text: str
    file: str
    line: int
    aspect: str = ""


@dataclass(frozen=True)
class Case:
    """One thing that is looked at, and what it means if the process dies of it."""

    name: str
    death: Finding | None = None


@dataclass(frozen=True)
class Unchecked:
    """Something that could not be looked at here, and why."""

    why: str


Step = Finding | Case | Unchecked
Steps = Iterator[Step]


def found(op: str, bug: str, text: str, place: Place) -> Finding:
    """A finding at a place."""
    return Finding(op, bug, text, place.file, place.line)
