# SPDX-License-Identifier: Apache-2.0
"""RETURNN's native ops for PyTorch, with their names and arguments."""

from nativeops.compat.returnn.chunking import chunk, unchunk

__all__ = ["chunk", "unchunk"]
