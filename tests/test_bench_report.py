# SPDX-License-Identifier: Apache-2.0
"""The tables of a benchmark."""

import io

import numpy as np
import pytest

pytest.importorskip("rich")
from rich.console import Console

from nativeops.bench import compare, history, report
from nativeops.bench.case import Bench, Rival
from nativeops.bench.measure import Effort, measure

RUN = history.Run("op", "cpu", "machine", 2, "avx2", "g++ 12", "abc", "2026-11-01T00:00:00+00:00")


def test_name_of_a_rival_is_shown_as_it_is() -> None:
    names = ("x[f32]", "x[/]", "a | b")
    rivals = [Rival(name, lambda x: lambda: x, "numpy", "numpy") for name in names]
    bench = Bench("same", "x", [{"n": 1}], lambda random, n: (np.ones(n),), rivals)
    effort = Effort(seconds=1e-9, fewest=3, most=3, sample=1e-9)
    rows = compare.rows(RUN, list(measure(bench, bench.sizes, effort)), [])
    page = report.to_markdown(RUN, [bench], rows, "a CPU")
    for shown in ("|   x[f32] |", "|   x[/]   |", r"|   a \| b |"):
        assert shown in page
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.to_terminal(RUN, [bench], rows, "a CPU"))
    text = console.export_text()
    assert all(name in text for name in names)
