# SPDX-License-Identifier: Apache-2.0
"""Weights that a layer keeps packed from call to call: no change of one is ever missed."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nativeops.ops.lstm import lstm_layer
from nativeops.ops.recurrent_test import both_ways, each_kind, each_level
from nativeops.testing.arrays import numpy_dtype
from nativeops.testing.aspects import num_threads, selected
from nativeops.testing.marks import tuned, without_sanitizer
from nativeops.testing.recurrent import LSTM, RELU, Kind, Values, as_dtype, draw

SIZES = (60, 1, 70, 65)  # frames enough to pack weights for, few enough to keep them
TIMES = 4  # calls after which weights are kept


def results(kind: Kind, given: Values) -> list[bytes]:
    """All results of a call, by their bits."""
    return [np.asarray(array).tobytes() for array in kind.op(**given) if array is not None]


def packed_anew(kind: Kind, given: Values) -> list[bytes]:
    """The same from weights in another order of memory, which are never kept."""
    order: dict[str, Any] = {name: np.asfortranarray(given[name]) for name in ("w_ih", "w_hh")}
    return results(kind, {**given, **order})


@each_kind
@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_no_change_of_a_weight_is_missed(kind: Kind, level: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    given = as_dtype(draw(kind, SIZES, None), numpy_dtype(dtype))
    with selected(level):
        before = packed_anew(kind, given)
        for _ in range(TIMES):
            assert results(kind, given) == before
        for name in kind.weights:
            weight = given[name]
            if weight is None:
                continue
            old = weight.copy()
            place = tuple(random.integers(size) for size in weight.shape)
            weight[place] = -weight[place] - weight.dtype.type(1)
            after = packed_anew(kind, given)
            for _ in range(TIMES):
                assert results(kind, given) == after, f"`{name}`{list(place)} was changed"
            assert after != before
            weight[...] = old
            assert results(kind, given) == before, f"`{name}` is as it was"


# Fingerprints are of biases whose numbers lie side by side.
@each_kind
@each_level
def test_change_of_a_bias_with_gaps_is_not_missed(kind: Kind, level: str) -> None:
    given = draw(kind, SIZES, None, dtype="float32", seed=6)
    for name in ("b_ih", "b_hh"):
        given[name] = np.repeat(given[name], 2)[::2]
    with selected(level):
        for _ in range(TIMES):
            before = results(kind, given)
        for name in ("b_ih", "b_hh"):
            given[name][-1] += 1
            after = results(kind, given)
            assert after == packed_anew(kind, given)
            assert after != before, f"`{name}` was changed"
            before = after


def test_the_least_change_counts_in_every_row_and_column() -> None:
    given = draw(LSTM, SIZES, None, dtype="float32")
    before = results(LSTM, given)
    for _ in range(TIMES):
        results(LSTM, given)
    weight, changed = given["w_hh"], 0
    for row, column in [*((r, r % 65) for r in range(0, 260, 3)), *((7, c) for c in range(65))]:
        old = weight[row, column]
        weight[row, column] = old * np.float32(1 + 2**-12)
        found = results(LSTM, given)
        changed += found != before
        assert found == packed_anew(LSTM, given), f"row {row}, column {column}"
        weight[row, column] = old
    assert changed > 100


@each_kind
@each_level
@both_ways
@pytest.mark.parametrize(("dtype", "other"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_the_same_bits_in_another_dtype_are_other_weights(
    kind: Kind, level: str, reverse: bool, dtype: str, other: str
) -> None:
    given = draw(kind, SIZES, None, dtype=dtype, reverse=reverse)
    viewed = {
        name: value.view(numpy_dtype(other)) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }
    with selected(level):
        for _ in range(TIMES):
            results(kind, given)
        assert results(kind, viewed) == packed_anew(kind, viewed)


@each_kind
@each_level
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_call_without_steps_keeps_no_weights(kind: Kind, level: str, dtype: str) -> None:
    given = as_dtype(draw(kind, SIZES, None, seed=5), numpy_dtype(dtype))
    with selected(level):
        expected = packed_anew(kind, given)
        for _ in range(TIMES):
            results(kind, {**given, "x": given["x"][:0]})
        assert results(kind, given) == expected


@each_kind
@each_level
def test_kept_weights_are_those_of_so_many_threads(kind: Kind, level: str) -> None:
    given = draw(kind, (60, 1, 70, 130), None, dtype="float32", seed=7)
    with selected(level):
        for n in (1, 4, 2, 3):
            with num_threads(n):
                expected = packed_anew(kind, given)
                for _ in range(TIMES):
                    assert results(kind, given) == expected, f"with {n} threads"


def test_layers_that_run_at_once_have_their_own_weights() -> None:
    layers = [draw(RELU, SIZES, None, dtype="float32", seed=seed) for seed in range(6)]
    expected = [packed_anew(RELU, given) for given in layers]

    def run(layer: int) -> bool:
        return all(results(RELU, layers[layer]) == expected[layer] for _ in range(30))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(6)))


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Of 2 MB and of 8 MB each: what is kept is bounded by number and by bytes.
@without_sanitizer
@pytest.mark.parametrize(("units", "layers", "most"), [(256, 100, 80 << 20), (512, 30, 100 << 20)])
def test_memory_is_bounded(units: int, layers: int, most: int) -> None:
    given = draw(LSTM, (60, 1, units, units), None, dtype="float32")
    for _ in range(TIMES):
        LSTM.op(**given)
    before = resident()
    for layer in range(layers):
        given["w_ih"][0, 0] = given["w_hh"][0, 0] = layer
        for _ in range(TIMES):
            LSTM.op(**given)
    assert resident() - before < most


@without_sanitizer
def test_memory_of_many_small_weights_is_bounded() -> None:
    given = draw(LSTM, (60, 1, 4, 2), None, dtype="float32")
    LSTM.op(**given)
    before = resident()
    for layer in range(6000):
        given["w_ih"][0, 0] = layer
        LSTM.op(**given)
    assert resident() - before < 8 << 20


@tuned
def test_weights_written_during_a_call_are_not_kept_as_those_before() -> None:
    random, wrong = np.random.default_rng(0), 0
    x = random.standard_normal((20, 16, 512), dtype="float32")

    def matrices() -> list[Any]:
        return [0.05 * random.standard_normal((2048, 512), dtype="float32") for _ in range(2)]

    for _ in range(10):
        old, new = matrices(), matrices()
        live = [matrix.copy() for matrix in old]

        def write(to: list[Any], values: list[Any]) -> None:
            time.sleep(0.001)
            for one, value in zip(to, values, strict=True):
                one[...] = value

        with num_threads(1):
            lstm_layer(x, *live)
            writer = threading.Thread(target=write, args=(live, new))
            writer.start()
            lstm_layer(x, *live)
            writer.join()
            write(live, old)
            expected = lstm_layer(x, *map(np.asfortranarray, old)).output  # which is never kept
            wrong += not np.array_equal(lstm_layer(x, *live).output, expected)
    assert wrong == 0
