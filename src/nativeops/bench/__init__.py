# SPDX-License-Identifier: Apache-2.0
"""How fast, against whom: measured interleaved, after the results were compared.

A ``<op>_bench.py`` file beside an op holds ``BENCHES``, made of `case.Bench` and the rivals of
`forms`. `run.run_op` measures them in fresh processes, `history` keeps the figures, `report`
prints them.
"""
