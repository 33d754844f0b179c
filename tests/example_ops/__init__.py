# SPDX-License-Identifier: Apache-2.0
"""Ops as a user would write them; together they use the whole language of declarations."""
