# SPDX-License-Identifier: Apache-2.0
"""Tiles in software (devices/cpu/soft_tiles.h) stand for those of the processor (tiles.h): the same
operations, written as the compiler's own intrinsics would be."""

import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SRC = HERE.parent.parent / "src"
CPU = SRC / "nativeops/devices/cpu"
FLAGS = SRC / "nativeops/devices/flags.txt"
OPERATION = re.compile(r"^(template <[^>]*>\n)?inline void (\w+\([^)]*\)) {", re.MULTILINE)


def operations(header: str) -> list[tuple[str, ...]]:
    text = (CPU / header).read_text()
    text = text[text.rindex("namespace nativeops::tiles {") :]
    return [found for found in OPERATION.findall(text) if not found[1].startswith("demand")]


def test_both_headers_have_the_same_operations() -> None:
    hard, soft = operations("tiles.h"), operations("soft_tiles.h")
    assert len(hard) == 5
    assert hard == soft


def flags_of_amx() -> list[str]:
    lines = dict(line.split(":", 1) for line in FLAGS.read_text().splitlines() if ": " in line)
    return [*lines["all"].split(), *lines["amx"].split(), "-DNATIVEOPS_LEVEL=3"]


def compiled(source: Path, *flags: str) -> str:
    command = ["g++", "-std=c++17", *flags_of_amx(), f"-I{SRC}", f"-I{HERE}", *flags]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    assert not done.stderr
    return done.stdout


PAIRS = {
    "tiles::configure(*config)": "_tile_loadconfig(config)",
    "tiles::release()": "_tile_release()",
    "(tiles::load<3>(memory, stride))": "_tile_loadd(3, memory, stride)",
    "(tiles::store<4>(memory, stride))": "_tile_stored(4, memory, stride)",
    "(tiles::add_products<5, 6, 7>())": "_tile_dpbf16ps(5, 6, 7)",
}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.items(), ids=PAIRS.values())
def test_operation_is_the_instruction_of_the_intrinsic(tmp_path: Path, ours, theirs) -> None:
    source = tmp_path / "one.cpp"
    head = '#include <immintrin.h>\n#include "nativeops/devices/cpu/tiles.h"\n'
    arguments = "const nativeops::tiles::Config* config, void* memory, long stride"
    found = []
    for call in (ours, theirs):
        body = f"(void)config, (void)memory, (void)stride; {call};"
        source.write_text(
            f'{head}using namespace nativeops;\nextern "C" void f({arguments}) {{ {body} }}\n'
        )
        lines = compiled(source, "-S", "-o", "-").splitlines()
        found.append(
            [" ".join(line.split()) for line in lines if re.search("tmm|tile(cfg|rel)", line)]
        )
    assert len(found[0]) == 1
    assert found[0] == found[1]


def test_products_compile_for_the_processor_without_a_warning(tmp_path: Path) -> None:
    compiled(HERE / "tiles.cpp", "-O1", "-c", "-o", str(tmp_path / "tiles.o"))
