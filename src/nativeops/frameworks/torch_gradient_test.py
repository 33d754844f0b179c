# SPDX-License-Identifier: Apache-2.0
"""Gradients of ops in eager PyTorch, and the derivatives that do not exist."""

import subprocess
import sys
from functools import wraps
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad, gradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from nativeops import (
    cross_entropy_softmax_and_gradient_sparse,
    pairwise_l1,
    pairwise_lp,
    rnn_layer,
)
from nativeops.errors import DtypeError, GradientError
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_torch import composed_l1, random

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
TWICE = "pairwise_l1_grad: has no gradient, so it cannot be differentiated twice"
FORWARD = r"pairwise_l1: has no forward-mode derivative \(jvp\)"


def leaves(*shapes, **options):
    return [random(*shape, **options).requires_grad_() for shape in shapes]


def gradients(op, arrays):
    return torch.autograd.grad(op(*arrays).sin().sum(), arrays)


class Record(TorchDispatchMode):
    """Keeps the calls of ops of this package."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "nativeops":
            self.calls.append((function.__name__, args))
        return function(*args, **(kwargs or {}))


def test_gradients_may_be_changed_in_place():
    """Also where the rule has one gradient for two inputs."""
    w_ih, w_hh, b_ih, b_hh = (random(*shape) for shape in ((4, 2), (4, 4), (4,), (4,)))
    weights = [w.requires_grad_() for w in (w_ih, w_hh, b_ih, b_hh)]
    output = rnn_layer(random(5, 3, 2), *weights).output
    found = torch.autograd.grad(output.sin().sum(), weights)
    expected = [one / 2 for one in found]
    torch._foreach_mul_(found, 0.5)
    assert_close(list(found), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradient_is_that_of_composed_torch(dtype, device):
    arrays = [a.detach().to(device, dtype).requires_grad_() for a in leaves((5, 7), (6, 7))]
    exact = [a.detach().double().requires_grad_() for a in arrays]
    ours = gradients(pairwise_l1, arrays)
    assert all(g.dtype == dtype for g in ours)
    bound = {} if dtype.itemsize > 2 else {"rtol": 0.02, "atol": 0.05}
    assert_close(ours, tuple(g.to(dtype) for g in gradients(composed_l1, exact)), **bound)


def test_gradient_reaches_leaves_through_other_functions():
    x, y = leaves((5, 7), (6, 7))
    pairwise_l1(x.exp(), y.cos()).sin().sum().backward()
    expected = torch.autograd.grad(composed_l1(x.exp(), y.cos()).sin().sum(), (x, y))
    assert_close((x.grad, y.grad), expected)


def test_gradients_accumulate_and_graphs_may_be_kept():
    x, y = leaves((5, 7), (6, 7))
    out = pairwise_l1(x, y)
    out.sum().backward(retain_graph=True)
    once = x.grad.clone()
    out.sum().backward()
    assert_close(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


@pytest.mark.parametrize(
    ("needs_x", "needs_y", "mask"), [(True, False, 1), (False, True, 2), (True, True, 3)]
)
def test_only_the_gradients_that_are_needed_are_computed(needs_x, needs_y, mask):
    x, y = random(5, 7).requires_grad_(needs_x), random(6, 7).requires_grad_(needs_y)
    out = pairwise_l1(x, y)
    with Record() as record:
        out.sum().backward()
    [(name, args)] = record.calls
    assert name == "pairwise_l1_grad.default"
    assert args[-1] == mask
    assert (x.grad is not None, y.grad is not None) == (needs_x, needs_y)


def test_gradient_of_part_of_the_inputs_of_a_graph_computes_that_part():
    x, y = leaves((5, 7), (6, 7))
    with Record() as record:
        [d_x] = torch.autograd.grad(pairwise_l1(x, y).sum(), x)
    assert_close(d_x, torch.autograd.grad(composed_l1(x, y).sum(), x)[0])
    assert y.grad is None
    assert len(record.calls) == 2


@pytest.mark.parametrize(
    "d_out",
    [random(1).expand(5, 6), random(6, 5).mT, random(10, 12)[::2, ::2], torch.zeros(5, 6)],
    ids=["expanded", "transposed", "sliced", "zero"],
)
def test_incoming_gradient_may_have_any_layout(d_out):
    x, y = leaves((5, 7), (6, 7))
    ours = torch.autograd.grad(pairwise_l1(x, y), (x, y), d_out)
    assert_close(ours, torch.autograd.grad(composed_l1(x, y), (x, y), d_out))


@pytest.mark.parametrize(
    ("x_shape", "y_shape"),
    [((3, 5, 7), (6, 7)), ((5, 7), (3, 6, 7)), ((3, 1, 5, 7), (2, 6, 7)), ((1, 5, 7), (4, 6, 7))],
)
def test_gradient_of_a_broadcast_input_is_summed(x_shape, y_shape):
    arrays = leaves(x_shape, y_shape)
    ours = gradients(pairwise_l1, arrays)
    assert [g.shape for g in ours] == [x_shape, y_shape]
    assert_close(ours, gradients(composed_l1, arrays))


@pytest.mark.parametrize("shapes", [((0, 7), (6, 7)), ((5, 0), (6, 0)), ((0, 5, 7), (6, 7))])
def test_gradient_of_nothing_is_nothing(shapes):
    arrays = leaves(*shapes)
    assert_close(gradients(pairwise_l1, arrays), gradients(composed_l1, arrays))


@pytest.mark.parametrize("op", [pairwise_l1, lambda x, y: pairwise_lp(x, y, p=3.0), pairwise_lp])
@pytest.mark.parametrize("shapes", [((3, 4), (2, 4)), ((2, 1, 3, 4), (3, 2, 4))])
def test_gradients_agree_with_finite_differences(op, shapes):
    arrays = leaves(*shapes, dtype=torch.float64)
    assert gradcheck(op, arrays, check_batched_grad=True, check_undefined_grad=True)


def test_kept_tensors_are_those_that_the_gradient_asks_for():
    kept = []
    x, y = leaves((5, 7), (6, 7))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        pairwise_l1(x, y)
        assert kept == [x.shape, y.shape]
        kept.clear()
        pairwise_lp(x, y)
        assert kept == [x.shape, y.shape, (5, 6)]


def test_changing_a_kept_input_is_an_error():
    x, y = random(5, 7), leaves((6, 7))[0]
    out = pairwise_l1(x, y)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_hooks_run():
    seen = []
    [x], module = leaves((5, 7)), torch.nn.Module()
    module.forward = lambda x: pairwise_l1(x, random(6, 7))
    module.register_full_backward_hook(
        lambda m, d_in, d_out: seen.append(("module", d_in[0].shape))
    )
    x.register_hook(lambda d_x: seen.append(("x", d_x.shape)) or 2 * d_x)
    out = module(x)
    out.register_hook(lambda d_out: seen.append(("out", d_out.shape)))
    out.sum().backward()
    assert set(seen) == {("out", (5, 6)), ("x", (5, 7)), ("module", (5, 7))}
    [again] = leaves((5, 7))
    assert_close(x.grad, 2 * torch.autograd.grad(composed_l1(again, random(6, 7)).sum(), again)[0])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_gradient_is_the_same(use_reentrant):
    arrays = leaves((5, 7), (6, 7))

    def recomputed(x, y):
        return checkpoint(lambda x, y: pairwise_l1(x.sin(), y), x, y, use_reentrant=use_reentrant)

    loss = recomputed(*arrays).sin().sum()
    loss.backward()
    expected = gradients(lambda x, y: composed_l1(x.sin(), y), arrays)
    assert_close(tuple(a.grad for a in arrays), expected)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_names_the_op():
    x, y = leaves((5, 7), (6, 7))
    with torch.autograd.detect_anomaly():
        assert_close(gradients(pairwise_l1, (x, y)), gradients(composed_l1, (x, y)))
        nan = torch.full((5, 6), torch.nan)
        with (
            pytest.raises(RuntimeError, match=r"pairwise_l1Backward.*nan"),
            pytest.warns(UserWarning, match="Error detected in pairwise_l1Backward"),
        ):
            pairwise_l1(x, y).backward(nan)


def test_double_backward_says_that_there_is_none():
    x, y = leaves((5, 7), (6, 7))
    [d_x] = torch.autograd.grad(pairwise_l1(x, y).sin().sum(), x, create_graph=True)
    assert_close(d_x, torch.autograd.grad(composed_l1(x, y).sin().sum(), x)[0])
    assert d_x.requires_grad
    with pytest.raises(GradientError, match=TWICE):
        d_x.sum().backward()
    with pytest.raises(GradientError, match=TWICE):
        torch.autograd.functional.hessian(lambda x: pairwise_l1(x, y).sin().sum(), x)
    with pytest.raises(GradientError, match=TWICE):
        pairwise_l1_grad(x, y, random(5, 6)).d_y.sum().backward()


def test_forward_mode_says_that_there_is_none():
    x, y = random(5, 7), random(6, 7)
    with forward_ad.dual_level():
        for arrays in ((forward_ad.make_dual(x, x), y), (x, forward_ad.make_dual(y, y))):
            with pytest.raises(GradientError, match=FORWARD):
                pairwise_l1(*arrays)
            with torch.no_grad(), pytest.raises(GradientError, match=FORWARD):
                pairwise_l1(*arrays)
        assert_close(pairwise_l1(x, y), composed_l1(x, y))
    with pytest.raises(GradientError, match=TWICE):
        torch.autograd.functional.jvp(lambda x: pairwise_l1(x, y), x, x)


PROCESS = """
import os
import sys
import torch
import torch.distributed as dist
from nativeops import pairwise_l1

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = torch.nn.Parameter(torch.linspace(-1, 1, 42).reshape(6, 7))

    def forward(self, x):
        return pairwise_l1(x, self.centers)

rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(Model())
x = torch.sin(torch.arange(8 * 7.0)).reshape(2, 4, 7)
model(x[rank]).sin().mean().backward()
alone = Model()
alone(x.reshape(8, 7)).sin().mean().backward()
torch.testing.assert_close(model.module.centers.grad, alone.centers.grad)
assert alone.centers.grad.abs().max() > 0
dist.destroy_process_group()
# Gloo's threads may free their last tensors while Python already ends, and abort the process: so
# does torch.cdist in place of ours, on a busy machine about once in ten (pytorch#179291).
os._exit(0)
"""


@pytest.mark.slow
def test_data_parallel_gradients_are_those_of_one_process(tmp_path: Path):
    command = [sys.executable, "-W", "ignore", "-c", PROCESS]
    processes = [subprocess.Popen([*command, str(rank), tmp_path / "meeting"]) for rank in (0, 1)]
    assert [process.wait(120) for process in processes] == [0, 0]


def test_an_attribute_has_no_gradient_and_says_so():
    x, p = torch.randn(3, 2), torch.tensor(3.0, requires_grad=True)
    with pytest.raises(DtypeError, match="`p` must be float, but is tensor"):
        pairwise_lp(x, x, p=p)
    with pytest.raises(DtypeError, match="`p` must be float, but is GradTracking"):
        torch.func.grad(lambda p: pairwise_lp(x, x, p=p).sum())(p.detach())
    assert pairwise_lp(x, x, p=p.detach()).shape == (3, 3)


def test_rule_that_returns_nothing_is_an_error(monkeypatch):
    nothing = wraps(pairwise_l1.gradient_rule)(lambda *arguments: None)
    monkeypatch.setattr(pairwise_l1, "gradient_rule", nothing)
    said = "pairwise_l1: the gradient rule gave nothing for 2 inputs: give one gradient for each"
    with pytest.raises(TypeError, match=said):
        gradients(pairwise_l1, leaves((2, 3), (4, 3)))


def test_rule_that_returns_no_array_is_an_error(monkeypatch):
    number = wraps(pairwise_l1.gradient_rule)(lambda *arguments: (0.5, 0.5))
    monkeypatch.setattr(pairwise_l1, "gradient_rule", number)
    said = "pairwise_l1: the gradient rule gave a float for an input: give an array, or None"
    with pytest.raises(TypeError, match=said):
        gradients(pairwise_l1, leaves((2, 3), (4, 3)))


def test_no_zeros_are_made_for_a_large_gradient_that_does_not_arrive() -> None:
    z = random(300, 2, 200).requires_grad_()
    place = torch.arange(300)[:, None].expand(300, 2)
    label, weight = torch.zeros(300, 2, dtype=torch.int64), torch.ones(300, 2, dtype=z.dtype)
    made = cross_entropy_softmax_and_gradient_sparse(z, place, label, weight)
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **kwargs or {})
            if function is torch.ops.aten.zeros.default:
                sizes.append(result.numel())
            return result

    with Watch():
        (d_z,) = torch.autograd.grad(made.loss.sum(), z)
    assert max(sizes) < z.numel()
    torch.testing.assert_close(d_z, made.grad_z.detach(), rtol=0, atol=0)
