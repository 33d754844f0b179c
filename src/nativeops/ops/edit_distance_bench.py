# SPDX-License-Identifier: Apache-2.0
"""edit_distance and pairwise_edit_distance against their rivals.

Strings are made before the clock starts, as they are what those libraries are fastest with.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import Bench, Known, NdArray, Rival, spread_rows
from nativeops.bench.forms import ours_in, tensorflow_rival, torch_rival

PAIRS = [
    {"batch": 64, "length": 200},
    {"batch": 1024, "length": 50},
    {"batch": 16, "length": 5000},
]
KINDS = 30
WORKERS = 2
LIMIT = 20  # of distances that are told apart


def two_batches(
    random: np.random.Generator, batch: int, length: int, kinds: int = KINDS
) -> tuple[NdArray, ...]:
    """Labels without any order."""
    return tuple(random.integers(0, kinds, (2, batch, length)).astype(np.int32))


def two_sets(
    random: np.random.Generator, n: int, m: int, length: int, kinds: int = KINDS
) -> tuple[NdArray, ...]:
    """The same for two sets of different size."""
    a, b = (random.integers(0, kinds, (size, length)).astype(np.int32) for size in (n, m))
    return a, b


def distances(a: NdArray, b: NdArray) -> list[Known]:
    """Some, by the definition."""
    rows = spread_rows(len(a), 1024 if a.shape[1] < 1000 else 4)
    return [Known(rows, nativeops.edit_distance.reference(a[rows], b[rows]))]


def capped(a: NdArray, b: NdArray) -> list[Known]:
    """The same up to the limit."""
    return [Known(rows, np.minimum(d, LIMIT + 1)) for rows, d in distances(a, b)]


def all_distances(a: NdArray, b: NdArray) -> list[Known]:
    """Some rows, by the definition."""
    rows = spread_rows(len(a), 2)
    return [Known(rows, nativeops.pairwise_edit_distance.reference(a[rows], b))]


def strings(x: NdArray) -> list[str]:
    """A character for each label; those of a byte stay in one."""
    return ["".join(map(chr, row + 65)) for row in x]


def of_strings(package: str, name: str, call: Callable[[list[str], list[str]], Any]) -> Rival:
    """A rival that is called with strings."""

    def prepare(a: NdArray, b: NdArray) -> Callable[[], Any]:
        return partial(call, strings(a), strings(b))

    return Rival(name, prepare, package, "numpy")


def of_lists(package: str, name: str, call: Callable[[Any, Any], Any]) -> Rival:
    """A rival that is called with lists of numbers."""

    def prepare(a: NdArray, b: NdArray) -> Callable[[], Any]:
        return partial(call, a.tolist(), b.tolist())

    return Rival(name, prepare, package, "numpy")


def _rapidfuzz(first: list[str], second: list[str], workers: int) -> Any:
    from rapidfuzz import process
    from rapidfuzz.distance import Levenshtein

    return process.cpdist(first, second, scorer=Levenshtein.distance, workers=workers)


def _rapidfuzz_loop(first: list[str], second: list[str]) -> Any:
    from rapidfuzz.distance import Levenshtein

    return [*map(Levenshtein.distance, first, second)]


def _editdistance(first: Any, second: Any) -> Any:
    import editdistance

    return [*map(editdistance.eval, first, second)]


def _polyleven(first: list[str], second: list[str]) -> Any:
    import polyleven

    return [*map(polyleven.levenshtein, first, second)]


def _tensorflow(a: Any, b: Any) -> Any:
    import tensorflow as tf

    first, second = (tf.sparse.from_dense(x + 1) for x in (a, b))
    return tf.edit_distance(first, second, normalize=False)


def _rapidfuzz_all(first: list[str], second: list[str], workers: int) -> Any:
    from rapidfuzz import process
    from rapidfuzz.distance import Levenshtein

    return process.cdist(first, second, scorer=Levenshtein.distance, workers=workers)


def _alike(random: np.random.Generator, batch: int, length: int) -> tuple[NdArray, ...]:
    a, b = two_batches(random, batch, length)
    return a, np.where(random.random(a.shape) < 0.002, b, a)


def _limited(first: list[str], second: list[str]) -> Any:
    from rapidfuzz import process
    from rapidfuzz.distance import Levenshtein

    return process.cpdist(
        first, second, scorer=Levenshtein.distance, workers=WORKERS, score_cutoff=LIMIT
    )


def _returnn(a: Any, b: Any) -> Any:
    import torch
    from returnn.torch.util.native_op import edit_distance

    lengths = torch.full((len(a),), a.shape[1], dtype=torch.int32)
    return edit_distance(a, lengths, b, lengths)


RIVALS = [
    *ours_in(nativeops.edit_distance, "numpy", "torch"),
    of_strings("rapidfuzz", "cpdist, 2 workers", partial(_rapidfuzz, workers=WORKERS)),
    of_strings("rapidfuzz", "cpdist, 1 worker", partial(_rapidfuzz, workers=1)),
    of_strings("rapidfuzz", "distance in a loop", _rapidfuzz_loop),
    of_strings("polyleven", "polyleven", _polyleven),
    of_lists("editdistance", "editdistance", _editdistance),
    tensorflow_rival(_tensorflow, name="tf.edit_distance"),
    torch_rival(_returnn, "returnn", name="RETURNN"),
]

BATCH = Bench(
    "pairs",
    "the distances of a batch of pairs with 30 kinds of labels",
    sizes=PAIRS,
    inputs=two_batches,
    expected=distances,
    work=lambda batch, length: batch * length**2,
    dtype="int32",
    tolerance=0,
    seconds=20,
    memory_sizes=PAIRS[2:],
    rivals=RIVALS,
)

LARGE_ALPHABET = Bench(
    "pairs of words",
    "the same with 10000 kinds of labels, as of words",
    sizes=PAIRS,
    inputs=partial(two_batches, kinds=10_000),
    expected=distances,
    work=lambda batch, length: batch * length**2,
    dtype="int32",
    tolerance=0,
    seconds=20,
    rivals=RIVALS,
)

LIMITED, UNLIKE = (
    Bench(
        name,
        f"pairs that {what}, with max_distance={LIMIT}",
        sizes=PAIRS,
        inputs=inputs,
        expected=capped,
        dtype="int32",
        tolerance=0,
        rivals=[
            *ours_in(partial(nativeops.edit_distance, max_distance=LIMIT), "numpy"),
            of_strings("rapidfuzz", "cpdist, 2 workers", _limited),
        ],
    )
    for name, what, inputs in (
        ("within a limit", "differ in few labels", _alike),
        ("beyond a limit", "have little in common", two_batches),
    )
)

ALL_PAIRS = Bench(
    "all pairs",
    "the distances of all pairs of two sets",
    sizes=[
        {"n": 1024, "m": 1024, "length": 50},
        {"n": 200, "m": 200, "length": 200},
        {"n": 1, "m": 20_000, "length": 50},
        {"n": 8, "m": 20_000, "length": 50},
    ],
    inputs=two_sets,
    expected=all_distances,
    work=lambda n, m, length: n * m * length**2,
    dtype="int32",
    tolerance=0,
    seconds=20,
    rivals=[
        *ours_in(nativeops.pairwise_edit_distance, "numpy"),
        of_strings("rapidfuzz", "cdist, 2 workers", partial(_rapidfuzz_all, workers=WORKERS)),
        of_strings("rapidfuzz", "cdist, 1 worker", partial(_rapidfuzz_all, workers=1)),
    ],
)


BENCHES = [BATCH, LARGE_ALPHABET, LIMITED, UNLIKE, ALL_PAIRS]
