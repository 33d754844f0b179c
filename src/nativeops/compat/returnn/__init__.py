# SPDX-License-Identifier: Apache-2.0
"""RETURNN's native ops by their names in its PyTorch backend, or else in TensorFlow's.

Those of the PyTorch backend are here where PyTorch is installed.
"""

from nativeops.compat.returnn.lstm import *  # noqa: F403

try:
    from nativeops.compat.returnn.automata import *  # noqa: F403
    from nativeops.compat.returnn.chunking import *  # noqa: F403
    from nativeops.compat.returnn.edit_distance import *  # noqa: F403
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
