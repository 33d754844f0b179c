# SPDX-License-Identifier: Apache-2.0
"""The built-in ops: importing this package declares all of them."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.endswith(("_test", "_bench")):
        importlib.import_module(f"{__name__}.{_module.name}")
