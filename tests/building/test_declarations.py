# SPDX-License-Identifier: Apache-2.0
"""Declarations that are unusual, and right: what they compute, and what they are called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from nativeops import registry
from nativeops.declare import Array, Float, Float32, op
from nativeops.errors import AllocationError, RangeError, ShapeError
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import installed
from nativeops.testing.arrays import arrays_of
from nativeops.testing.aspects import levels

from .an_op import DECLARATION, HEADER

PRESENT = [framework for framework in FRAMEWORKS if installed(framework)]
OPS = """
#pragma once
#include "nativeops/devices/kernel.h"

namespace nativeops {

inline void total(Device& dev, In<float, 2> x, Out<float, 1> out) {
  for_each(dev, out, [=] KERNEL(int64_t i) {
    float sum = 0;
    for (int64_t b = 0; b < x.size(0); ++b) sum += x(b, i);
    out(i) = sum;
  });
}

template <class T>
void halves(Device& dev, In<T, 1> x, Out<T, 1> low, Out<T, 1> high) {
  if (low) for_each(dev, low, [=] KERNEL(int64_t i) { low(i) = T(Accum<T>(x(i)) / 2); });
  if (high) for_each(dev, high, [=] KERNEL(int64_t i) { high(i) = T(Accum<T>(x(i)) * 3); });
}

template <class T>
void both(Device& dev, In<T, 1> x, Out<T, 1> low, Out<T, 1> high) {
  halves(dev, x, low, high);
}

}  // namespace nativeops
"""


@pytest.fixture
def header(tmp_path: Path) -> Path:
    path = tmp_path / "unusual.h"
    path.write_text(OPS)
    return path


def test_leading_axes_are_summed_up_also_where_they_do_not_fold(header: Path) -> None:
    @op(kernel=str(header))
    def total(x: Float32[Array, "*b n"]) -> Float32[Array, "n"]:
        """The sum over all leading axes: ``out[i] = Σ_b x[b, i]``."""
        return x.reshape(-1, x.shape[-1]).sum(0)

    x = np.arange(4 * 3 * 2 * 5, dtype=np.float32).reshape(4, 3, 2, 5)
    for array in (x, x[::2], x[:, ::2], x[:, :, 1:], x.swapaxes(0, 2), x[:, ::-1], x[0, 0]):
        assert total(array).tolist() == total.reference(array).tolist()
    assert total(x[:0]).tolist() == [0] * 5


class Halves(NamedTuple):
    low: Float[Array, "n"] | None
    high: Float[Array, "n"] | None


def declare_halves(header: Path):
    registry._OPS.pop("halves", None)  # each test has a header of its own

    @op(kernel=str(header))
    def halves(x: Float[Array, "n"]) -> Halves:
        """``low[i] = x[i] / 2`` and ``high[i] = 3 x[i]``."""
        return Halves(x / 2, x * 3)

    @halves.gradient
    def _(x, high, d_low, d_high):
        # A rule that reads a result, which a caller may have left out.
        return d_low * (high / (6 * x)) + 3 * d_high

    return halves


def test_postponed_annotations_give_all_results(header: Path) -> None:
    result = declare_halves(header)(np.array([2.0]))
    assert (result.low, result.high) == ([1.0], [6.0])


def test_rule_may_read_a_result_that_was_left_out_in_torch(header: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([2.0, 4.0], requires_grad=True)
    result = declare_halves(header).only(["low"])(x)
    result.low.sum().backward()
    assert (result.high, x.grad.tolist()) == (None, [0.5, 0.5])


def test_rule_may_read_a_result_that_was_left_out_in_jax(header: Path) -> None:
    jax = pytest.importorskip("jax")
    halves = declare_halves(header)
    gradient = jax.grad(lambda x: halves.only(["low"])(x).low.sum())
    assert gradient(jax.numpy.array([2.0, 4.0])).tolist() == [0.5, 0.5]


def test_rule_may_read_a_result_that_was_left_out_in_tensorflow(header: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    x, halves = tf.constant([2.0, 4.0]), declare_halves(header)
    with tf.GradientTape() as tape:
        tape.watch(x)
        low = halves.only(["low"])(x).low
    assert tape.gradient(low, x).numpy().tolist() == [0.5, 0.5]


class Both(NamedTuple):
    low: Float[Array, "n"]
    high: Float[Array, "n"]


@pytest.mark.parametrize("framework", PRESENT)
def test_result_that_every_call_makes_cannot_be_left_out(header: Path, framework: str) -> None:
    registry._OPS.pop("both", None)

    @op(kernel=str(header))
    def both(x: Float[Array, "n"]) -> Both:
        return Both(x / 2, x * 3)

    x = arrays_of(framework, "cpu").place(np.array([2.0], "float32"), "float32").array
    assert [float(each[0]) for each in both(x)] == [1, 6]  # and now the fast paths know the op
    for names in ((), ("low", "high")):
        assert [float(each[0]) for each in both.only(names)(x)] == [1, 6]
    for names in (["low"], ("low",)):
        with pytest.raises(RangeError, match="both: `want` leaves away `high`, which every") as one:
            both.only(names)(x)
        assert "declare `high` as `| None`" in str(one.value)


def test_name_must_be_one_that_every_framework_takes(header: Path) -> None:
    with pytest.raises(TypeError, match="must be ASCII"):

        @op(kernel=str(header))
        def größe(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x


def test_rule_cannot_take_an_argument_for_what_is_needed(header: Path) -> None:
    @op(kernel=str(header))
    def greedy(x: Float[Array, "n"], *, needs: float = 1.0) -> Float[Array, "n"]:
        return x * needs

    with pytest.raises(TypeError, match="`needs` is what a gradient rule calls"):
        greedy.gradient(lambda d_out, needs: d_out * needs)


class State(NamedTuple):
    h: Float[Array, "n"]
    c: Float[Array, "n"]


def test_rule_cannot_take_what_is_both_an_argument_and_a_result(header: Path) -> None:
    @op(kernel=str(header))
    def cell(h: Float[Array, "n"], *, d_c: float = 1.0) -> State:
        return State(h, h * d_c)

    with pytest.raises(TypeError, match="`d_c` is an attribute, and in the gradient what arrives"):
        cell.gradient(lambda d_h, d_c: d_h + d_c)

    @op(kernel=str(header))
    def other(h: Float[Array, "n"], out: Float[Array, "n"]) -> State:
        return State(h, out)

    with pytest.raises(TypeError, match="`h`, which the gradient asks for, is an argument and"):
        other.gradient(lambda h, d_h: (d_h * h, d_h))
    other.gradient(lambda d_h, d_c: (d_h, d_c))

    with pytest.raises(TypeError, match="`slope`, which is none of its names"):
        other.gradient(lambda slope, d_h: (d_h, slope))
    with pytest.raises(TypeError, match="it may ask for `h`, `out`, "):
        other.gradient(lambda *everything: everything)


def test_op_of_a_namespace_without_a_name_is_declared(header: Path) -> None:
    space: dict[str, Any] = {"op": op, "Array": Array, "Float": Float, "__name__": None}
    code = f"@op(kernel={str(header)!r})\ndef nameless(x: Float[Array, 'n']) -> "
    exec(f"{code}Float[Array, 'n']:\n    return x\n", space)
    assert space["nameless"].key


@pytest.mark.parametrize("kept", [{"y": "keep"}, {"x": "scale"}, {"x": "other"}, {"z": "keep"}])
def test_what_is_kept_with_a_flag_is_an_input_that_the_rule_takes(
    header: Path, kept: dict[str, str]
) -> None:
    @op(kernel=str(header))
    def some(
        x: Float[Array, "n"], y: Float[Array, "n"], *, keep: bool = True, scale: float = 1.0
    ) -> Float[Array, "n"]:
        return x * y

    some.gradient(lambda x, d_out, keep: (d_out * x if keep else d_out, d_out))
    (name, flag), *_ = kept.items()
    text = f"some: `{name}` must be an input that the gradient rule takes, and `{flag}` a boolean"
    with pytest.raises(TypeError, match=text):
        some.keep_only_with(**kept)


DECLARED = """
from nativeops.declare import Array, Float, op
MODES = frozenset({"a", "b", "c"})
@op(kernel="kept.h")
def kept(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x
@kept.gradient
def _(d_out):
    return d_out if MODES else None
"""


def in_process(folder: Path, code: str, seed: int = 0) -> str:
    variables = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_saved_name_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(DECLARED)
    (tmp_path / "kept.h").write_text("")
    keys = {in_process(tmp_path, "import kept; print(kept.kept.key)", seed) for seed in (1, 2, 3)}
    assert len(keys) == 1


def test_pickled_op_is_declared_where_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(DECLARED)
    (tmp_path / "kept.h").write_text("")
    dump = "import kept, pickle; print(pickle.dumps(kept.kept).hex())"
    dumped = in_process(tmp_path, dump)
    load = f"import pickle; print(pickle.loads(bytes.fromhex('{dumped}')).name)"
    assert in_process(tmp_path, load) == "kept"


def make(framework: str) -> Any:
    if framework == "numpy":
        return np.ones(1024, np.float32)
    library = pytest.importorskip({"jax": "jax.numpy"}.get(framework, framework))
    return library.ones(1024)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("k", [2**54, 2**54 + 1, 2**62, -(2**62), -(2**63)])
def test_sizes_beyond_64_bits_are_refused(tmp_path: Path, framework: str, k: int) -> None:
    body = "for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = T(k); });"
    text = HEADER.format(body=body).replace("scaled", "enlarged")
    (tmp_path / "enlarged.h").write_text(
        text.replace("Out<T, 1> out)", "Out<T, 1> out, int64_t k)")
    )

    @op(kernel=str(tmp_path / "enlarged.h"))
    def enlarged(x: Float[Array, "n"], *, k: int) -> Float[Array, "n*k"]:
        return np.full(len(x) * k, k, x.dtype)

    x = make(framework)
    assert enlarged(x, k=2).shape == (2048,)
    with pytest.raises((AllocationError, ShapeError), match=r"^enlarged: "):
        enlarged(x, k=k)


# Tiles multiply two dtypes only, and built-in ops have another library for the others.
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_tuned_kernel_of_a_user_has_every_dtype(tmp_path: Path, level: str, dtype: str) -> None:
    name = f"tuned_{level}_{dtype}"
    kernel = HEADER.replace("scaled", name)
    (tmp_path / f"{name}.h").write_text(kernel.format(body=FILL.format(value=1)))
    tuned = kernel.format(body=FILL.format(value=2)).replace("namespace nativeops", TUNED)
    (tmp_path / f"{name}_cpu.h").write_text(tuned)
    (tmp_path / f"{name}.py").write_text(DECLARATION.replace("scaled", name))
    call = f"from nativeops.library import select; select({level!r}); import numpy as np"
    call += f"; from {name} import {name}; print({name}(np.zeros(3, {dtype!r}))[2])"
    assert in_process(tmp_path, call) == ("1.0" if level == "portable" else "2.0")


FILL = "for_each(dev, out, [=] KERNEL(int64_t i) {{ out(i) = T({value}.0f); }});"
TUNED = "namespace nativeops::tuned"
