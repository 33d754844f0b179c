# SPDX-License-Identifier: Apache-2.0
"""RETURNN's native ops by their names in its PyTorch backend, or else in TensorFlow's."""

from nativeops.compat.returnn.automata import *  # noqa: F403
from nativeops.compat.returnn.chunking import *  # noqa: F403
from nativeops.compat.returnn.edit_distance import *  # noqa: F403
from nativeops.compat.returnn.lstm import *  # noqa: F403
