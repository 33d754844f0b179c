# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers: what is true beyond agreeing with their references (tests/test_matrix.py).

What holds for one of them alone is in its own test file.
"""

import numpy as np
import pytest

from nativeops.testing.aspects import levels, num_threads, selected
from nativeops.testing.recurrent import (
    KINDS,
    Kind,
    Values,
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

# Steps, sequences, inputs, hidden units: around vectors, panels, and the blocks of rows, steps and
# frames that the kernels take together.
SIZES = [
    (7, 5, 4, 6),
    (1, 4, 3, 17),
    (5, 1, 1, 1),
    (4, 3, 2, 3),
    (130, 3, 5, 4),
    (300, 3, 33, 70),
    (3, 16, 40, 65),
    (3, 2, 7, 800),
]
# One that threads share, with sequences of no, of one and of all steps.
LENGTHS = [6, 0, 1, 9, 3, 9, 2]
SIZE = (9, len(LENGTHS), 20, 70)


def per_sequence(kind: Kind) -> list[tuple[str, int]]:
    """The results that belong to one sequence each, and the axis of the batch."""
    states = [(f"{state}_n", 0) for state in kind.states]
    first = [(f"d_{state}_0", 0) for state in kind.states]
    return [("output", 1), ("d_x", 1), *states, *first]


def largest(array: np.ndarray) -> float:
    return max(1.0, float(np.abs(array).max(initial=0)))


def check_close(found: Values, expected: Values, allowed: float, what: object = "") -> None:
    """All results, each within so much of its largest number; `d_b` is that of both biases."""
    for name, exact in expected.items():
        mine = found["d_b" if name.startswith("d_b_") and "d_b" in found else name]
        assert mine.shape == exact.shape, name
        error = np.abs(mine.astype(np.float64) - exact).max(initial=0) / largest(exact)
        assert error <= allowed, f"{what}: `{name}` is wrong by {error:.3g} of its largest"


@each_kind
@both_ways
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_torch_nn_with_all_gradients(kind: Kind, reverse: bool, size) -> None:
    pytest.importorskip("torch")
    for lengths in ("any", None):
        given = draw(kind, size, lengths, reverse=reverse)
        arriving = draw_arriving(kind, given)
        expected = torch_results(kind, given, arriving)
        check_close(torch_results(kind, given, arriving, ours=True), expected, 1e-11, lengths)


@each_kind
@each_level
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_float32_is_near_torch_nn_in_float64(kind: Kind, level: str, size) -> None:
    pytest.importorskip("torch")
    for reverse in (False, True):
        given = draw(kind, size, dtype="float32", reverse=reverse)
        arriving = draw_arriving(kind, given)
        wide = [as_dtype(values, "float64") for values in (given, arriving)]
        with selected(level):
            found = forward_backward(kind, given, arriving)
        check_close(found, torch_results(kind, *wide), 4e-6, reverse)


def as_dtype(values: Values, dtype: str) -> Values:
    def converted(value: object) -> object:
        floats = isinstance(value, np.ndarray) and value.dtype != np.int32
        return value.astype(dtype) if floats else value

    return {name: converted(value) for name, value in values.items()}


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
        for name in ("x", "w_ih", "w_hh", "b_ih", "b_hh", *(f"{s}_0" for s in kind.states)):
            mine = found[f"d_{name}" if f"d_{name}" in found else "d_b"]
            np.testing.assert_allclose(mine, slopes(given[name], loss), rtol=1e-7, atol=1e-8)


def slopes(array: np.ndarray, loss, step: float = 1e-5) -> np.ndarray:
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
def test_empty_axes(kind: Kind, level: str, size) -> None:
    t, b, _, h = size
    for lengths in ("any", None):
        given = draw(kind, size, lengths)
        arriving = draw_arriving(kind, given)
        with selected(level):
            found = forward_backward(kind, given, arriving)
        assert found["output"].shape == (t, b, h)
        for name in ("x", "w_ih", "w_hh"):
            assert found[f"d_{name}"].shape == given[name].shape
            if t == 0 or b == 0:
                assert not found[f"d_{name}"].any()
        for state in kind.states if t == 0 else ():
            assert_same(found[f"{state}_n"], given[f"{state}_0"], "the state after no step")
            assert_same(found[f"d_{state}_0"], arriving[f"d_{state}_n"], "its gradient")


@each_kind
@both_ways
@each_level
def test_sequences_without_a_step_keep_their_state(kind: Kind, reverse: bool, level: str) -> None:
    given = draw(kind, SIZE, LENGTHS, reverse=reverse)
    arriving = draw_arriving(kind, given)
    with selected(level):
        found = forward_backward(kind, given, arriving)
    b = LENGTHS.index(0)
    for state in kind.states:
        assert_same(found[f"{state}_n"][b], given[f"{state}_0"][b], f"`{state}_n`")
        assert_same(found[f"d_{state}_0"][b], arriving[f"d_{state}_n"][b], f"`d_{state}_0`")
    for b, length in enumerate(LENGTHS):
        assert not found["output"][length:, b].any()
        assert not found["d_x"][length:, b].any()
        last = 0 if reverse else length - 1
        if length:
            assert_same(found["h_n"][b], found["output"][last, b], "`h_n`")


@each_kind
@both_ways
@each_level
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sequence_in_a_batch_is_as_alone(kind: Kind, reverse: bool, level: str, dtype) -> None:
    given = draw(kind, SIZE, LENGTHS, dtype=dtype, reverse=reverse)
    arriving = draw_arriving(kind, given)
    with selected(level):
        found = forward_backward(kind, given, arriving)
        for b, length in enumerate(LENGTHS):
            own = [alone(values, b, length) for values in (given, arriving)]
            single = forward_backward(kind, *own)
            for name, axis in per_sequence(kind):
                mine = np.take(found[name], [b], axis)
                mine = mine[:length] if axis else mine
                assert_same(mine, single[name], f"`{name}` of sequence {b}")


def alone(values: Values, b: int, length: int) -> Values:
    """One sequence of a batch, as long as it is, and no lengths."""
    cut = {name: values[name][:length, b : b + 1] for name in ("x", "d_output") if name in values}
    states = ("h_0", "c_0", "d_h_n", "d_c_n")
    cut |= {name: values[name][b : b + 1] for name in states if name in values}
    rest = {name: value for name, value in values.items() if name != "lengths"}
    return {name: np.ascontiguousarray(v) for name, v in cut.items()} | {
        name: value for name, value in rest.items() if name not in cut
    }


@each_kind
@both_ways
@each_level
@pytest.mark.parametrize("size", [SIZE, (300, 7, 40, 33), (4, 7, 3, 5)], ids=str)
def test_any_number_of_threads_gives_the_same_bits(kind: Kind, reverse, level: str, size) -> None:
    given = draw(kind, size, dtype="float32", reverse=reverse)
    arriving = draw_arriving(kind, given)
    first: Values = {}
    with selected(level):
        for n in (1, 2, 3):
            with num_threads(n):
                found = forward_backward(kind, given, arriving)
            for name, array in (first or found).items():
                assert_same(found[name], array, f"`{name}` with {n} threads")
            first = found


@each_kind
@both_ways
@each_level
def test_step_by_step_is_the_whole(kind: Kind, reverse: bool, level: str) -> None:
    given = draw(kind, (60, 2, 5, 20), None, dtype="float32", reverse=reverse)
    with selected(level):
        whole = kind.op(**given)
        now = dict(given)
        for t in reversed(range(60)) if reverse else range(60):
            step = kind.op(**{**now, "x": given["x"][t : t + 1]})
            assert_same(step.output[0], whole.output[t], f"step {t}")
            now |= {f"{state}_0": getattr(step, f"{state}_n") for state in kind.states}
    for state in kind.states:
        assert_same(now[f"{state}_0"], getattr(whole, f"{state}_n"), f"`{state}_n`")


@each_kind
@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_inputs_saturate_torch_nn_agrees(kind: Kind, level: str, dtype: str) -> None:
    pytest.importorskip("torch")
    given = draw(kind, (6, 4, 5, 20), None, dtype=dtype)
    given["x"] = np.sign(given["x"]) * np.array(1e4, dtype)
    arriving = draw_arriving(kind, given)
    wide = [as_dtype(values, "float64") for values in (given, arriving)]
    with selected(level):
        found = forward_backward(kind, given, arriving)
    for name, array in found.items():
        assert np.isfinite(array).all(), f"`{name}` is not finite"
    check_close(found, torch_results(kind, *wide), 1e-4 if dtype == "float32" else 1e-11)


@each_kind
@both_ways
@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("where", ["x", "h_0", "c_0", "d_output"])
def test_nan_stays_in_its_own_sequence(kind: Kind, reverse, level: str, dtype, where) -> None:
    if where == "c_0" and "c" not in kind.states:
        pytest.skip("this layer has no cell")
    given = draw(kind, SIZE, LENGTHS, dtype=dtype, reverse=reverse)
    arriving = draw_arriving(kind, given)
    b = 4  # with three steps
    with selected(level):
        first = forward_backward(kind, given, arriving)
        values = arriving if where == "d_output" else given
        values[where][(1, b, 2) if values[where].ndim == 3 else (b, 2)] = np.nan
        found = forward_backward(kind, given, arriving)
    others = np.arange(len(LENGTHS)) != b
    for name, axis in per_sequence(kind):
        mine, before = (np.compress(others, v[name], axis) for v in (found, first))
        assert_same(mine, before, f"`{name}` of another sequence")
    result = "d_x" if where == "d_output" else "output"
    hit = {"x": [0, 1] if reverse else [1, 2], "d_output": [1, 2] if reverse else [0, 1]}
    for t in hit.get(where, [0, 1, 2]):
        assert np.isnan(found[result][t, b]).any(), f"the NaN is lost at step {t}"
    assert not found[result][3:, b].any(), "something is beyond the end"


@each_kind
@both_ways
@each_level
def test_what_lies_beyond_the_ends_has_no_influence(kind: Kind, reverse: bool, level: str) -> None:
    given = draw(kind, SIZE, LENGTHS, dtype="float32", reverse=reverse)
    arriving = draw_arriving(kind, given)
    with selected(level):
        first = forward_backward(kind, given, arriving)
        for b, length in enumerate(LENGTHS):
            given["x"][length:, b] = np.nan
            arriving["d_output"][length:, b] = np.nan
        found = forward_backward(kind, given, arriving)
    for name, array in first.items():
        assert_same(found[name], array, f"`{name}`")


# Half precision. Sums, states and cells are float32 inside; so results are rounded once. What is
# kept for the gradient is rounded, too: each step adds an error of that size to what flows back.
@each_kind
@each_level
@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_half_precision_against_torch_in_float64(kind: Kind, level: str, dtype, unit) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    given = draw(kind, (20, 6, 30, 70), dtype=dtype)
    arriving = draw_arriving(kind, given)
    wide = [as_dtype(values, "float64") for values in (given, arriving)]
    expected = torch_results(kind, *wide)
    with selected(level):
        found = forward_backward(kind, given, arriving)
    for name in ("output", *(f"{state}_n" for state in kind.states)):
        error = np.abs(found[name].astype(np.float64) - expected[name])
        assert (error <= unit * np.abs(expected[name]) + 3e-6).all(), f"`{name}` is rounded twice"
    check_close(found, expected, 4 * unit)


@each_kind
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize(("length", "said"), [(10, "is 10"), (-1, "is -1")])
def test_wrong_length_is_a_clear_mistake(kind: Kind, framework: str, length, said: str) -> None:
    from nativeops.testing.arrays import arrays_of
    from nativeops.testing.matrix import installed

    if not installed(framework):
        pytest.skip(f"{framework} is not installed")
    lengths = [*LENGTHS[:2], length, *LENGTHS[3:]]
    given = draw(kind, SIZE, lengths, dtype="float32")
    arrays = arrays_of(framework, "cpu")
    with arrays.scope({"float32", "int32"}):
        placed = {
            name: arrays.place(value, value.dtype.name).array if hasattr(value, "dtype") else value
            for name, value in given.items()
        }
        sentence = f"`lengths.2.` {said}, but must be from 0 to 9, the steps of `x`."
        with pytest.raises(Exception, match=sentence):
            np.asarray(kind.op(**placed).output)
