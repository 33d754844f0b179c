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
    paths = log_probs.argmax(2).numpy().T
    found = []
    for path, n in zip(paths, lengths, strict=True):
        kept = np.flatnonzero(np.diff(path[:n], prepend=BLANK))
        found.append([int(c) for c in path[kept] if c != BLANK])
    return found


def beam_search(log_probs: Any, lengths: Any, width: int = 8) -> list[list[int]]:
    """The most probable digits of each line: all paths that say them are added up."""
    found = nativeops.ctc_beam_search(
        log_probs, torch.from_numpy(lengths), beam_width=width, normalized=True
    )
    pairs = zip(found.tokens[:, 0], found.lengths[:, 0], strict=True)
    return [tokens[: int(n)].tolist() for tokens, n in pairs]


def spans(log_probs: Any, labels: Sequence[Sequence[int]], lengths: Any) -> list[Spans]:
    """Of each label of each line, the first frame, the one behind the last, and the confidence."""
    counts = [len(each) for each in labels]
    targets = torch.ones(len(labels), max([1, *counts]), dtype=torch.int32)
    for row, each in zip(targets, labels, strict=True):
        row[: len(each)] = torch.tensor(each, dtype=torch.int32)
    aligned = nativeops.forced_align(
        log_probs, targets, torch.from_numpy(lengths), torch.tensor(counts, dtype=torch.int32)
    )
    rows = zip(aligned.starts, aligned.ends, aligned.confidence, counts, strict=True)
    return [
        [*zip(starts[:n].tolist(), ends[:n].tolist(), sure[:n].tolist(), strict=True)]
        for starts, ends, sure, n in rows
    ]


def edits(found: Sequence[int], right: Sequence[int]) -> int:
    """The fewest insertions, deletions and substitutions between the two (Levenshtein)."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(found, 1):
        before, row = row, [i]
        for j, b in enumerate(right, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]


def label_error(found: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> float:
    """Edits of all lines by their number of labels."""
    return sum(map(edits, found, right)) / sum(map(len, right))
