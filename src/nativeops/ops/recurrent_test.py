# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers: what is true beyond agreeing with their references (tests/test_matrix.py).

How the sequences of a batch get along is in recurrent_batch_test.py, what holds for one layer alone
in its own test file.
"""

from collections.abc import Callable

import numpy as np
import pytest

from nativeops.testing.aspects import levels, selected
from nativeops.testing.marks import missing
from nativeops.testing.recurrent import (
    KINDS,
    Kind,
    Values,
    as_dtype,
    draw,
    draw_arriving,
    forward_backward,
    run_all,
    torch_results,
)
from nativeops.testing.tolerance import assert_same

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_level = pytest.mark.parametrize("level", levels())
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])

# Steps, sequences, inputs, hidden units, and lengths: around vectors, panels, and the blocks of
# rows, steps and frames that the kernels take together; few rows and many.
SIZES = [
    (7, 5, 4, 6, "any"),
    (1, 4, 3, 17, "any"),
    (5, 1, 1, 1, None),
    (4, 3, 2, 3, "any"),
    (130, 3, 5, 4, "any"),
    (90, 9, 33, 70, None),
    (3, 16, 40, 65, "any"),
    (1, 21, 200, 48, "any"),  # weights as they lie, several rows at once
    (3, 2, 7, 800, None),
    (2, 2, 5, 1537, None),
    pytest.param((17, 3, 5, 1537, "any"), marks=pytest.mark.slow),  # rows enough for packed weights
]


def check_close(found: Values, expected: Values, allowed: float) -> None:
    """All results, each within so much of its largest number; `d_b` is that of both biases."""
    for name, exact in expected.items():
        mine = found["d_b" if name.startswith("d_b_") and "d_b" in found else name]
        assert mine.shape == exact.shape, name
        largest = max(1.0, float(np.abs(exact).max(initial=0)))
        error = np.abs(mine.astype(np.float64) - exact).max(initial=0) / largest
        assert error <= allowed, f"`{name}` is wrong by {error:.3g} of its largest"


@each_kind
@both_ways
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_torch_nn_with_all_gradients(kind: Kind, reverse: bool, size) -> None:
    pytest.importorskip("torch")
    given = draw(kind, size[:4], size[4], reverse=reverse)
    arriving = draw_arriving(kind, given)
    expected = torch_results(kind, given, arriving)
    check_close(torch_results(kind, given, arriving, ours=True), expected, 1e-11)


@each_kind
@each_level
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_float32_is_near_torch_nn_in_float64(kind: Kind, level: str, size) -> None:
    pytest.importorskip("torch")
    given = draw(kind, size[:4], size[4], dtype="float32", reverse=size[0] % 2 == 0)
    arriving = draw_arriving(kind, given)
    wide = [as_dtype(values, "float64") for values in (given, arriving)]
    with selected(level):
        found = forward_backward(kind, given, arriving)
    check_close(found, torch_results(kind, *wide), 4e-6)


@each_kind
@both_ways
@each_level
def test_gradients_are_finite_differences(kind: Kind, reverse: bool, level: str) -> None:
    given = draw(kind, (4, 3, 2, 3), [4, 1, 3], reverse=reverse, seed=5)
    arriving = draw_arriving(kind, given)

    def loss() -> float:
        made = run_all(kind.op, given)
        return sum(float((made[name[2:]] * g).sum()) for name, g in arriving.items())

    with selected(level):
        found = forward_backward(kind, given, arriving)
        for name in ("x", *kind.weights, *(f"{s}_0" for s in kind.states)):
            mine = found[f"d_{name}" if f"d_{name}" in found else "d_b"]
            np.testing.assert_allclose(mine, slopes(given[name], loss), rtol=1e-7, atol=1e-8)


def slopes(array: np.ndarray, loss: Callable[[], float], step: float = 1e-5) -> np.ndarray:
    """How a number changes with each element, which is changed in place."""
    found = np.empty_like(array)
    for place in np.ndindex(array.shape):
        before = array[place]
        ends = []
        for sign in (1, -1):
            array[place] = before + sign * step
            ends.append(loss())
        array[place] = before
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


@each_kind
@each_level
@pytest.mark.parametrize("size", [(0, 3, 4, 5), (3, 0, 4, 5), (3, 2, 0, 5), (3, 2, 4, 0)], ids=str)
@pytest.mark.parametrize("lengths", ["any", None])
def test_empty_axes(kind: Kind, level: str, size, lengths) -> None:
    t, b, _, h = size
    given = draw(kind, size, lengths)
    arriving = draw_arriving(kind, given)
    with selected(level):
        found = forward_backward(kind, given, arriving)
    assert found["output"].shape == (t, b, kind.width(h))
    for name in ("x", *kind.weights):
        if name.startswith("b_"):
            continue
        assert found[f"d_{name}"].shape == given[name].shape
        if t == 0 or b == 0:
            assert not found[f"d_{name}"].any()
    for state in kind.states if t == 0 else ():
        assert_same(found[f"{state}_n"], given[f"{state}_0"], "the state after no step")
        assert_same(found[f"d_{state}_0"], arriving[f"d_{state}_n"], "its gradient")


@each_kind
@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_inputs_saturate_torch_nn_agrees(kind: Kind, level: str, dtype: str) -> None:
    pytest.importorskip("torch")
    given = draw(kind, (6, 4, 1, 20), None, dtype=dtype)
    given["x"] = np.sign(given["x"]) * np.array(1e4, dtype)
    arriving = draw_arriving(kind, given)
    wide = [as_dtype(values, "float64") for values in (given, arriving)]
    with selected(level):
        found = forward_backward(kind, given, arriving)
    for name, array in found.items():
        assert np.isfinite(array).all(), f"`{name}` is not finite"
    check_close(found, torch_results(kind, *wide), 4e-6 if dtype == "float32" else 1e-11)


# Sums are float32. The state is float32, too, or where the CPU multiplies bf16, bf16 between steps;
# what is kept for the gradient is rounded: each step adds an error of that size to what flows on.
@each_kind
@each_level
@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_half_precision_is_near_torch_nn_in_float64(kind: Kind, level: str, dtype, unit) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    given = draw(kind, (20, 6, 30, 70), dtype=dtype)
    arriving = draw_arriving(kind, given)
    wide = [as_dtype(values, "float64") for values in (given, arriving)]
    expected = torch_results(kind, *wide)
    with selected(level):
        found = forward_backward(kind, given, arriving)
    names = ("output", *(f"{state}_n" for state in kind.states))
    for name in names if dtype == "float16" or level in ("portable", "avx2") else ():
        error = np.abs(found[name].astype(np.float64) - expected[name])
        assert (error <= unit * np.abs(expected[name]) + 3e-6).all(), f"`{name}` is rounded twice"
    if kind.name == "relu":  # whose slope jumps where rounding leads to the other side of 0
        expected = {name: expected[name] for name in names}
    check_close(found, expected, 4 * unit)


@each_kind
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize(("length", "said"), [(8, "is 8"), (-1, "is -1")])
def test_wrong_length_is_explained(kind: Kind, framework: str, length: int, said: str) -> None:
    from nativeops.testing.arrays import arrays_of
    from nativeops.testing.matrix import installed

    if not installed(framework):
        missing(framework, f"install it with `pip install {framework}`")
    given = draw(kind, (7, 3, 4, 5), [7, 0, length], dtype="float32")
    arrays = arrays_of(framework, "cpu")
    with arrays.scope({"float32", "int32"}):
        placed = {
            name: arrays.place(value, value.dtype.name).array if hasattr(value, "dtype") else value
            for name, value in given.items()
        }
        sentence = f"`lengths.2.` {said}, but must be from 0 to 7, the steps of `x`"
        with pytest.raises(Exception, match=sentence):
            np.asarray(kind.op(**placed).output)
