# SPDX-License-Identifier: Apache-2.0
"""bias_gelu: what its declaration says, in every framework, and what others say."""

import numpy as np
import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check

OPS = ops_beside(__file__)
bias_gelu = OPS["bias_gelu"]


# Values against the reference, gradients, strides, sizes, dtypes, threads, wrong arguments.
@pytest.mark.parametrize("name", OPS)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name])


def test_agrees_with_torch_and_its_gradient() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(70, 300, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(300, dtype=torch.float64, requires_grad=True)
    d_out = torch.randn(70, 300, dtype=torch.float64)
    ours, theirs = bias_gelu(x, bias), torch.nn.functional.gelu(x + bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)
    for mine, expected in zip(
        torch.autograd.grad(ours, (x, bias), d_out),
        torch.autograd.grad(theirs, (x, bias), d_out),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-13, atol=1e-13)


def test_large_numbers_pass_or_vanish() -> None:
    x, bias = np.array([40.0, -40.0, 1e30, -1e30]), np.zeros(4)
    assert bias_gelu(x, bias).tolist() == [40.0, 0.0, 1e30, 0.0]
