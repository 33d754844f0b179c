# SPDX-License-Identifier: Apache-2.0
"""Fused native operations for NumPy and PyTorch, each written once."""

from nativeops import frameworks
from nativeops.errors import NativeOpsError
from nativeops.library import get_num_threads, set_num_threads
from nativeops.ops.pairwise_l1 import pairwise_l1
from nativeops.ops.pairwise_lp import pairwise_lp

__all__ = ["NativeOpsError", "get_num_threads", "pairwise_l1", "pairwise_lp", "set_num_threads"]

frameworks.load_imported()
