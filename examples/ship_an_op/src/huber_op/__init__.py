# SPDX-License-Identifier: Apache-2.0
"""Huber's function: squares near zero, absolute values beyond."""

from huber_op.huber import huber

__all__ = ["huber"]
