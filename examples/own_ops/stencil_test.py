# SPDX-License-Identifier: Apache-2.0
"""stencil: what its declaration says, in every framework, and what others say."""

import numpy as np
import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check

OPS = ops_beside(__file__)
stencil = OPS["stencil"]


# Values against the reference, gradients, strides, sizes, dtypes, threads, wrong arguments.
@pytest.mark.parametrize("name", OPS)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name])


def test_agrees_with_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    x = np.random.default_rng(0).standard_normal((67, 130))
    weights = np.array([[0, 0.2, 0], [0.2, 1 - 4 * 0.2, 0.2], [0, 0.2, 0]])
    expected = ndimage.convolve(x, weights, mode="constant")
    np.testing.assert_allclose(stencil(x, rate=0.2), expected, rtol=1e-13, atol=1e-14)


def test_gradient_agrees_with_that_of_torchs_convolution() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 40, 50, dtype=torch.float64, requires_grad=True)
    weights = x.new_tensor([[0, 0.25, 0], [0.25, 0, 0.25], [0, 0.25, 0]])[None, None]
    theirs = torch.nn.functional.conv2d(x[:, None], weights, padding=1)[:, 0]
    d_out = torch.randn(3, 40, 50, dtype=torch.float64)
    (mine,) = torch.autograd.grad(stencil(x), x, d_out)
    torch.testing.assert_close(mine, torch.autograd.grad(theirs, x, d_out)[0])


def test_only_the_border_loses_anything() -> None:
    x = np.zeros((70, 70))
    x[1:-1, 1:-1] = np.random.default_rng(0).integers(0, 9, (68, 68)) * 4.0
    assert stencil(x).sum() == x.sum()
