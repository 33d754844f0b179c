# SPDX-License-Identifier: Apache-2.0
"""What a user's kernel throws is one error in all frameworks, and no error of the build."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nativeops import registry
from nativeops.call import Op
from nativeops.checking.faults import fault
from nativeops.errors import KernelError, RangeError
from nativeops.testing.arrays import arrays_of

from .an_op import declare, write

# By the number of elements, which is what it can tell apart.
THROWN = {
    1: ('throw std::runtime_error("the table cannot be read");', "the table cannot be read"),
    2: (r'throw std::out_of_range("two\nlines [of: text].");', "two\nlines [of: text]."),
    3: ("throw 3;", "the kernel failed"),
    4: ('throw std::runtime_error("");', "the kernel failed and does not say why"),
    5: ('throw std::runtime_error("`x` is odd");', "`x` is odd"),
    8: (r'throw std::runtime_error("\xc3\xbc \xff \xed\xa0\x80 \xc3");', "ü ? ??? ?"),
    9: ("throw std::runtime_error(euros(4000));", "€" * 682),
}
EUROS = r"""
#include <stdexcept>
#include <string>
inline std::string euros(int n) { return n ? "\xe2\x82\xac" + euros(n - 1) : ""; }
"""
FIRST = r"^scaled: the table cannot be read"  # JAX may add a note
REFUSED = "`x[1]` is 9, but must be less."
FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])


@pytest.fixture
def scaled(
    kept: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Op[Any]]:
    """An op whose kernel throws; compiled once for all tests here."""
    folder = tmp_path_factory.getbasetemp().parent / "thrown"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("NATIVEOPS_CACHE", str(folder / "cache"))
    cases = [*((n, code) for n, (code, _) in THROWN.items()),
             (6, f'throw std::runtime_error("{REFUSED}");')]  # fmt: skip
    lines = [f"if (x.size(0) == {n}) {code}" for n, code in cases]
    lines.append("for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = x(i); });")
    header = write(tmp_path, body="\n  ".join(lines))
    header.write_text(EUROS + header.read_text())
    yield declare(header)
    registry._OPS.pop("scaled", None)


def ones(framework: str, n: int) -> Any:
    pytest.importorskip(framework)
    return arrays_of(framework, "cpu").place(np.ones(n), "float32").array


@FRAMEWORKS
def test_what_a_kernel_throws_is_told_in_its_words(scaled: Op[Any], framework: str) -> None:
    for n, (_, text) in THROWN.items():
        with pytest.raises(KernelError, match=f"^scaled: {re.escape(text)}$"):
            scaled(ones(framework, n))
    with pytest.raises(RangeError, match=f"^scaled: {re.escape(REFUSED)}$"):
        scaled(ones(framework, 6))
    np.testing.assert_array_equal(scaled(ones(framework, 7)), np.ones(7))


def test_transforms_tell_it_too(scaled: Op[Any]) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    with pytest.raises(KernelError, match=FIRST):
        torch.func.vmap(scaled)(torch.ones(2, 1))
    with pytest.raises(KernelError, match=FIRST):
        jax.vmap(scaled)(jax.numpy.ones((2, 1)))


def test_programs_raise_their_frameworks_error_with_the_same_text(scaled: Op[Any]) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(RuntimeError, match="scaled: the table cannot be read"):
        torch.compile(scaled, backend="aot_eager")(torch.ones(1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="scaled: the table cannot be read"):
        jax.block_until_ready(jax.jit(scaled)(jax.numpy.ones(1)))
    with pytest.raises(tf.errors.InternalError, match="scaled: the table cannot be read"):
        tf.function(scaled)(tf.ones(1))


def test_check_calls_it_a_kernel_that_fails(scaled: Op[Any]) -> None:
    with pytest.raises(KernelError, match=FIRST) as caught:
        scaled(np.ones(1))
    found = fault(scaled, caught.value, "a case")
    assert found is not None
    assert (found.bug, found.file) == ("the kernel fails", str(scaled.kernel))
    assert found.text == "the table cannot be read (a case)"
