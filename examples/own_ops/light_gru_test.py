# SPDX-License-Identifier: Apache-2.0
"""light_gru: what its declaration says, in every framework, and what others say."""

import numpy as np
import pytest

from nativeops.checking import ops_beside
from nativeops.testing import check

OPS = ops_beside(__file__)
light_gru = OPS["light_gru"]


# Values against the reference, gradients, strides, sizes, dtypes, threads, wrong arguments.
@pytest.mark.parametrize("name", OPS)
def test_op_is_what_its_declaration_says(name: str) -> None:
    assert check(OPS[name])


def by_steps(sums, w_hh, h, lengths):  # type: ignore[no-untyped-def]
    import torch

    outputs = []
    for t, given in enumerate(sums):
        u_a, u_z = (given + h @ w_hh.T).chunk(2, -1)
        z, inside = torch.sigmoid(u_z), (t < lengths)[:, None]
        h = torch.where(inside, z * h + (1 - z) * torch.relu(u_a), h)
        outputs.append(torch.where(inside, h, 0))
    return torch.stack(outputs), h


@pytest.mark.parametrize("units", [1, 33, 200])
def test_agrees_with_torch_step_by_step_and_its_gradient(units: int) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(units)
    sizes = (30, 5, 2 * units), (2 * units, units), (5, units)
    given = [torch.randn(s, dtype=torch.float64) / s[-1] ** 0.5 for s in sizes]
    given = [each.requires_grad_() for each in given]
    lengths = torch.tensor([30, 0, 7, 1, 30], dtype=torch.int32)
    ours, theirs = light_gru(*given, lengths)[:2], by_steps(*given, lengths)
    flowing = [torch.randn_like(each) for each in theirs]
    for mine, expected in zip(
        [*ours, *torch.autograd.grad(ours, given, flowing)],
        [*theirs, *torch.autograd.grad(theirs, given, flowing)],
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-13)


def test_steps_one_by_one_are_those_of_one_call() -> None:
    random = np.random.default_rng(0)
    sums, w_hh = random.standard_normal((20, 3, 64)), random.standard_normal((64, 32)) / 32
    whole, h = light_gru(sums, w_hh), None
    for t in range(20):
        step = light_gru(sums[t : t + 1], w_hh, h)
        h = step.h_n
        np.testing.assert_allclose(step.output[0], whole.output[t], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(h, whole.h_n, rtol=1e-12, atol=1e-14)


def test_what_is_beyond_the_end_takes_no_part() -> None:
    random = np.random.default_rng(1)
    sums, w_hh = random.standard_normal((9, 2, 8)), random.standard_normal((8, 4))
    lengths = np.array([9, 4], np.int32)
    expected = light_gru(sums, w_hh, lengths=lengths)
    sums[4:, 1] = np.nan
    found = light_gru(sums, w_hh, lengths=lengths)
    assert np.array_equal(found.output, expected.output)
    assert np.array_equal(found.h_n, expected.h_n)
    assert not found.output[4:, 1].any()
