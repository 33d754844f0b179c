# SPDX-License-Identifier: Apache-2.0
"""edit_alignment and error_rate: alignments are best ones, ties are as stated, sums are right."""

import subprocess
import sys

import jiwer
import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein

from nativeops import ErrorRate, NativeOpsError, edit_alignment, edit_distance, error_rate
from nativeops.testing.aspects import levels, num_threads, selected
from nativeops.testing.marks import tuned, without_sanitizer


def drawn(batch: int, ta: int, tb: int, kinds: int, dtype: str = "int64"):
    random = np.random.default_rng(ta)
    a = random.integers(0, kinds, (batch, ta)).astype(dtype)
    b = random.integers(0, kinds, (batch, tb)).astype(dtype)
    b[:, : min(ta, tb) // 2] = a[:, : min(ta, tb) // 2]
    n = random.integers(0, ta + 1, batch).astype(np.int32)
    m = random.integers(0, tb + 1, batch).astype(np.int32)
    return a, b, n, m


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    ("batch", "ta", "tb", "kinds"),
    [(12, 6, 9, 2), (5, 64, 64, 4), (7, 130, 65, 1 << 40), (4, 63, 200, 3), (3, 257, 129, 9)],
)
def test_agrees_with_the_definition_for_any_threads(level, batch, ta, tb, kinds) -> None:
    given = drawn(batch, ta, tb, kinds)
    expected = edit_alignment.reference(*given)
    for threads in (1, 2, 3):
        with selected(level), num_threads(threads):
            for found, right in zip(edit_alignment(*given), expected, strict=True):
                assert np.array_equal(found, right)


@pytest.mark.parametrize("level", levels())
def test_steps_rebuild_one_sequence_from_the_other_with_fewest_edits(level: str) -> None:
    a, b, n, m = drawn(9, 1500, 1200, 20, "int32")
    with selected(level):
        made = edit_alignment(a, b, n, m)
        distance = edit_distance(a, b, n, m)
    assert np.array_equal(made.counts[:, 1:].sum(1), distance)
    assert np.array_equal(made.counts.sum(1), made.n_steps)
    for item in range(9):
        steps = made.steps[item, : made.n_steps[item]]
        assert (made.steps[item, made.n_steps[item] :] == 255).all()
        i, j = np.cumsum(steps != 3) - 1, np.cumsum(steps != 2) - 1
        assert (i[-1] + 1, j[-1] + 1) == (n[item], m[item])
        same = a[item, i] == b[item, j]
        assert same[steps == 0].all()
        assert not same[steps == 1].any()


def test_number_of_edits_of_each_kind_is_that_of_rapidfuzz_where_it_is_certain() -> None:
    a, b, n, m = drawn(30, 40, 30, 5)
    counts = edit_alignment.only(["counts"])(a, b, n, m).counts
    for x, y, i, j, own in zip(a, b, n, m, counts, strict=True):
        edits = Levenshtein.editops(y[:j].tolist(), x[:i].tolist())
        assert len(edits) == own[1:].sum()
        kinds = [edit.tag for edit in edits]
        assert kinds.count("insert") - kinds.count("delete") == own[2] - own[3]


@pytest.mark.parametrize("level", levels())
def test_ties_are_broken_as_stated(level: str) -> None:
    def steps(a: list[int], b: list[int]) -> list[int]:
        with selected(level):
            made = edit_alignment(np.array([a], np.int32), np.array([b], np.int32))
        return made.steps[0, : made.n_steps[0]].tolist()

    assert steps([1, 1], [1]) == [2, 0], "the last of both is the match"
    assert steps([1], [1, 1]) == [3, 0]
    assert steps([1, 2], [2, 1]) == [1, 1], "not an insertion, a match and a deletion"
    assert steps([1, 2, 3], [2, 3, 4]) == [2, 0, 0, 3]
    assert steps([], [5, 5]) == [3, 3]
    assert steps([5, 5], []) == [2, 2]


def test_error_rate_is_that_of_jiwer() -> None:
    random = np.random.default_rng(5)
    words = np.array(["a", "bird", "can", "do", "everything"])
    a, b, n, m = drawn(50, 12, 12, 5)
    m = np.maximum(m, 1)  # which jiwer wants
    said = [" ".join(words[x[:i]]) for x, i in zip(a, n, strict=True)]
    meant = [" ".join(words[y[:j]]) for y, j in zip(b, m, strict=True)]
    theirs, own = jiwer.process_words(meant, said), error_rate(a, b, n, m)
    assert own.rate == pytest.approx(theirs.wer)
    assert own.errors == theirs.substitutions + theirs.insertions + theirs.deletions
    assert own.insertions - own.deletions == theirs.insertions - theirs.deletions
    assert own.reference_labels == m.sum()
    parts = [error_rate(a[k : k + 9], b[k : k + 9], n[k : k + 9], m[k : k + 9])
             for k in random.permutation(range(0, 50, 9))]  # fmt: skip
    assert sum(parts, ErrorRate()) == sum(parts) == own
    for other in (1, None):
        with pytest.raises(TypeError, match="unsupported operand"):
            own + other


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_error_rate_of_any_framework(framework: str) -> None:
    arrays = [np.array([[1, 2, 3]], np.int32), np.array([[1, 4]], np.int32)]
    if framework != "numpy":
        pytest.importorskip(framework)
        from nativeops.testing.arrays import arrays_of

        arrays = [arrays_of(framework, "cpu").place(x, "int32").array for x in arrays]
    found = error_rate(*arrays)
    assert found == ErrorRate(1, 1, 1, 0, sequences=1, wrong_sequences=1)
    assert str(found) == "100.00% [ 2 / 2, 1 ins, 0 del, 1 sub ]"
    assert (found.rate, found.sequence_rate) == (1.0, 1.0)


def test_error_rate_without_references() -> None:
    none = np.zeros((2, 0), np.int32)
    assert error_rate(none, none).rate == 0
    assert error_rate(none + 1, none).sequence_rate == 0
    assert error_rate(np.ones((2, 1), np.int32), none).rate == float("inf")
    assert error_rate(none[:0], none[:0]) == ErrorRate()


def test_length_that_is_none_is_refused() -> None:
    a = np.zeros((2, 3), np.int32)
    with pytest.raises(NativeOpsError, match=r"`b_len\[1\]` is 4, but must be from 0 to 3"):
        edit_alignment(a, a, b_len=np.array([0, 4], np.int32))


# In a process of its own, since a maximum over the life of a process cannot be reset.
PEAK = """
import numpy as np
from nativeops.ops.edit_alignment import edit_alignment
from nativeops.bench.memory import peak
a = np.arange(20_000, dtype=np.int32)[None]
b = np.delete(a, [3, 15_000], 1)
b[0, 9_000] = -1
edit_alignment(a[:, :9], b[:, :9])
before = peak()
assert edit_alignment(a, b).counts.tolist() == [[19_997, 1, 2, 0]]
print(peak() - before)
"""


@tuned
@without_sanitizer
def test_alignment_of_a_long_pair_takes_no_table() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 10 << 20, "two bits for each entry of the table would be 100 MB"


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_error_rate_says_that_it_counts_in_python(framework: str) -> None:
    module = pytest.importorskip(framework)
    if framework == "torch":
        program = module.func.vmap(lambda a: error_rate(a, a).errors)
        labels = module.ones((2, 3, 4), dtype=module.int32)
    else:
        program = (module.jit if framework == "jax" else module.function)(
            lambda a: error_rate(a, a).errors
        )
        labels = np.ones((3, 4), np.int32)
        labels = module.numpy.asarray(labels) if framework == "jax" else module.constant(labels)
    with pytest.raises(NativeOpsError, match="error_rate: counts in Python"):
        program(labels)


def test_errors_of_error_rate_name_it() -> None:
    labels = np.ones((2, 3), np.int32)
    with pytest.raises(NativeOpsError, match=r"^error_rate: axis `batch` is 2 in `a` but 3 in `b`"):
        error_rate(labels, np.ones((3, 3), np.int32))
    with pytest.raises(NativeOpsError, match=r"^error_rate: `a_len\[1\]` is 4"):
        error_rate(labels, labels, np.array([3, 4], np.int32))
