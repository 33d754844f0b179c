# SPDX-License-Identifier: Apache-2.0
"""``python -m nativeops``: the same as the command ``nativeops``."""

from nativeops.cli import main

main()
