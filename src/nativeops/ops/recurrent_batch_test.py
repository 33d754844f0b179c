# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers: sequences of a batch, steps and threads do not disturb each other."""

import multiprocessing
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nativeops.ops.recurrent_test import both_ways, each_kind, each_level
from nativeops.testing.aspects import num_threads, selected
from nativeops.testing.recurrent import (
    KINDS,
    LSTM,
    Kind,
    Values,
    as_dtype,
    draw,
    draw_arriving,
    forward_backward,
    run_all,
)
from nativeops.testing.tolerance import assert_same

# Sequences of no, of one and of all steps, in no order.
LENGTHS = [6, 0, 1, 9, 3, 9, 2, *[8] * 5]
SIZE = (9, len(LENGTHS), 20, 70)


def per_sequence(kind: Kind) -> list[tuple[str, int]]:
    """The results that belong to one sequence each, and the axis of the batch."""
    states = [(f"{state}_n", 0) for state in kind.states]
    first = [(f"d_{state}_0", 0) for state in kind.states]
    return [("output", 1), ("d_x", 1), *states, *first]


def assert_near(
    found: np.ndarray, expected: np.ndarray, what: str, *, of_kept: bool = False
) -> None:
    """But for the order in which a sum is taken, which depends on how many rows there are.

    of_kept: it follows from outputs kept in its own dtype; to round a sum in another order may give
    the neighbour of a number, which is far in 16 bits.
    """
    assert found.shape == expected.shape, what
    half = found.dtype == np.float16
    unit = 2.0**-53 if found.dtype == np.float64 else 2.0**-24
    rounded = 2.0**-10 * np.abs(expected) if half else 0
    others = 2.0**-10 if half and of_kept else 32 * unit
    allowed = rounded + others * np.abs(expected).max(initial=1)
    error = np.abs(found.astype(np.float64) - expected)
    assert (error <= allowed).all(), f"{what} differs by {error.max():.3g}"


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
@pytest.mark.parametrize("lengths", [LENGTHS, [30, 17, 14]], ids=["short", "long"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sequence_in_a_batch_is_as_alone(kind: Kind, reverse, level: str, dtype, lengths) -> None:
    size = (max(lengths), len(lengths), *SIZE[2:])
    given = draw(kind, size, lengths, dtype=dtype, reverse=reverse)
    arriving = draw_arriving(kind, given)
    with selected(level):
        found = forward_backward(kind, given, arriving)
        for b, length in enumerate(lengths[:8]):
            single = forward_backward(*(kind, alone(given, b, length), alone(arriving, b, length)))
            for name, axis in per_sequence(kind):
                mine = np.take(found[name], [b], axis)
                mine = mine[:length] if axis else mine
                of_kept = name.startswith("d_")
                assert_near(mine, single[name], f"`{name}` of sequence {b}", of_kept=of_kept)


# Gates beyond 16 MB are written past the caches.
@each_level
def test_results_beyond_the_caches_are_those_of_parts_of_the_batch(level: str) -> None:
    given = draw(LSTM, (20, 2200, 3, 28), None, dtype="float32")  # of no whole vectors
    with selected(level):
        whole = run_all(LSTM.op, given)
        assert whole["gates"].nbytes > 16 << 20
        for part in (slice(0, 1100), slice(1100, 2200)):
            own = {name: given[name][part] for name in ("h_0", "c_0")}
            found = run_all(LSTM.op, {**given, **own, "x": given["x"][:, part]})
            for name in ("output", "gates", "cells"):
                assert_near(whole[name][:, part], found[name], f"`{name}`")


@each_kind
@both_ways
@each_level
def test_only_sequence_may_end_early(kind: Kind, reverse: bool, level: str) -> None:
    given = draw(kind, (30, 1, 20, 70), [17], reverse=reverse)
    arriving = draw_arriving(kind, given)
    with selected(level):
        found = forward_backward(kind, given, arriving)
        single = forward_backward(kind, alone(given, 0, 17), alone(arriving, 0, 17))
    for name, axis in per_sequence(kind):
        mine = found[name][:17] if axis else found[name]
        assert_same(mine, single[name], f"`{name}`")
    assert not found["output"][17:].any()
    assert not found["d_x"][17:].any()


def alone(values: Values, b: int, length: int) -> Values:
    """One sequence of a batch, as long as it is, and no lengths."""
    cut = {name: values[name][:length, b : b + 1] for name in ("x", "d_output") if name in values}
    states = ("h_0", "c_0", "d_h_n", "d_c_n")
    cut |= {name: values[name][b : b + 1] for name in states if name in values}
    return {name: cut.get(name, value) for name, value in values.items() if name != "lengths"}


@each_kind
@both_ways
@each_level
@pytest.mark.parametrize(
    "size", [SIZE, (100, 9, 40, 33), (4, 7, 3, 5), (9, 1, 30, 300), (20, 1, 9, 300)], ids=str
)
def test_any_number_of_threads_gives_the_same_bits(kind: Kind, reverse, level: str, size) -> None:
    given = draw(kind, size, dtype="float32", reverse=reverse)
    arriving = draw_arriving(kind, given)
    first: Values = {}
    with selected(level):
        for n in (1, 2, 3):
            with num_threads(n):
                found = forward_backward(kind, given, arriving)
            for name, array in first.items():
                assert_same(found[name], array, f"`{name}` with {n} threads")
            first = found


@each_kind
@each_level
@pytest.mark.parametrize("active", [48, 45, 30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_of_many_streams_gives_the_same_bits_on_any_number_of_threads(
    kind: Kind, active: int, dtype: str, level: str
) -> None:
    given = draw(kind, (1, 60, 400, 64), np.arange(60) < active, dtype=dtype)
    found = []
    with selected(level):
        for n in (1, 2, 3):
            with num_threads(n):
                found.append(run_all(kind.op, given)["output"])
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@each_kind
@each_level
def test_bias_gradients_of_many_frames_keep_their_digits(kind: Kind, level: str) -> None:
    given = draw(kind, (600, 500, 2, 4), None)
    given["x"] *= 0.1
    arriving = {name: np.abs(array) for name, array in draw_arriving(kind, given).items()}
    with selected(level):
        exact = forward_backward(kind, given, arriving)
        found = forward_backward(kind, as_dtype(given, "float32"), as_dtype(arriving, "float32"))
    for name in exact.keys() & {"d_b", "d_b_ih", "d_b_hh"}:
        np.testing.assert_allclose(found[name], exact[name], rtol=3e-5, err_msg=name)


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
            assert_near(step.output[0], whole.output[t], f"step {t}")
            now |= {f"{state}_0": getattr(step, f"{state}_n") for state in kind.states}
    for state in kind.states:
        assert_near(now[f"{state}_0"], getattr(whole, f"{state}_n"), f"`{state}_n`")


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (kind, where)
        for kind in KINDS
        for where in ("x", *(f"{state}_0" for state in kind.states), "d_output")
    ],
    ids=str,
)
@both_ways
@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_nan_stays_in_its_own_sequence(kind: Kind, reverse, level: str, dtype, where) -> None:
    given = draw(kind, SIZE, LENGTHS, dtype=dtype, reverse=reverse)
    arriving = draw_arriving(kind, given)
    b = LENGTHS.index(3)
    with selected(level):
        first = forward_backward(kind, given, arriving)
        values = arriving if where == "d_output" else given
        values[where][(1, b, 2) if values[where].ndim == 3 else (b, 2)] = np.nan
        found = forward_backward(kind, given, arriving)
    others = np.arange(len(LENGTHS)) != b
    for name, axis in per_sequence(kind):
        mine, before = (np.compress(others, v[name], axis) for v in (found, first))
        assert_same(mine, before, f"`{name}` of another sequence")
    result = found["d_x" if where == "d_output" else "output"]
    hit = {"x": [0, 1] if reverse else [1, 2], "d_output": [1, 2] if reverse else [0, 1]}
    for t in hit.get(where, [0, 1, 2]):
        assert np.isnan(result[t, b]).any(), f"the NaN is lost at step {t}"
    assert not result[3:, b].any(), "something is beyond the end"


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


# Two numbers of 16 bits may be read as one word; rows here have an odd number.
@each_kind
@each_level
def test_what_lies_beyond_the_ends_is_in_no_word(kind: Kind, level: str) -> None:
    lengths = [6, 0, 1, 9, 3, 9, 2]
    given = draw(kind, (9, 7, 7, 16), lengths, dtype="bfloat16")
    with selected(level):
        before = kind.op(**given)._asdict()
        for b, length in enumerate(lengths):
            given["x"][length:, b] = np.nan
        assert same(kind.op(**given)._asdict(), before)


@each_kind
@both_ways
@each_level
def test_batch_first_views_give_the_same_bits(kind: Kind, reverse: bool, level: str) -> None:
    given = draw(kind, SIZE, LENGTHS, dtype="float32", reverse=reverse)
    arriving = draw_arriving(kind, given)
    with selected(level):
        first = forward_backward(kind, given, arriving)
        for values, name in ((given, "x"), (arriving, "d_output")):
            values[name] = np.ascontiguousarray(values[name].swapaxes(0, 1)).swapaxes(0, 1)
        found = forward_backward(kind, given, arriving)
    for name, array in first.items():
        assert_same(found[name], array, f"`{name}`")


def results(kind: Kind, size: tuple[int, int, int, int] = (20, 8, 30, 70)) -> Values:
    given = draw(kind, size, dtype="float32")
    return forward_backward(kind, given, draw_arriving(kind, given))


def same(found: Values, expected: Values) -> bool:
    return all(np.array_equal(found[name], array) for name, array in expected.items())


@each_level
def test_what_other_calls_left_in_memory_has_no_influence(level: str) -> None:
    given = draw(LSTM, (20, 3, 7, 16), None, dtype="bfloat16")
    nan = draw(LSTM, (20, 3, 8, 16), None, dtype="bfloat16")
    nan["x"] = np.repeat(np.full_like(nan["x"], np.nan), 2, 2)[..., ::2]  # which is copied
    with selected(level):
        expected = LSTM.op(**given)._asdict()
        for _ in range(3):
            LSTM.op(**nan)
            assert same(LSTM.op(**given)._asdict(), expected)


def test_concurrent_calls_from_many_threads_are_right() -> None:
    expected = [results(kind) for kind in KINDS]

    def work(i: int) -> bool:
        return all(same(results(KINDS[i % 4]), expected[i % 4]) for _ in range(10))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def child(expected: list[Values]) -> None:
    sys.exit(0 if all(same(results(k), e) for k, e in zip(KINDS, expected, strict=True)) else 1)


def test_forked_child_computes_too() -> None:
    expected = [results(kind) for kind in KINDS]
    process = multiprocessing.get_context("fork").Process(target=child, args=(expected,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads in general
        process.start()
    process.join(60)
    hangs = process.is_alive()
    process.kill()
    assert not hangs, "the child hangs"
    assert process.exitcode == 0
