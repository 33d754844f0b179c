# SPDX-License-Identifier: Apache-2.0
"""Tests that do not hold everywhere: marks, and what may be missing."""

import os

import pytest

from nativeops.testing.aspects import levels

# What must be there: a job that promises a framework or device fails where it is missing.
EXPECTED = os.environ.get("NATIVEOPS_EXPECT", "").replace(",", " ").split()
# what was freed stays with it for a while
without_sanitizer = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps memory of its own"
)
tuned = pytest.mark.skipif(
    "portable" in (levels()[-1], os.environ.get("NATIVEOPS_ISA")), reason="no tuned kernel runs"
)


def missing(what: str, hint: str) -> None:
    """Skip with the reason, or fail where this was promised."""
    if what in EXPECTED:
        pytest.fail(f"{what} is expected by NATIVEOPS_EXPECT, but it is missing: {hint}")
    pytest.skip(f"{what} is missing: {hint}")
