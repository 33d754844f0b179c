# SPDX-License-Identifier: Apache-2.0
"""The recogniser: two bidirectional LSTM layers over pixel columns, trained by CTC."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

import nativeops
from nativeops.demos.lines_data import BLANK, CLASSES, HEIGHT, Lines
from nativeops.layers.torch import LSTM, CTCLoss

LSTMS: dict[str, Any] = {"nativeops": LSTM, "torch": torch.nn.LSTM}
Library = Literal["nativeops", "torch"]
Spans = Sequence[tuple[int, int, float]]
DROPOUT = 0.3
WINDOW, STRIDE = 9, 3  # columns that a frame sees, and from one to the next; a digit has 8


def frames(lengths: Any) -> Any:
    """How many frames lines of so many columns have."""
    return (lengths + STRIDE - 1) // STRIDE


class Recogniser(torch.nn.Module):
    """From pixel columns ``[t, b, HEIGHT]`` to the logits ``[t, b, CLASSES]``."""

    def __init__(self, hidden: int = 64, *, library: Library = "nativeops", seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = (WINDOW * HEIGHT, hidden)
            self.lstm = LSTMS[library](*shape, num_layers=2, bidirectional=True)
            self.dropout = torch.nn.Dropout(DROPOUT)
            self.output = torch.nn.Linear(2 * hidden, CLASSES)

    def forward(self, pixels: Any, lengths: Any) -> Any:
        """Packed, so that a line does not depend on the padding behind it."""
        around = torch.nn.functional.pad(pixels, (0, 0, 0, 0, WINDOW // 2, WINDOW // 2))
        seen = around.unfold(0, WINDOW, STRIDE).flatten(2)
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            seen, frames(lengths), enforce_sorted=False
        )
        hidden, _ = torch.nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])
        return self.output(self.dropout(hidden))


class Criterion(torch.nn.Module):
    """The CTC loss of lines: mean of each line's loss by its number of digits."""

    def __init__(self, library: Library = "nativeops") -> None:
        super().__init__()
        ours = library == "nativeops"
        self.ours = CTCLoss(BLANK, normalized=False) if ours else None
        self.theirs = None if ours else torch.nn.CTCLoss(BLANK)

    def forward(self, logits: Any, lines: Lines) -> Any:
        """Ours takes the logits; PyTorch's the results of `log_softmax`."""
        rest = [torch.from_numpy(array) for array in (lines.targets, frames(lines.lengths))]
        rest.append(torch.from_numpy(lines.target_lengths))
        if self.ours is not None:
            return self.ours(logits, *rest)
        assert self.theirs is not None
        return self.theirs(logits.log_softmax(2), *rest)


def logits_of(model: torch.nn.Module, lines: Lines) -> Any:
    """The model's outputs; frames behind the longest line are left away."""
    longest = int(lines.lengths.max())
    return model(torch.from_numpy(lines.pixels[:longest]), torch.from_numpy(lines.lengths).long())


def log_posterior(model: torch.nn.Module, lines: Lines) -> Any:
    """The logarithm of each class's probability ``[t, b, CLASSES]``."""
    training = model.training
    model.eval()
    with torch.no_grad():
        found = logits_of(model, lines).log_softmax(2)
    model.train(training)
    return found


def best_paths(log_probs: Any, lengths: Any) -> list[list[int]]:
    """What the most probable class of each frame says: repeats merged, blanks left away."""
    found = nativeops.ctc_greedy_decode(log_probs, torch.from_numpy(lengths))
    pairs = zip(found.labels, found.lengths, strict=True)
    return [labels[: int(n)].tolist() for labels, n in pairs]


def beam_search(log_probs: Any, lengths: Any, width: int = 8) -> list[list[int]]:
    """The most probable digits of each line: all paths that say them are added up."""
    found = nativeops.ctc_beam_search(
        log_probs, torch.from_numpy(lengths), beam_width=width, normalized=True
    )
    pairs = zip(found.tokens[:, 0], found.lengths[:, 0], strict=True)
    return [tokens[: int(n)].tolist() for tokens, n in pairs]


def spans(log_probs: Any, labels: Sequence[Sequence[int]], lengths: Any) -> list[Spans]:
    """Of each label of each line, the first frame, the one behind the last, and the confidence."""
    targets, counts = (torch.from_numpy(array) for array in padded(labels))
    aligned = nativeops.forced_align(log_probs, targets, torch.from_numpy(lengths), counts)
    rows = zip(aligned.starts, aligned.ends, aligned.confidence, counts.tolist(), strict=True)
    return [
        [*zip(starts[:n].tolist(), ends[:n].tolist(), sure[:n].tolist(), strict=True)]
        for starts, ends, sure, n in rows
    ]


def padded(labels: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Label sequences as one array, filled up behind their ends, and their lengths."""
    counts = np.array([len(each) for each in labels], np.int32)
    array = np.ones((len(labels), max(1, counts.max(initial=0))), np.int32)
    for row, each in zip(array, labels, strict=True):
        row[: len(each)] = each
    return array, counts


def edits(found: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> list[int]:
    """Of each line the fewest insertions, deletions and substitutions between the two."""
    (a, a_len), (b, b_len) = padded(found), padded(right)
    return [*map(int, nativeops.edit_distance(a, b, a_len, b_len))]


def label_error(found: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> float:
    """Edits of all lines by their number of labels."""
    (a, a_len), (b, b_len) = padded(found), padded(right)
    return nativeops.error_rate(a, b, a_len, b_len).rate
