# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers with the interfaces of the frameworks' own, one file for each framework."""
