# SPDX-License-Identifier: Apache-2.0
"""Whole small applications on real data, one stem each; ``nativeops demo`` runs them."""
