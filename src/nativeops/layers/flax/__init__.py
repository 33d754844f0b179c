# SPDX-License-Identifier: Apache-2.0
"""Layers with the interfaces of Flax: `linen` and `nnx` stand for its two families of modules."""
