# SPDX-License-Identifier: Apache-2.0
"""layer_norm: what its declaration says, in every framework, and what others say."""

import numpy as np
import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check

OPS = ops_beside(__file__)
layer_norm = OPS["layer_norm"]


# Values against the reference, gradients, strides, sizes, dtypes, threads, wrong arguments.
@pytest.mark.parametrize("name", OPS)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name])


def test_agrees_with_torch_and_its_gradient() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(70, 300, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(300, dtype=torch.float64, requires_grad=True) for _ in range(2))
    d_out = torch.randn(70, 300, dtype=torch.float64)
    ours = layer_norm(x, weight, bias).y
    theirs = torch.nn.functional.layer_norm(x, [300], weight, bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    for mine, expected in zip(
        torch.autograd.grad(ours, (x, weight, bias), d_out),
        torch.autograd.grad(theirs, (x, weight, bias), d_out),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_a_large_mean_does_not_cancel() -> None:
    x = np.float32([[10000.0, 10001.0, 10002.0, 10003.0]])
    found = layer_norm(x, np.ones(4, np.float32), np.zeros(4, np.float32), eps=1e-12).y
    np.testing.assert_allclose(found[0], np.array([-3, -1, 1, 3]) / np.sqrt(5), rtol=1e-6)
