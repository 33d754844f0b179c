# SPDX-License-Identifier: Apache-2.0
"""The frameworks whose arrays the ops take: one file each, imported when first needed."""

from nativeops.frameworks.base import (
    DLPACK,
    ENTRIES,
    Framework,
    framework_of,
    has_entry,
    load,
    load_imported,
)

__all__ = [
    "DLPACK", "ENTRIES", "Framework", "framework_of", "has_entry", "load", "load_imported",
]  # fmt: skip
