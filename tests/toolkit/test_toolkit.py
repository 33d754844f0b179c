# SPDX-License-Identifier: Apache-2.0
"""The cases of the C++ tests, one by one. A case is what `CASE(name)` defines in a source."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SRC = HERE.parent.parent / "src"
KERNEL_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math")  # as kernels are built
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "cd")))
# The flags say the device and the instruction set, and with them whether products fuse with sums.
ON_THREADS = ("-O1", "-DNATIVEOPS_CPU_THREADS", "-DNATIVEOPS_USER_OP")
PROGRAMS = {
    "loops": ("loops.cpp", ("-O2", "-DNATIVEOPS_USER_OP")),
    "loops on cpu-threads": ("loops.cpp", ON_THREADS),
    "reductions": ("reductions.cpp", ("-O2", "-DNATIVEOPS_LEVEL=0")),
    "reductions on cpu-threads": ("reductions.cpp", ON_THREADS),
    "reductions with avx2": ("reductions.cpp", (*KERNEL_FLAGS, *AVX2, "-DNATIVEOPS_LEVEL=1")),
    "reductions with avx512": ("reductions.cpp", (*KERNEL_FLAGS, *AVX512, "-DNATIVEOPS_LEVEL=2")),
    "contract": ("contract.cpp", ("-O2",)),
    "contract on cpu-threads": ("contract.cpp", ON_THREADS),
    "gemm": ("gemm.cpp", ("-O2", "-DNATIVEOPS_LEVEL=0")),
    "gemm on cpu-threads": ("gemm.cpp", ON_THREADS),
    "gemm with avx2": ("gemm.cpp", ("-O2", *AVX2, "-DNATIVEOPS_LEVEL=1")),
    "gemm with avx512": ("gemm.cpp", ("-O2", *AVX512, "-DNATIVEOPS_LEVEL=2")),
    "pairwise": ("pairwise.cpp", ("-O1", *KERNEL_FLAGS[1:])),
    "numbers": ("numbers.cpp", KERNEL_FLAGS),
    "numbers with fma": ("numbers.cpp", (*KERNEL_FLAGS, *AVX2)),
    "crowding": ("crowding.cpp", ("-O2", *AVX2, "-DNATIVEOPS_LEVEL=1")),
    "phases": ("phases.cpp", ("-O2", *AVX2, "-DNATIVEOPS_LEVEL=1")),
    "recurrent on cpu-threads": ("recurrent_blocks.cpp", ON_THREADS),
    "recurrent": ("recurrent.cpp", (*KERNEL_FLAGS, *AVX2, "-DNATIVEOPS_LEVEL=1")),
    "recurrent with avx512": (
        "recurrent.cpp",
        (*KERNEL_FLAGS, *AVX512, "-mprefer-vector-width=512", "-DNATIVEOPS_LEVEL=2"),
    ),
    "kept weights": ("kept_weights.cpp", (*KERNEL_FLAGS, *AVX2, "-DNATIVEOPS_LEVEL=1")),
    "kept weights with avx512": ("kept_weights.cpp", ("-O2", *AVX512, "-DNATIVEOPS_LEVEL=2")),
}
# What takes long to compile.
SLOW = {
    "recurrent with avx512",
    "tiles",
    "recurrent by tiles",
    "gemm by tiles",
}
# The level with tiles, which are in software here; memory is watched, as kernels work on raw rows.
SOFT_TILES = (
    "-Og", *KERNEL_FLAGS[1:], *AVX512, "-mprefer-vector-width=512", "-DNATIVEOPS_LEVEL=3",
    "-DNATIVEOPS_SOFT_TILES", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip
PROGRAMS |= {
    "tiles": ("tiles.cpp", SOFT_TILES),
    "recurrent by tiles": ("recurrent_tiles.cpp", SOFT_TILES),
    "kept weights of tiles": ("kept_weights.cpp", SOFT_TILES),
    "gemm by tiles": ("gemm.cpp", SOFT_TILES),
}
NOT_THIS_CPU = 77


def cases() -> Iterator[object]:
    for name, (source, _) in PROGRAMS.items():
        marks = [pytest.mark.slow] if name in SLOW else []
        text = (HERE / source).read_text()
        found = re.findall(r"\bCASE\((\w+)\)", text)
        functions = re.findall(r"^FUNCTION\((\w+),", text, re.MULTILINE)
        found += [f"{function}_is_accurate_for_every_number" for function in functions]
        for case in found:
            if "##" not in case and case != "name":
                yield pytest.param(name, case, id=f"{name}: {case}", marks=marks)


@pytest.mark.parametrize(("program", "case"), list(cases()))
def test_case_holds(build: Callable[..., Path], program: str, case: str) -> None:
    source, flags = PROGRAMS[program]
    command = [build(source, *flags), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode == NOT_THIS_CPU:
        pytest.skip("this CPU has not the instructions that the program is built for")
    assert done.returncode == 0, done.stderr


def test_unknown_case_fails(build: Callable[..., Path]) -> None:
    source, flags = PROGRAMS["loops"]
    done = subprocess.run([build(source, *flags), "no_such_case"], capture_output=True, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize("level", [(), AVX2], ids=["portable", "avx2"])
def test_loops_over_elementary_functions_vectorise(level: tuple[str, ...]) -> None:
    source = HERE / "vectorised.cpp"
    command = ["g++", "-std=c++17", *KERNEL_FLAGS, *level, "-fopt-info-vec", f"-I{SRC}"]
    command += ["-c", str(source), "-o", "/dev/null"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    hits = re.findall(r"vectorised\.cpp:(\d+):\d+:.*loop vectorized", report)
    done = {int(line) for line in hits}
    lines = source.read_text().splitlines()
    loops = {n: line for n, line in enumerate(lines, 1) if line.startswith("LOOP(")}
    assert loops
    assert not [line for n, line in loops.items() if n not in done]
