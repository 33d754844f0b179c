# SPDX-License-Identifier: Apache-2.0
"""Error rates of a corpus, as speech people report them: of words, phonemes or characters."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nativeops.errors import ArgumentError, NativeOpsError, message
from nativeops.ops.edit_alignment import edit_alignment


@dataclass(frozen=True)
class ErrorRate:
    """The edits of a corpus, by kind. The sum of two is that of both corpora together.

    Args:
        matches: Labels of the references that were said.
        substitutions: Labels of the references in whose place another was said.
        insertions: Labels that were said, but are not in the references.
        deletions: Labels of the references that were not said.
        sequences: How many pairs there are.
        wrong_sequences: Those of them with an error at least.
    """

    matches: int = 0
    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    sequences: int = 0
    wrong_sequences: int = 0

    @property
    def errors(self) -> int:
        """All edits."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def reference_labels(self) -> int:
        """How many labels the references have."""
        return self.matches + self.substitutions + self.deletions

    @property
    def rate(self) -> float:
        """Errors per label of the references; without any, 0 if there are no errors, else ∞."""
        return _ratio(self.errors, self.reference_labels)

    @property
    def sequence_rate(self) -> float:
        """The share of the pairs with an error."""
        return _ratio(self.wrong_sequences, self.sequences)

    def __add__(self, other: "ErrorRate") -> "ErrorRate":
        if not isinstance(other, ErrorRate):
            return NotImplemented
        names = self.__dataclass_fields__
        return ErrorRate(*(getattr(self, name) + getattr(other, name) for name in names))

    def __radd__(self, zero: int) -> "ErrorRate":
        """So that ``sum(rates)``, which begins with 0, needs no start."""
        return self if zero == 0 else NotImplemented

    def __str__(self) -> str:
        counts = f"{self.insertions} ins, {self.deletions} del, {self.substitutions} sub"
        return f"{self.rate:.2%} [ {self.errors} / {self.reference_labels}, {counts} ]"


def _ratio(part: int, whole: int) -> float:
    if whole:
        return part / whole
    return float("inf") if part else 0.0


def error_rate(a: Any, b: Any, a_len: Any = None, b_len: Any = None) -> ErrorRate:
    """Substitutions, insertions and deletions of a corpus, and the error rate that they make.

    The edits of each pair are those of `edit_alignment`, and they are summed over all pairs before
    the sum is divided by the number of reference labels: long sentences count for more.

    Args:
        a: What was said: a batch of sequences, in any framework's arrays.
        b: The references.
        a_len: The number of labels of each ``a``; all if left away.
        b_len: The number of labels of each ``b``; all if left away.

    Its result is numbers of Python, so no framework can compile it: there, add up the ``counts`` of
    `edit_alignment`.

    >>> said, meant = np.array([[1, 2, 3], [4, 4, 0]]), np.array([[1, 3, 0], [4, 5, 6]])
    >>> lengths = np.array([3, 2], "int32"), np.array([2, 3], "int32")
    >>> print(error_rate(said, meant, *lengths))
    60.00% [ 3 / 5, 1 ins, 1 del, 1 sub ]
    """
    try:
        counts: Any = edit_alignment.only(["counts"])(a, b, a_len, b_len).counts
    except NativeOpsError as error:
        raise type(error)(str(error).replace("edit_alignment:", "error_rate:", 1)) from None
    try:
        on_cpu = counts.cpu() if hasattr(counts, "detach") else counts  # PyTorch's may be on CUDA
        by_pair = np.asarray(on_cpu).astype(np.int64)
    except (TypeError, NotImplementedError, RuntimeError):  # there are no numbers yet
        text = "counts in Python, so it cannot be compiled or mapped."
        hint = "use `edit_alignment.only(['counts'])(a, b).counts` there, and add them up."
        raise ArgumentError(message("error_rate", text, hint=hint)) from None
    wrong = int((by_pair[:, 1:].sum(1) > 0).sum())
    right, substituted, inserted, deleted = by_pair.sum(0).tolist()
    return ErrorRate(right, substituted, inserted, deleted, len(by_pair), wrong)
