# SPDX-License-Identifier: Apache-2.0
"""The file of ops that a command is given: what it declares, or why it cannot be used."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nativeops.call import Op
from nativeops.checking import ops_of
from nativeops.checking.source import line_in, unusable
from nativeops.cli.output import fail


def ops_in(command: str, file: Path) -> dict[str, Op[Any]]:
    """The ops of a file, or the end with why there are none, and with the line of the file."""
    if not file.is_file():
        fail(f"nativeops {command}: there is no file {file}.")
    if file.suffix != ".py":
        fail(f"nativeops {command}: {file} declares no ops: give the .py file that does.")
    try:
        return ops_of(file)
    except (Exception, SystemExit) as error:
        text = f"nativeops {command}: {file} cannot be used: {type(error).__name__}: {error}"
        line = line_in(file.resolve(), error)
        fail(f"{text}\n    at {file}:{line}" if line else text)


def check_usable(command: str, ops: Iterable[Op[Any]]) -> None:
    """The end where a declaration alone tells that no call can succeed."""
    for op in ops:
        if why := unusable(op):
            fail(f"nativeops {command}: {why}")
