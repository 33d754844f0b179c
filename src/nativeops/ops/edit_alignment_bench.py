# SPDX-License-Identifier: Apache-2.0
"""edit_alignment: the counts of a corpus, against what speech people use."""

from typing import Any

import numpy as np

import nativeops
from nativeops.bench.case import Bench, Known, NdArray, Rival
from nativeops.bench.forms import ours_in

SIZES = [{"batch": 1000, "length": 30}, {"batch": 16, "length": 2000}]


def said_and_meant(random: np.random.Generator, batch: int, length: int) -> tuple[NdArray, ...]:
    """Labels as of words, of which one in ten is wrong."""
    a, b = random.integers(0, 10_000, (2, batch, length)).astype(np.int32)
    return a, np.where(random.random(a.shape) < 0.1, b, a)


def rate(a: NdArray, b: NdArray) -> list[Known]:
    """The edits of the whole corpus, per label."""
    total = nativeops.edit_distance.reference(a, b).sum() / b.size
    return [Known((), np.array(total))]


def ours(a: NdArray, b: NdArray) -> Any:
    """The sum over the corpus."""
    return nativeops.error_rate(a, b).rate


def _jiwer(a: NdArray, b: NdArray) -> Any:
    import jiwer

    said, meant = ([" ".join(map(str, row)) for row in x] for x in (a, b))
    return lambda: jiwer.process_words(meant, said).wer


def _rapidfuzz(a: NdArray, b: NdArray) -> Any:
    from rapidfuzz.distance import Levenshtein

    pairs = list(zip(b.tolist(), a.tolist(), strict=True))
    return lambda: sum(len(Levenshtein.editops(*pair)) for pair in pairs) / b.size


BENCHES = [
    Bench(
        "error rate",
        "substitutions, insertions and deletions of a corpus",
        sizes=SIZES,
        inputs=said_and_meant,
        expected=rate,
        work=lambda batch, length: batch * length**2,
        dtype="int32",
        tolerance=1e-12,
        rivals=[
            *ours_in(ours, "numpy"),
            Rival("editops in a loop", _rapidfuzz, "rapidfuzz", "numpy"),
            Rival("process_words", _jiwer, "jiwer", "numpy"),
        ],
    )
]
