# SPDX-License-Identifier: Apache-2.0
"""rnnt_loss and PyTorch's RNNTLoss: reductions, lists and frameworks."""

import numpy as np
import pytest

import nativeops
from nativeops.errors import RangeError
from nativeops.ops.rnnt_loss_test import brute_force, draw


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_reductions_and_lists_in_every_framework(framework) -> None:
    module = pytest.importorskip({"jax": "jax.numpy"}.get(framework, framework))
    x, y, _, _ = draw(2, 4, 2, 5, dtype="float32")
    make = getattr(module, "asarray", None) or module.constant
    each = [
        brute_force(x[0], y[0], 4, "rnnt")[0],
        brute_force(x[1, :3, :2], y[1, :1], 4, "rnnt")[0],
    ]
    for reduction, expected in (("none", each), ("sum", sum(each)), ("mean", sum(each) / 2)):
        found = nativeops.rnnt_loss(make(x), make(y), [4, 3], [2, 1], reduction=reduction)
        assert type(found) is type(make(x)) or np.ndim(found) == 0
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


def test_unknown_reduction_is_refused() -> None:
    with pytest.raises(RangeError, match=r"must be one of \['none', 'sum', 'mean'\], but is 'avg'"):
        nativeops.rnnt_loss(*draw(1, 2, 1, 3), reduction="avg")


def test_module_has_torchaudios_arguments() -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import RNNTLoss

    given = draw(2, 5, 3, 6, dtype="float32")
    x, y, t_len, u_len = map(torch.from_numpy, given)
    x.requires_grad_()
    loss = RNNTLoss(blank=-1, clamp=-1, reduction="mean", fused_log_softmax=True)
    value = loss(x, y, t_len, u_len)
    (gradient,) = torch.autograd.grad(value, x)
    each = [brute_force(given[0][b], given[1][b], 5, "rnnt") for b in (0, 1)]
    assert value.item() == pytest.approx(np.mean([cost for cost, _ in each]), rel=1e-6)
    np.testing.assert_allclose(gradient, np.stack([d for _, d in each]) / 2, atol=1e-7)
    apart = RNNTLoss(fused_log_softmax=False)(x.log_softmax(-1), y, t_len, u_len)
    torch.testing.assert_close(apart, value)
    assert RNNTLoss(reduction="none", clamp=0.1)(x, y, t_len, u_len).shape == (2,)
    rna = RNNTLoss(topology="rna", reduction="sum")
    assert str(rna) == "RNNTLoss(blank=-1, reduction='sum', topology='rna')"
    expected = sum(brute_force(given[0][b], given[1][b], 5, "rna")[0] for b in (0, 1))
    assert rna(x, y, t_len, u_len).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_module_compiles_and_takes_int64_and_half_precision() -> None:
    torch = pytest.importorskip("torch")
    from nativeops.layers.torch import RNNTLoss

    x, y, t_len, u_len = map(torch.from_numpy, draw(2, 5, 3, 6, dtype="float32"))
    loss, compiled = RNNTLoss(), torch.compile(RNNTLoss(), fullgraph=True)
    torch.testing.assert_close(compiled(x, y, t_len, u_len), loss(x, y, t_len, u_len))
    torch.testing.assert_close(
        loss(x, y.long(), t_len.long(), u_len.long()), loss(x, y, t_len, u_len)
    )
    half = loss(x.bfloat16(), y, t_len, u_len)
    torch.testing.assert_close(half.float(), loss(x, y, t_len, u_len), rtol=2e-2, atol=0)
    with torch.autocast("cpu"):
        assert loss(x.bfloat16(), y, t_len, u_len).dtype == torch.float32


def test_gradients_of_all_frameworks_are_one() -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    tf = pytest.importorskip("tensorflow")
    x, *rest = draw(2, 5, 3, 6, dtype="float32")
    of_jax = jax.jit(jax.grad(nativeops.rnnt_loss))(x, *rest)
    tensor = torch.from_numpy(x).requires_grad_()
    nativeops.rnnt_loss(tensor, *map(torch.from_numpy, rest)).backward()
    variable = tf.Variable(x)
    with tf.GradientTape() as tape:
        loss = nativeops.rnnt_loss(variable.value(), *map(tf.constant, rest))
    np.testing.assert_array_equal(of_jax, tensor.grad)
    np.testing.assert_array_equal(tape.gradient(loss, variable), tensor.grad)
