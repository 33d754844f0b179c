# SPDX-License-Identifier: Apache-2.0
"""Streaming: one step in each call, the states in the same memory from call to call."""

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from nativeops.errors import ArgumentError, DtypeError, ShapeError
from nativeops.ops.recurrent_batch_test import assert_near
from nativeops.ops.recurrent_test import both_ways, each_kind, each_level
from nativeops.testing.aspects import selected
from nativeops.testing.recurrent import LSTM, Kind, Values, draw, in_torch
from nativeops.testing.tolerance import assert_same

STEPS, BATCH, INPUTS, UNITS = 5, 2000, 3, 40


def in_place(kind: Kind, given: Values, y: Any, t: int) -> Any:
    """One step whose final states take the place of the initial ones."""
    states = [given[f"{state}_0"] for state in kind.states]
    return kind.op(**{**given, "x": given["x"][t : t + 1]}, out=(y, *states))


def step(kind: Kind, given: Values, t: int) -> Any:
    """One step, with new arrays for its results."""
    return kind.op(**{**given, "x": given["x"][t : t + 1]})


@each_kind
@both_ways
@each_level
@pytest.mark.parametrize("lengths", [None, "any"])
def test_states_in_place_are_those_of_new_arrays(kind: Kind, reverse, level: str, lengths) -> None:
    given = draw(kind, (1, 7, 5, 20), lengths, dtype="float32", reverse=reverse)
    with selected(level):
        expected = step(kind, given, 0)
        y = np.full_like(expected.output, np.nan)
        made = in_place(kind, given, y, 0)
    for name in ("output", *(f"{state}_n" for state in kind.states)):
        assert_same(getattr(made, name), getattr(expected, name), f"`{name}`")
    assert made.output is y
    for state in kind.states:
        assert getattr(made, f"{state}_n") is given[f"{state}_0"]


@each_kind
@pytest.mark.parametrize("sizes", [(STEPS, 1, 256, 256), (60, 5, 7, 33)], ids=str)
def test_steps_are_the_whole_but_for_rounding(kind: Kind, sizes: tuple[int, ...]) -> None:
    given = draw(kind, sizes, None, dtype="float32")  # type: ignore[arg-type]
    whole = kind.op(**given)
    y = np.empty_like(whole.output[:1])
    for t in range(sizes[0]):
        in_place(kind, given, y, t)
        assert_near(y[0], whole.output[t], f"step {t}")
    for state in kind.states:
        assert_near(given[f"{state}_0"], getattr(whole, f"{state}_n"), f"`{state}_n`")


@each_kind
def test_numpy_makes_no_array_in_a_step(kind: Kind) -> None:
    given = draw(kind, (STEPS, BATCH, INPUTS, UNITS), None, dtype="float32")
    y = np.empty((1, BATCH, kind.width(UNITS)), np.float32)
    in_place(kind, given, y, 0)
    tracemalloc.start()
    for t in range(STEPS):
        in_place(kind, given, y, t)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < y.nbytes / 2, "something as large as a state was made"


@each_kind
def test_torch_makes_no_tensor_in_a_step(kind: Kind) -> None:
    torch = pytest.importorskip("torch")
    given = in_torch(draw(kind, (STEPS, BATCH, INPUTS, UNITS), None, dtype="float32"))
    given = {k: v.detach() if torch.is_tensor(v) else v for k, v in given.items()}
    expected = step(kind, given, 0)
    y = torch.empty(1, BATCH, kind.width(UNITS))
    before = {state: given[f"{state}_0"].data_ptr() for state in kind.states}
    made = in_place(kind, given, y, 0)
    assert made.output is y
    torch.testing.assert_close(y, expected.output, rtol=0, atol=0)
    for state in kind.states:
        assert torch.equal(given[f"{state}_0"], getattr(expected, f"{state}_n"))
    with torch.autograd.profiler.profile(profile_memory=True) as seen:
        for t in range(STEPS):
            in_place(kind, given, y, t)
    made = sum(max(0, event.self_cpu_memory_usage) for event in seen.function_events)
    assert made < y.nbytes, f"{made} bytes were made in {STEPS} steps"
    assert before == {state: given[f"{state}_0"].data_ptr() for state in kind.states}


def test_jax_takes_the_memory_of_donated_states() -> None:
    jax = pytest.importorskip("jax")
    given = {
        name: jax.numpy.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in draw(LSTM, (1, BATCH, INPUTS, UNITS), None, dtype="float32").items()
    }

    def one(states: tuple[Any, Any]) -> tuple[Any, Any]:
        made = LSTM.op(**{**given, "h_0": states[0], "c_0": states[1]})
        return made.h_n, made.c_n

    states = (given["h_0"] + 0, given["c_0"] + 0)
    expected = one(states)
    places = [state.unsafe_buffer_pointer() for state in states]
    after = jax.jit(one, donate_argnums=0)(states)
    for mine, right, place in zip(after, expected, places, strict=True):
        np.testing.assert_array_equal(mine, right)
        assert mine.unsafe_buffer_pointer() == place


def test_some_results_may_be_new() -> None:
    given = draw(LSTM, (1, 3, 2, 4), None)
    y = np.empty((1, 3, 4))
    made = LSTM.op(**given, out=(y, None, None))
    assert made.output is y
    assert_same(made.h_n, y[0], "`h_n`")
    assert not np.may_share_memory(made.h_n, y)


def test_a_state_that_overlaps_another_input_is_read_first() -> None:
    given = draw(LSTM, (1, 3, 4, 4), None)
    expected = LSTM.op(**given)
    h_n = given["x"][0]  # the inputs themselves, of the same shape
    made = LSTM.op(**given, out=(None, h_n, None))
    assert made.h_n is h_n
    for name in ("output", "h_n", "c_n"):
        assert_same(getattr(made, name), getattr(expected, name), f"`{name}`")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_mistakes_in_out_are_explained_alike(framework: str) -> None:
    given = draw(LSTM, (1, 3, 2, 4), None)

    def make(shape: tuple[int, ...], dtype: str = "float64") -> Any:
        if framework == "numpy":
            return np.zeros(shape, dtype)
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    if framework == "torch":
        torch = pytest.importorskip("torch")
        given = {
            n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in given.items()
        }
    y, h, c = make((1, 3, 4)), make((3, 4)), make((3, 4))
    wide, narrow = make((4, 3)), make((3, 4), "float32")
    wrong = [
        (ArgumentError, "`out` must be a tuple of 3 arrays, one for each result, but is", y),
        (
            ArgumentError,
            "`out` must be a tuple of 3 arrays, one for each result, but has 2",
            (y, h),
        ),
        (ShapeError, "`out[1]` must have the shape [3, 4], but has [4, 3]", (y, wide, c)),
        (DtypeError, "`out[2]` must be float64, but is float32", (y, h, narrow)),
        (ArgumentError, "`out[1]` and `out[2]` share memory", (y, h, h)),
    ]
    for error, words, out in wrong:
        with pytest.raises(error, match=re.escape(words)):
            LSTM.op(**given, out=out)
