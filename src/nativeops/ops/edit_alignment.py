# SPDX-License-Identifier: Apache-2.0
"""Which edits make a sequence to another, and how many of each kind."""

from typing import Generic, NamedTuple

import numpy as np

from nativeops.declare import Array, Int, Int32, Lengths, Uint8, op
from nativeops.ops import _edits

MATCH, SUBSTITUTION, INSERTION, DELETION, NO_STEP = 0, 1, 2, 3, 255


class EditAlignment(NamedTuple, Generic[Array]):
    """The steps of `edit_alignment`, and how many of each kind there are."""

    steps: Uint8[Array, "batch ta+tb"] | None
    n_steps: Int32[Array, "batch"] | None
    counts: Int32[Array, "batch 4"] | None


@op(kernel="edit_alignment.h", independent="batch")
def edit_alignment(
    a: Int[Array, "batch ta"],
    b: Int[Array, "batch tb"],
    a_len: Lengths[Array, "batch"] | None = None,
    b_len: Lengths[Array, "batch"] | None = None,
) -> EditAlignment[Array]:
    """Alignments with the fewest edits from ``a`` to the reference ``b``.

    ``D[0, 0]`` to ``D[a_len, b_len]`` is where the steps lead, with ``D`` as in `edit_distance`:
    0, a match, and 1, a substitution, take a label of both; 2, an insertion, takes one of ``a``
    that the reference lacks; 3, a deletion, takes one of ``b`` that was not said. So speech people
    count. Of several best alignments it is the one found from the end on that takes, as long as it
    stays a best one, a match or substitution before a deletion, and that before an insertion.

    Args:
        a: What was said: labels are any integers.
        b: The references.
        a_len: The number of labels of each ``a``, from 0 to ``ta``; ``ta`` if left away.
        b_len: The number of labels of each ``b``, from 0 to ``tb``; ``tb`` if left away.

    Returns: ``steps``, from the first on, with 255 behind the last; their number ``n_steps``; and
        ``counts`` of matches, substitutions, insertions, deletions, in this order.
        ``only(["counts"])`` of the op makes these alone.
    Raises: RangeError for a length that is none (on the CPU; kept within bounds on CUDA).
    Gradient: none; it is constant almost everywhere.
    Cost: O(a_len·b_len / 64) word operations on the CPU; memory tb·√ta / 2 bytes a thread there,
        and 12·ta·√(ta + tb) in the portable kernel and for each of at most 1024 blocks on CUDA.
    Same as: ``rapidfuzz.distance.Levenshtein.opcodes``, but for ties.
    Source: Wagner & Fischer 1974, The string-to-string correction problem.

    >>> made = edit_alignment(np.array([[1, 2, 3, 4]]), np.array([[1, 3, 5]]))
    >>> made.steps, made.counts
    (array([[  0,   2,   0,   1, 255, 255, 255]], dtype=uint8), array([[2, 1, 1, 0]], dtype=int32))
    """
    a_len, b_len = _edits.lengths(a_len, a), _edits.lengths(b_len, b)
    table = np.stack(list(_edits.rows(a, b)), 1)
    batch, item = len(a), np.arange(len(a))
    i, j, walked = a_len.copy(), b_len.copy(), []
    for _ in range(a.shape[1] + b.shape[1]):
        i_before, j_before = np.maximum(i - 1, 0), np.maximum(j - 1, 0)
        both = (i > 0) & (j > 0)
        differ = np.ones(batch, bool)
        if a.shape[1] and b.shape[1]:
            differ = a[item, i_before] != b[item, j_before]
        here = table[item, i, j]
        across = both & (table[item, i_before, j_before] + differ == here)
        deleted = ~across & (j > 0) & (table[item, i, j_before] + 1 == here)
        inserted = ~across & ~deleted & (i > 0)
        step = np.where(across, differ, np.where(deleted, DELETION, INSERTION))
        walked.append(np.where(across | deleted | inserted, step, NO_STEP))
        i, j = i - (across | inserted), j - (across | deleted)
    back = np.stack(walked, 1) if walked else np.zeros((batch, 0), np.int64)
    n_steps = (back != NO_STEP).sum(1)
    places = n_steps[:, None] - 1 - np.arange(back.shape[1])
    steps = np.where(places < 0, NO_STEP, np.take_along_axis(back, np.maximum(places, 0), 1))
    counts = np.stack([(back == kind).sum(1) for kind in range(4)], 1)
    return EditAlignment(steps.astype(np.uint8), n_steps, counts)


@edit_alignment.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _edits.example(random, given)
