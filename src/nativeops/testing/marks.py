# SPDX-License-Identifier: Apache-2.0
"""Marks of tests that do not hold everywhere."""

import os

import pytest

from nativeops.testing.aspects import levels

# what was freed stays with it for a while
without_sanitizer = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps memory of its own"
)
tuned = pytest.mark.skipif(
    "portable" in (levels()[-1], os.environ.get("NATIVEOPS_ISA")), reason="no tuned kernel runs"
)
