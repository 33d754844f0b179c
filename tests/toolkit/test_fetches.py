# SPDX-License-Identifier: Apache-2.0
"""What only fetches is there in the compiled code: g++ leaves out calls of what has no effect."""

import subprocess
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent.parent / "src"
HEADERS = ["devices/kernel.h", "devices/cpu/rows.h", "devices/cpu/recurrent_rows.h"]
SOURCE = """
using namespace nativeops;
void {name}(View<const float, 2> x, View<const int32_t, 1> order, int64_t n) {{
  const float* rows[1] = {{x.data}};
  for (int64_t i = 0; i < n; ++i) {call};
  (void)rows, (void)order;
}}
"""
CALLS = {
    "early": "fetch_early(at(x, order(i)))",
    "once": "fetch_once(at(x, order(i)))",
    "expected": "tuned::expect_row<1>(&x(order(i), 0), n)",
    "rows": "tuned::fetch_rows(rows, 1, n)",
    "line": "(tuned::Line<float>{&x(order(i), 0), 1}.fetch(0, n))",
}


@pytest.mark.parametrize("optimise", ["-O1", "-O2", "-O3"])
@pytest.mark.parametrize("name", CALLS)
def test_fetch_remains(tmp_path: Path, name: str, optimise: str) -> None:
    source = tmp_path / "fetch.cpp"
    lines = [f'#include "nativeops/{header}"' for header in HEADERS]
    source.write_text("\n".join(lines) + SOURCE.format(name=name, call=CALLS[name]))
    level = ["-mavx2", "-mfma", "-mf16c", "-DNATIVEOPS_LEVEL=1", optimise]
    command = ["g++", "-std=c++17", *level, f"-I{SRC}", "-S", "-o", "-", str(source)]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "prefetch" in made
