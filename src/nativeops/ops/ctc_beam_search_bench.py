# SPDX-License-Identifier: Apache-2.0
"""ctc_prefixes against other decoders for the CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nativeops.bench.case import OURS, Bench, Known, NdArray, Rival
from nativeops.ops.ctc_beam_search import ctc_prefixes

SIZES = [
    {"t": 200, "b": 8, "c": 40, "width": 16},
    {"t": 800, "b": 8, "c": 80, "width": 32},
    {"t": 300, "b": 4, "c": 1000, "width": 16},
]


def outputs(random: np.random.Generator, t: int, b: int, c: int, width: int) -> tuple[NdArray, ...]:
    """What a trained network gives: log-probabilities that are mostly sure, mostly of the blank."""
    symbols = np.where(random.random((t, b)) < 0.7, 0, random.integers(1, c, (t, b)))
    x = random.standard_normal((t, b, c)) + 9 * (np.arange(c) == symbols[..., None])
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x.astype(np.float32), np.array([width])


def tokens(x: NdArray, width: NdArray) -> list[Known]:
    """The best sequence of each, by the definition."""
    found = ctc_prefixes.reference(x.astype(np.float64), beam_width=int(width[0]), normalized=True)
    return [Known(np.s_[:], found.tokens[:, 0].astype(np.float64))]


def padded(sequences: Sequence[Sequence[int]], steps: int) -> tuple[NdArray]:
    """One row for each sequence, -1 behind its end."""
    rows = np.full((len(sequences), steps), -1.0)
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    return (rows,)


def ours() -> Rival:
    """The op, on all threads."""

    def prepare(x: NdArray, width: NdArray) -> Callable[[], Any]:
        beam = int(width[0])
        return lambda: (ctc_prefixes(x, beam_width=beam, normalized=True).tokens[:, 0],)

    return Rival("ours, NumPy", prepare, OURS, "numpy")


def fast_ctc_decode() -> Rival:
    """Rust; one sequence at a time, of probabilities; cuts labels below a probability."""

    def prepare(x: NdArray, width: NdArray) -> Callable[[], Any]:
        import fast_ctc_decode as decoder

        letters = [chr(0x4E00 + c) for c in range(x.shape[2])]
        own = [np.ascontiguousarray(np.exp(x[:, b])) for b in range(x.shape[1])]

        def call() -> Any:
            texts = [decoder.beam_search(p, letters, int(width[0]), 1e-4)[0] for p in own]
            return padded([[ord(letter) - 0x4E00 for letter in text] for text in texts], len(x))

        return call

    return Rival("fast_ctc_decode", prepare, "fast-ctc-decode", "numpy")


def flashlight() -> Rival:
    """C++; one sequence at a time, no lexicon, no language model, sums over paths."""

    def prepare(x: NdArray, width: NdArray) -> Callable[[], Any]:
        from flashlight.lib.text import decoder

        steps, batch, classes = x.shape
        options = decoder.LexiconFreeDecoderOptions(
            beam_size=int(width[0]), beam_size_token=classes, beam_threshold=1e9, lm_weight=0.0,
            sil_score=0.0, log_add=True, criterion_type=decoder.CriterionType.CTC,
        )  # fmt: skip
        search = decoder.LexiconFreeDecoder(options, decoder.ZeroLM(), -1, 0, [])
        own = [np.ascontiguousarray(x[:, b]) for b in range(batch)]

        def call() -> Any:
            found = [search.decode(each.ctypes.data, steps, classes)[0].tokens for each in own]
            return padded([_collapsed(labels) for labels in found], steps)

        return call

    return Rival("flashlight", prepare, "flashlight-text", "numpy")


def _collapsed(path: Sequence[int]) -> list[int]:
    before = (0, *path[:-1])
    return [c for c, last in zip(path, before, strict=True) if c > 0 and c != last]


BENCHES = [
    Bench(
        "search",
        "the best label sequence of each of a batch, from log-probabilities",
        sizes=SIZES,
        inputs=outputs,
        expected=tokens,
        memory_sizes=[SIZES[1]],
        rivals=[ours(), fast_ctc_decode(), flashlight()],
    )
]
