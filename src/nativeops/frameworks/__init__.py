# SPDX-License-Identifier: Apache-2.0
"""The frameworks whose arrays the ops take: one file each, imported when first needed."""

from nativeops.frameworks.base import Framework, framework_of, load, load_imported

__all__ = ["Framework", "framework_of", "load", "load_imported"]
