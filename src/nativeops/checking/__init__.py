# SPDX-License-Identifier: Apache-2.0
"""Checking a file of ops as a whole: `nativeops check FILE`, and what tests beside it use."""

from nativeops.checking.source import ops_beside, ops_of

__all__ = ["ops_beside", "ops_of"]
