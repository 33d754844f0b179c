# SPDX-License-Identifier: Apache-2.0
"""RETURNN's chunking for PyTorch: names, orders of arguments, masks that are numbers."""

import numpy as np
import pytest

from nativeops.compat import returnn
from nativeops.errors import ArgumentError, DtypeError, ShapeError

torch = pytest.importorskip("torch")


def test_sizes_that_are_no_integers_are_refused() -> None:
    x, index = torch.randn(7, 2, 3), torch.ones(7, 2)
    with pytest.raises(DtypeError, match=r"chunk: `chunk_size` must be an integer, but is 2.5"):
        returnn.chunk(x, index, 2.5, 2)
    with pytest.raises(DtypeError, match=r"unchunk: `n_batch` must be an integer, but is 1.5"):
        returnn.unchunk(*returnn.chunk(x, index, 4, 2), 4, 2, 7, 1.5)


def test_masks_of_numbers_go_in_and_come_out() -> None:
    x, index = torch.randn(7, 2, 3), torch.ones(7, 2)
    index[5:, 1] = 0
    out, oindex = returnn.chunk(x, index, 4, 2)
    assert out.shape == (4, 2 * 3, 3)
    assert oindex.dtype == torch.float32
    assert oindex[:, 5].tolist() == [1, 0, 0, 0], "frame 4 of sequence 1, and its end"
    assert torch.equal(out[0, 5], x[4, 1])
    frames, mask, factors = returnn.unchunk(out, oindex, 4, 2, 7, 2)
    torch.testing.assert_close(frames, x * index[..., None])
    assert torch.equal(mask, index)
    assert factors[:, 0].tolist() == [1, 1, 0.5, 0.5, 0.5, 0.5, 1]
    assert factors[5:, 1].tolist() == [1, 1], "as where there is nothing to divide"


def test_gradients_pass_both() -> None:
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    index = (torch.rand(7, 2) < 0.7).double()

    def there_and_back(x):
        out, oindex = returnn.chunk(x, index, 4, 2)
        return returnn.unchunk(out**2, oindex, 4, 2, 7, 2)[0]

    assert torch.autograd.gradcheck(there_and_back, x)


def test_arrays_of_numpy_stay_such() -> None:
    x, index = np.ones((7, 2, 3)), np.ones((7, 2), np.float32)
    out, oindex = returnn.chunk(x, index, 4, 2)
    assert oindex.dtype == np.float32
    frames, mask, _ = returnn.unchunk(out, oindex, 4, 2, 7, 2)
    np.testing.assert_array_equal(frames, x)
    np.testing.assert_array_equal(mask, index)


def test_an_index_that_is_empty_or_a_list_is_refused() -> None:
    x = torch.zeros(5, 2, 3)
    for call in (lambda index: returnn.chunk(x, index, 5, 2),
                 lambda index: returnn.unchunk(x, index, 5, 2, 5, 2)):  # fmt: skip
        with pytest.raises(ShapeError, match=r"chunk: axis `t` is 5 in `x` but 0 in `index`"):
            call(torch.ones(0, 0))
        with pytest.raises(ArgumentError, match=r"`index` must be an array \[t, b\], but is list"):
            call([[1, 1]] * 5)


def test_another_chunk_size_than_that_of_the_chunks_is_refused() -> None:
    with pytest.raises(ShapeError, match="`chunk_size` is 5, but axis 0 of `x` is 4"):
        returnn.unchunk(torch.zeros(4, 6, 3), torch.ones(4, 6), 5, 2, 7, 2)
