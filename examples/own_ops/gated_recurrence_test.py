# SPDX-License-Identifier: Apache-2.0
"""gated_recurrence: what its declaration says, in every framework, and what others say."""

import numpy as np
import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check

OPS = ops_beside(__file__)
gated_recurrence = OPS["gated_recurrence"]


# Values against the reference, gradients, strides, sizes, dtypes, threads, wrong arguments.
@pytest.mark.parametrize("name", OPS)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name])


def by_steps(x, f, h):  # type: ignore[no-untyped-def]
    states = []
    for t in range(x.shape[1]):
        h = f[:, t] * h + (1 - f[:, t]) * x[:, t]
        states.append(h)
    return states


def test_agrees_with_torch_step_by_step_and_its_gradient() -> None:
    torch = pytest.importorskip("torch")
    x, f = (torch.rand(3, 40, 300, dtype=torch.float64, requires_grad=True) for _ in range(2))
    h0 = torch.randn(3, 300, dtype=torch.float64, requires_grad=True)
    d_out = torch.randn(3, 40, 300, dtype=torch.float64)
    ours, theirs = gated_recurrence(x, f, h0), torch.stack(by_steps(x, f, h0), 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)
    for mine, expected in zip(
        torch.autograd.grad(ours, (x, f, h0), d_out),
        torch.autograd.grad(theirs, (x, f, h0), d_out),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-13)


def test_gates_of_one_keep_the_state_and_gates_of_zero_forget_it() -> None:
    x, h0 = np.random.default_rng(0).standard_normal((5, 7)), np.arange(7.0)
    assert np.array_equal(gated_recurrence(x, np.ones((5, 7)), h0), np.tile(h0, (5, 1)))
    assert np.array_equal(gated_recurrence(x, np.zeros((5, 7)), h0), x)
