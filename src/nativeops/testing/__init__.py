# SPDX-License-Identifier: Apache-2.0
"""Tests of an op from its declaration alone: `check(op)`, or one of its `cases(op)` at a time."""

from nativeops.testing.case import Case
from nativeops.testing.draw import arguments, check_sizes
from nativeops.testing.matrix import cases, check, installed, modes, plain_case
from nativeops.testing.wrong import Mistake, mistakes

__all__ = [
    "Case", "Mistake", "arguments", "cases", "check", "check_sizes", "installed", "mistakes",
    "modes", "plain_case",
]  # fmt: skip
