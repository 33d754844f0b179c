# SPDX-License-Identifier: Apache-2.0
"""The native ops of RETURNN's PyTorch backend by their names there; a file per topic."""

from nativeops.compat.returnn.automata import *  # noqa: F403
