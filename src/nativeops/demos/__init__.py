# SPDX-License-Identifier: Apache-2.0
"""Whole small applications on real data, one file each; ``nativeops demo`` runs them."""
