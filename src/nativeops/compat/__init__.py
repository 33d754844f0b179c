# SPDX-License-Identifier: Apache-2.0
"""Names and argument orders of other packages, over the same ops."""
