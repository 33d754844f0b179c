# SPDX-License-Identifier: Apache-2.0
"""edit_distance and its like: what others say, what is true of any distance, and the edges."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from nativeops import NativeOpsError, edit_alignment, edit_distance, pairwise_edit_distance
from nativeops.errors import DtypeError
from nativeops.ops.edit_distance import normalized_edit_distance
from nativeops.testing import installed
from nativeops.testing.arrays import arrays_of
from nativeops.testing.aspects import levels, num_threads, selected
from nativeops.testing.marks import missing, tuned, without_sanitizer

LARGEST = 2**31 - 1


def labels(random, batch, length, kinds, dtype="int32"):
    return random.integers(0, kinds, (batch, length)).astype(dtype)


def lengths(random, x):
    return random.integers(0, x.shape[1] + 1, len(x)).astype(np.int32)


def alike(random, a, width, kinds):
    """Sequences with much of `a` in them, moved, and some labels changed."""
    b = labels(random, len(a), width, kinds, a.dtype)
    same = min(width, a.shape[1])
    b[:, :same] = np.roll(a, random.integers(0, 4), 1)[:, :same]
    changed = random.random(b.shape) < 0.1
    b[changed] = random.integers(0, kinds, changed.sum())
    return b


def rapidfuzz(a, b, a_len, b_len):
    parts = zip(a, b, a_len, b_len, strict=True)
    pairs = ((x[:n].tolist(), y[:m].tolist()) for x, y, n, m in parts)
    return np.array([Levenshtein.distance(x, y) for x, y in pairs])


# Around the widths of words (64 labels), of a group (4 or 8 pairs), of short patterns (256), of
# vectors in a chain (256 or 512 labels) and of its blocks of columns; few
# and many labels.
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    ("batch", "ta", "tb", "kinds"),
    [
        (17, 5, 7, 2),
        (9, 63, 66, 3),
        (8, 64, 64, 300),
        (3, 65, 200, 70_000),
        (10, 128, 193, 30),
        (1, 256, 256, LARGEST),
        (5, 257, 257, 30),
        (4, 300, 1100, 5),
        (19, 512, 390, 6),
        (9, 400, 513, 20_000),
        (2, 1500, 600, 400),
        (9, 440, 430, 6),  # groups of seven words
        *((1, ta, tb, 3) for ta in (1100, 2300) for tb in (1151, 1152, 1153)),
    ],
)
def test_agrees_with_rapidfuzz(level: str, batch: int, ta: int, tb: int, kinds: int) -> None:
    random = np.random.default_rng(ta)
    a = labels(random, batch, ta, kinds)
    for b in (labels(random, batch, tb, kinds), alike(random, a, tb, kinds)):
        whole = np.full(batch, ta, np.int32), np.full(batch, tb, np.int32)
        for n, m in (whole, (lengths(random, a), lengths(random, b))):
            expected = rapidfuzz(a, b, n, m)
            with selected(level):
                assert np.array_equal(edit_distance(a, b, n, m), expected)
                for limit in (0, 1, 5, 40):
                    found = edit_distance(a, b, n, m, max_distance=limit)
                    assert np.array_equal(found, np.minimum(expected, limit + 1)), limit


@tuned
def test_chain_of_several_bands_agrees_with_rapidfuzz() -> None:
    random = np.random.default_rng(0)
    a = labels(random, 3, 4700, 5000)
    b = alike(random, a, 4300, 5000)
    n, m = np.array([4700, 2048, 4097], np.int32), np.array([4300, 4300, 2100], np.int32)
    expected = rapidfuzz(a, b, n, m)
    for level in levels()[1:]:
        for threads in (1, 2, 3):
            with selected(level), num_threads(threads):
                assert np.array_equal(edit_distance(a, b, n, m), expected)


@tuned
@pytest.mark.parametrize("limit", [0, 1, 20, 63, 64, 65, 100, 512, 900, 2500])
def test_bands_of_a_long_pair_agree_with_rapidfuzz(limit: int) -> None:
    random = np.random.default_rng(limit)
    a = labels(random, 1, 4500, 40).repeat(6, 0)
    b, m = a.copy(), np.full(6, 4500, np.int32)
    for row, edits in enumerate((0, limit // 2, limit, limit + 1, 3 * limit, 4000)):
        kept = np.delete(b[row], random.choice(4500, edits // 2, replace=False))
        added = np.insert(kept, random.choice(len(kept), edits - edits // 2), 77)[:4500]
        b[row, : len(added)], m[row] = added, len(added)
    expected = np.minimum(rapidfuzz(a, b, [4500] * 6, m), limit + 1)
    for level in levels()[1:]:
        with selected(level):
            assert np.array_equal(edit_distance(a, b, b_len=m, max_distance=limit), expected)


@pytest.mark.parametrize("level", levels())
def test_pairs_of_any_lengths_within_a_limit_agree_with_rapidfuzz(level: str) -> None:
    random = np.random.default_rng(0)
    for most in (60, 150, 300, 520, 1500):
        a = labels(random, 11, most, 7, "int64")
        a[5:] *= 2**40  # numbers in their place
        b = alike(random, a, most + 13, 7)
        n, m = lengths(random, a), lengths(random, b)
        m = np.where(random.random(11) < 0.7, np.minimum(n + random.integers(0, 13), m), m)
        m = m.astype(np.int32)
        expected = rapidfuzz(a, b, n, m)
        for limit in (*range(0, 70, 9), most // 3, most):
            for few in (slice(0, 11), slice(4, 7)):
                with selected(level):
                    given = a[few], b[few], n[few], m[few]
                    found = edit_distance(*given, max_distance=limit)
                assert np.array_equal(found, np.minimum(expected[few], limit + 1)), (most, limit)


@pytest.mark.parametrize("level", levels())
def test_labels_of_64_bits_differ_in_any_bit(level: str) -> None:
    a = np.array([[0, 1 << 31, 1 << 32, -1, 1 << 62, -(1 << 63)] * 20])
    for bit in (0, 8, 16, 31, 32, 33, 62, 63):
        b = a ^ np.int64(1 << bit if bit < 63 else -(1 << 63))
        with selected(level):
            assert edit_distance(a, a) == [0]
            assert np.array_equal(edit_distance(a, b), rapidfuzz(a, b, [120], [120])), bit
            assert np.array_equal(pairwise_edit_distance(a, b)[0], rapidfuzz(a, b, [120], [120]))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    "value", [(1 << 8) - 1, 1 << 8, (1 << 16) - 1, 1 << 16, (1 << 32) - 1, 1 << 32]
)
def test_the_least_and_the_largest_label_of_a_code_differ(level: str, value: int) -> None:
    random = np.random.default_rng(0)
    a, b = value * labels(random, 3, 90, 2, "int64"), value * labels(random, 3, 70, 2, "int64")
    expected = rapidfuzz(a, b, [90] * 3, [70] * 3)
    long = np.zeros((1, 4500), np.int64)
    other = long.copy()
    other[0, [7, 2000]] = value
    with selected(level):
        assert np.array_equal(edit_distance(a, b), expected)
        assert np.array_equal(edit_alignment(a, b).counts[:, 1:].sum(1), expected)
        assert edit_distance(long, other, max_distance=5) == [2]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("value", [-(2**31), -1, 2**31 - 1])
def test_extreme_labels_of_32_bits_are_labels_as_any_other(level: str, value: int) -> None:
    a, b = np.array([[value, 0, 5]], np.int32), np.array([[value, 5]], np.int32)
    with selected(level):
        assert edit_distance(a, b) == [1]
        assert pairwise_edit_distance(a, b) == [[1]]


@pytest.mark.parametrize("level", levels())
def test_empty_equal_and_disjoint_sequences(level: str) -> None:
    a = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]])
    b = np.array([[4, 5, 6, 7], [1, 2, 3, 9], [9, 9, 9, 9], [1, 2, 3, 4]])
    n, m = np.array([3, 3, 3, 0], np.int32), np.array([4, 3, 0, 0], np.int32)
    with selected(level):
        assert edit_distance(a, b, n, m).tolist() == [4, 0, 3, 0]
        found = edit_distance(a, b, n, m, normalize=True)
        assert found.dtype == np.float32
        assert found.tolist() == [1, 0, np.inf, 0]
        assert edit_distance(a[:, :0], b, b_len=m).tolist() == [4, 3, 0, 0]
        assert edit_distance(a[:0], b[:0]).shape == (0,)
        assert pairwise_edit_distance(a[:2], b[:0]).shape == (2, 0)
        assert pairwise_edit_distance(a[:2, :0], b[:3]).tolist() == [[4] * 3] * 2


def test_kitten_and_sitting() -> None:
    a, b = (np.array([[ord(c) for c in word]]) for word in ("kitten", "sitting"))
    assert edit_distance(a, b) == [3]
    assert edit_distance(a, b, normalize=True) == [np.float32(3 / 7)]
    assert edit_distance(a, b, normalize=False, max_distance=1) == [2]
    assert normalized_edit_distance(a, b, max_distance=1) == [np.float32(2 / 7)]


@pytest.mark.parametrize("level", levels())
def test_is_a_metric(level: str) -> None:
    random = np.random.default_rng(1)
    x = labels(random, 12, 90, 3)
    n = lengths(random, x)
    with selected(level):
        d = pairwise_edit_distance(x, x, n, n)
    assert not d.diagonal().any()
    assert np.array_equal(d, d.T)
    assert (d[:, None] <= d[:, :, None] + d[None].swapaxes(1, 2)).all(), "the triangle inequality"
    assert (d >= abs(n[:, None] - n)).all()


# Too few to fill a vector, one vector, more, and more texts than a task has; patterns of one word
# to four and of more.
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    ("n", "m", "ta", "tb", "kinds"),
    [
        (40, 33, 50, 60, 30),
        (9, 5, 130, 70, 70_000),
        (5, 3, 190, 300, 4),
        (3, 4, 300, 280, 9),
        (1, 40, 50, 60, 30),
        (40, 1, 60, 50, 30),
        (9, 12, 64, 20, 2),
        (150, 70, 40, 64, 300),
        (70, 300, 60, 9, 30),
        (12, 100, 130, 120, 5),
        (33, 20, 150, 190, 5),
        (20, 40, 256, 250, 30),
    ],
)
def test_all_pairs_agree_with_rapidfuzz(level, n, m, ta, tb, kinds) -> None:
    random = np.random.default_rng(n)
    a, b = labels(random, n, ta, kinds, "int64"), labels(random, m, tb, kinds, "int64")
    a_len, b_len = lengths(random, a), lengths(random, b)
    lists = [x[:k].tolist() for x, k in zip(a, a_len, strict=True)]
    others = [x[:k].tolist() for x, k in zip(b, b_len, strict=True)]
    expected = process.cdist(lists, others, scorer=Levenshtein.distance)
    for threads in (1, 2, 3):
        with selected(level), num_threads(threads):
            assert np.array_equal(pairwise_edit_distance(a, b, a_len, b_len), expected)
            found = pairwise_edit_distance(a, b, a_len, b_len, max_distance=20)
            assert np.array_equal(found, np.minimum(expected, 21))
            turned = pairwise_edit_distance(a[:, ::-1], b[:, ::-1])  # steps backwards
            assert np.array_equal(turned, pairwise_edit_distance(a, b))


@pytest.mark.parametrize("level", levels())
def test_distance_grows_with_no_label_in_common(level: str) -> None:
    a, b = np.zeros((1, 700), np.int32), np.ones((1, 900), np.int32)
    with selected(level):
        for n, m in [(0, 900), (700, 0), (64, 64), (256, 257), (700, 900)]:
            found = edit_distance(a, b, np.array([n], np.int32), np.array([m], np.int32))
            assert found == [max(n, m)]


@pytest.mark.parametrize("op", [edit_distance, normalized_edit_distance, pairwise_edit_distance])
@pytest.mark.parametrize("bad", [-1, 4])
def test_length_that_is_none_is_refused(op, bad: int) -> None:
    a, b = np.zeros((2, 3), np.int32), np.zeros((2, 5), np.int32)
    with pytest.raises(NativeOpsError) as raised:
        op(a, b, np.array([3, bad], np.int32))
    text = f"{op.name}: `a_len[1]` is {bad}, but must be from 0 to 3, the size of `a` along `ta`."
    assert str(raised.value) == text
    with pytest.raises(NativeOpsError, match=r"`b_len\[0\]` is 6, but must be from 0 to 5"):
        op(a, b, b_len=np.array([6, 0], np.int32))


@pytest.mark.parametrize(
    ("framework", "compiled"),
    [("numpy", False), *itertools.product(["torch", "jax", "tensorflow"], [False, True])],
)
def test_normalize_and_wrong_lengths_in_any_framework(framework: str, compiled: bool) -> None:
    if not installed(framework):
        missing(framework, f"install it with `pip install {framework}`")
    arrays = arrays_of(framework, "cpu")
    given = np.array([[1, 2, 3, 4]]), np.array([[1, 3]]), np.array([3]), np.array([2])
    placed = [arrays.place(x, "int32").array for x in given]
    wrong = arrays.place(np.array([5]), "int32").array

    def normalized(a, b, a_len, b_len):
        return edit_distance(a, b, a_len, b_len, normalize=True)

    call = arrays.compiled(normalized) if compiled else normalized
    assert arrays.values(call(*placed)).tolist() == [0.5]
    with pytest.raises(
        Exception, match=r"`a_len\[0\]` is 5, but must be from 0 to 4, the size of `a`"
    ):
        np.asarray(call(placed[0], placed[1], wrong, placed[3]))


def test_has_no_gradient_and_says_so() -> None:
    torch = pytest.importorskip("torch")
    assert not edit_distance(torch.zeros(1, 2, dtype=torch.int32),
                             torch.ones(1, 2, dtype=torch.int32)).requires_grad  # fmt: skip
    with pytest.raises(NativeOpsError, match="`a` must be int32 or int64, but is float32"):
        edit_distance(torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2))


@tuned
def test_hundred_thousand_labels_that_are_almost_the_same() -> None:
    a = np.arange(100_000, dtype=np.int32)[None]
    b = np.delete(a, [5, 70_000], 1)
    b[0, 50_000] = -1
    assert edit_distance(a, b, max_distance=10) == [3]


# In a process of its own, since a maximum over the life of a process cannot be reset.
PEAK = """
import numpy as np
from nativeops.ops.edit_distance import edit_distance
from nativeops.bench.memory import peak
a = np.random.default_rng(0).permutation(60_000).astype(np.int32)[None]
edit_distance(a[:, :9], a[:, :9])
before = peak()
assert edit_distance(a, a[:, ::-1][:, :3000]) >= 57_000
print(peak() - before)
"""


LABELS = """
import numpy as np
import nativeops
from nativeops.bench.memory import peak
a = np.random.default_rng(0).permutation(300_000)[None]
nativeops.set_num_threads(2)
nativeops.edit_distance(a[:, :9], a[:, :9])
before = peak()
assert nativeops.edit_distance(a, np.roll(a, 7)) == 14
nativeops.edit_distance(a, a[:, ::-1])
print(peak() - before)
"""


@tuned
@without_sanitizer
@pytest.mark.parametrize(
    ("program", "most"), [(PEAK, 500 * 60_000), (LABELS, 200 * 300_000)], ids=["long", "labels"]
)
def test_memory_is_linear_in_the_length(program: str, most: int) -> None:
    """In bytes, of a table of 180 million entries, and of 300000 labels in all bands of a table."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= most


@pytest.mark.parametrize("level", levels())
def test_longer_sequences_than_distances_can_tell_are_refused(level: str) -> None:
    long, empty = np.broadcast_to(np.int32(0), (1, 2**31 + 5)), np.zeros((1, 0), np.int32)
    with selected(level):
        for given in ((long, empty), (empty, long)):
            with pytest.raises(NativeOpsError, match=r"2147483653 labels .* at most 1073741823"):
                edit_distance(*given)
        assert edit_distance(long, empty, a_len=np.array([7], "int32")).tolist() == [7]
        with pytest.raises(NativeOpsError, match=r"`a_len\[0\]` is 1073741824"):
            edit_distance(long, empty, a_len=np.array([2**30], "int32"))


@pytest.mark.parametrize("kind", ["U", "S"])
def test_words_are_to_be_numbered_and_not_converted(kind: str) -> None:
    words = np.array([["the", "cat"]], kind)
    with pytest.raises(DtypeError, match="hint: number the texts in `a`, equal ones by the same"):
        edit_distance(words, words)
