# SPDX-License-Identifier: Apache-2.0
"""dropout: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import numpy as np
import pytest

from nativeops import dropout
from nativeops.errors import RangeError
from nativeops.ops.dropout import philox
from nativeops.testing.aspects import levels, selected

# Counter, key and words of philox4x32-10 in the file kat_vectors of the authors' library Random123.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
ONES = np.ones((20, 30, 50))


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def mask(seed: int, p: float = 0.5, stream: int = 0) -> np.ndarray:
    return dropout(ONES, np.array([seed]), p=p, stream=stream) != 0


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_bits_are_those_of_the_published_generator(counter: str, key: str, expected: str) -> None:
    found = philox(words(counter), words(key))  # type: ignore[arg-type]
    assert tuple(int(word) for word in found) == words(expected)


@pytest.mark.parametrize("seed", [0, 7, -1, 2**40 + 3, -(2**63)])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1 - 2**-40])
def test_mask_follows_from_bits_of_each_element(seed: int, p: float) -> None:
    index, key, stream = np.arange(ONES.size), seed % 2**64, 2**33 + 5
    counter = (index // 4, index >> 34, stream, stream >> 32)
    words = philox(counter, (key, key >> 32))
    bits = np.choose(index % 4, words).astype(np.float64)
    expected = bits >= np.floor(p * 2**32)
    assert np.array_equal(mask(seed, p, stream).ravel(), expected)


@pytest.mark.parametrize("k", [0, 1, 17])
def test_element_stays_whose_bits_are_the_probability(k: int) -> None:
    own = int(philox((k // 4, 0, 0, 0), (11, 0))[k % 4])
    for bits, stays in ((own, True), (own + 1, False)):
        found = dropout(np.ones((1, 1, 20)), np.array([11]), p=bits / 2**32)
        assert (found[0, 0, k] != 0) == stays


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropped_share_is_the_probability_and_the_mean_stays(p: float) -> None:
    dropped = 1 - mask(3, p).mean()
    assert abs(dropped - p) < 5 * np.sqrt(p * (1 - p) / ONES.size)
    x = np.full(ONES.shape, 2.5)
    assert abs(dropout(x, np.array([3]), p=p).mean() - 2.5) < 2.5 * 5 * np.sqrt(
        p / (1 - p) / ONES.size
    )


def test_seeds_streams_and_neighbours_are_independent() -> None:
    first = mask(3)
    for other in (mask(4), mask(3, stream=1), mask(2**32 + 3), np.roll(first.ravel(), 1)):
        equal = (first.ravel() == other.ravel()).mean()
        assert abs(equal - 0.5) < 5 * 0.5 / np.sqrt(ONES.size)


def test_mask_is_the_same_for_all_dtypes_and_layouts() -> None:
    expected = mask(9)
    for dtype in ("float32", "float16"):
        for integer in ("int32", "int64"):
            seed = np.array([9], integer)
            assert np.array_equal(dropout(ONES.astype(dtype), seed) != 0, expected)
    turned = np.ones((50, 20, 30)).transpose(1, 2, 0)
    assert np.array_equal(dropout(turned, np.array([9])) != 0, expected)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numbers_are_counted_on_whatever_the_shape(level: str, dtype: str) -> None:
    x = np.random.default_rng(2).standard_normal(12_300).astype(dtype)
    given = {"seed": np.array([9]), "p": 0.3, "stream": 4}
    expected = dropout.reference(x[None, None], **given)[0, 0]
    shapes = [(1, 1, n) for n in (0, 1, 3, 5, 4095, 4097, 8195)] + [(3, 41, 100), (7, 13, 17)]
    for shape in shapes:
        part = x[: np.prod(shape)].reshape(shape)
        with selected(level):
            for own in (part, np.asfortranarray(part)):
                found = dropout(own, **given).ravel()
                np.testing.assert_allclose(found, expected[: found.size], rtol=1e-3)
                assert np.array_equal(found == 0, expected[: found.size] == 0)


def test_negative_seed_is_the_same_in_both_integers() -> None:
    results = [dropout(ONES, np.array([-5], dtype)) for dtype in ("int32", "int64")]
    assert np.array_equal(*results)


def test_probability_of_none_and_of_all() -> None:
    x = np.array([[[np.nan, np.inf, -1.0, 0.25]]])
    assert np.array_equal(dropout(x, np.array([1]), p=0.0), x, equal_nan=True)
    assert np.array_equal(dropout(x, np.array([1]), p=1.0), np.zeros_like(x))


def test_dropped_nan_is_zero() -> None:
    result = dropout(np.full(ONES.shape, np.nan), np.array([9]))
    assert np.array_equal(np.isnan(result), mask(9))
    assert not result[~mask(9)].any()


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_probability_outside_its_range_is_explained(p: float) -> None:
    with pytest.raises(RangeError, match="`p` must be at least 0 and at most 1, but is"):
        dropout(ONES, np.array([1]), p=p)


def test_gradient_has_the_mask_of_the_forward_pass_and_is_differentiable() -> None:
    torch = pytest.importorskip("torch")
    x, seed = torch.randn(4, 3, 9, dtype=torch.float64, requires_grad=True), torch.tensor([11])
    (d_x,) = torch.autograd.grad(dropout(x, seed, p=0.3).sum(), x)
    assert torch.equal(d_x * x, dropout(x, seed, p=0.3))
    assert torch.autograd.gradcheck(lambda x: dropout(x, seed, p=0.3), x)
    assert torch.autograd.gradgradcheck(lambda x: dropout(x, seed, p=0.3).square(), x)
