# SPDX-License-Identifier: Apache-2.0
"""The names and argument orders of other libraries, on the ops of this one."""
