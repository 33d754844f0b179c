# SPDX-License-Identifier: Apache-2.0
"""two_layers: what its declaration says, in every framework, and what PyTorch says."""

import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check

OPS = ops_beside(__file__)
two_layers = OPS["two_layers"]


# Values against the reference, gradients, strides, sizes, dtypes, threads, wrong arguments.
@pytest.mark.parametrize("name", OPS)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name])


def test_agrees_with_torchs_layers_and_their_gradients() -> None:
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(
        torch.nn.Linear(70, 130), torch.nn.ReLU(), torch.nn.Linear(130, 33)
    ).double()
    x = torch.randn(101, 70, dtype=torch.float64, requires_grad=True)
    given = (x, *layers.parameters())
    d_out = torch.randn(101, 33, dtype=torch.float64)
    ours, theirs = two_layers(*given).y, layers(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, expected in zip(
        torch.autograd.grad(ours, given, d_out),
        torch.autograd.grad(theirs, given, d_out),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-11)
