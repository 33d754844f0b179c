# SPDX-License-Identifier: Apache-2.0
"""Calls past PyTorch's dispatcher: when they are made, when not, and that the results agree."""

import copy
import re
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from nativeops import lstm_layer, pairwise_l1, pairwise_lp, rnn_layer
from nativeops.errors import ShapeError
from nativeops.frameworks import load
from nativeops.library import extension
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_torch import random

X, Y, D_OUT = random(5, 7), random(6, 7), random(5, 6)


ADAPTER = load("torch")


def direct(op, *args, **kwargs):
    return extension().direct_torch(op, args, kwargs)


def test_this_pytorch_shows_all_that_direct_calls_need():
    assert ADAPTER.not_direct is None


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_plain_tensors_go_straight_to_the_kernel(kind, mode):
    with mode():
        y = torch.nn.Parameter(Y, requires_grad=False) if kind is torch.nn.Parameter else Y
        out = direct(pairwise_l1, X, y)
        made = direct(pairwise_l1, X + 0, y)
    for result in (out, made):
        assert type(result) is torch.Tensor
        assert not result.requires_grad
        assert result.is_inference() == (mode is torch.inference_mode)
        assert torch.equal(result, torch.ops.nativeops.pairwise_l1(X, Y))


def test_attributes_and_wanted_results_are_read_as_written():
    for p in (1, 1.0, 2.5):
        assert torch.equal(direct(pairwise_lp, X, Y, p=p), torch.ops.nativeops.pairwise_lp(X, Y, p))
    both = torch.ops.nativeops.pairwise_l1_grad(X, Y, D_OUT, 3)
    for want in (None, ("d_x",), ("d_y",), ("d_x", "d_y"), ()):
        kwargs = {} if want is None else {"want": want}
        made = direct(pairwise_l1_grad, X, Y, D_OUT, **kwargs)
        assert type(made) is pairwise_l1_grad.result
        for name, one, expected in zip(made._fields, made, both, strict=True):
            wanted = want is None or name in want
            assert torch.equal(one, expected) if wanted else one is None


@pytest.mark.parametrize(
    ("args", "kwargs"), [((X,), {"y": Y}), ((), {"x": X, "y": Y}), ((), {"y": Y, "x": X})]
)
def test_arrays_with_names_are_direct_too(args, kwargs):
    assert torch.equal(direct(pairwise_l1, *args, **kwargs), direct(pairwise_l1, X, Y))


def test_arrays_with_names_have_gradients():
    leaf = X.clone().requires_grad_()
    pairwise_l1(y=Y, x=leaf).sum().backward()
    expected = torch.cdist(leaf, Y, p=1).sum()
    assert torch.allclose(leaf.grad, torch.autograd.grad(expected, leaf)[0])


def test_a_gradient_alone_is_told_apart():
    leaf = X.clone().requires_grad_()
    assert [id(v) for v in direct(pairwise_l1, leaf, Y)] == [id(leaf), id(Y)]
    assert isinstance(direct(pairwise_l1, X, torch.nn.Parameter(Y)), list)
    with torch.no_grad():
        assert torch.equal(direct(pairwise_l1, leaf, Y), direct(pairwise_l1, X, Y))
    assert isinstance(direct(pairwise_l1, leaf * 1, Y), list)
    assert isinstance(direct(pairwise_l1, leaf.detach(), Y), torch.Tensor)


def test_a_gradient_alone_is_told_with_the_values_of_the_schema():
    x, weight, h_0 = torch.zeros(2, 1, 3), torch.zeros(4, 3, requires_grad=True), torch.zeros(1, 4)
    w_hh, words = torch.zeros(4, 4), {"precision": "high", "activation": "relu", "reverse": True}
    told = direct(rnn_layer, x, weight, w_hh, None, h_0=h_0, **words)
    assert [*map(id, told[:7])] == [*map(id, (x, weight, w_hh, None, None, h_0, None))]
    handle = rnn_layer.handles["torch"]
    assert told[7:] == [*handle.arrange((x, weight, w_hh), words)][7:]
    told = direct(pairwise_l1_grad, X.clone().requires_grad_(), Y, torch.zeros(5, 6), want=("d_x",))
    expected = pairwise_l1_grad.handles["torch"].arrange((X, Y, told[2]), {"want": ("d_x",)})
    assert told[3:] == [*expected[3:]]


def test_wrong_arguments_beside_absent_ones_are_told_where_a_gradient_is_recorded():
    x, w_ih, w_hh = torch.zeros(2, 1, 3), torch.zeros(4, 5), torch.zeros(4, 4)
    with pytest.raises(ShapeError) as without:
        rnn_layer(x, w_ih, w_hh)
    with pytest.raises(ShapeError, match=re.escape(str(without.value))):
        rnn_layer(x, w_ih.requires_grad_(), w_hh)


def test_results_given_by_the_caller_are_left_to_the_dispatcher_where_a_gradient_is_recorded():
    assert direct(pairwise_l1, X.clone().requires_grad_(), Y, out=torch.empty(5, 6)) is None


class Labelled(torch.Tensor):
    pass


def fake():
    with FakeTensorMode():
        return torch.empty(5, 7)


@pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:.*nested tensors", "ignore:Sparse")
@pytest.mark.parametrize(
    "x",
    [
        lambda: X.as_subclass(Labelled),
        fake,
        lambda: X.to("meta"),
        X.to_sparse,
        X.to_sparse_csr,
        X.to_mkldnn,
        lambda: torch.nested.nested_tensor([X, X]),
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
        lambda: torch._neg_view(X),
        lambda: torch.complex(X, X).conj(),
        lambda: torch._efficientzerotensor((5, 7)),
        X.numpy,
        X.tolist,
        lambda: None,
    ],
)
def test_what_is_more_than_memory_takes_the_dispatcher(x):
    value = x()
    for arrays in ((value, Y), (Y, value)):
        assert direct(pairwise_l1, *arrays) is None


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X,), {}),
        ((X, Y, 3), {}),
        ((X, Y[:, :3]), {}),
        ((X, Y.double()), {}),
        ((X.long(), Y.long()), {}),
        ((X, Y), {"p": 1.0}),
        ((X, Y), {"want": ("x",)}),
        ((X, Y), {"out": [D_OUT]}),
        ((X,), {"x": X}),
        ((X,), {"z": Y}),
        ((X,), {"y": None}),
        ((X, Y), {"y": Y}),
    ],
)
def test_what_must_be_explained_is_not_direct(args, kwargs):
    assert direct(pairwise_l1, *args, **kwargs) is None


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


WATCHERS = {
    "dispatch mode": Dispatch,
    "function mode": Functions,
    "fake tensors": FakeTensorMode,
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "old profiler": lambda: torch.autograd.profiler.profile(use_kineto=False),
    "forward mode": forward_ad.dual_level,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize("inference", [False, True])
def test_whoever_watches_sees_the_call(watcher, inference):
    with torch.inference_mode(inference), WATCHERS[watcher]():
        assert direct(pairwise_l1, X, Y) is None
    assert isinstance(direct(pairwise_l1, X, Y), torch.Tensor)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_transforms_and_tracers_see_the_call():
    def seen(x):
        found.append(direct(pairwise_l1, X, Y))
        return x.sum()

    found = []
    torch.func.vmap(seen)(X)
    torch.func.grad(seen)(X)
    torch.func.functionalize(seen)(X)
    torch.jit.trace(seen, (X,), check_trace=False)
    torch.fx.experimental.proxy_tensor.make_fx(seen)(X)
    assert found == [None] * 5


def test_every_thread_has_its_own_modes():
    def elsewhere():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            watched = direct(pairwise_l1, X, Y)
        return watched, direct(pairwise_l1, X, Y)

    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(elsewhere) for _ in range(16)]
        assert isinstance(direct(pairwise_l1, X, Y), torch.Tensor)
        for result in results:
            watched, plain = result.result()
            assert watched is None
            assert torch.equal(plain, pairwise_l1(X, Y))


def test_results_have_one_owner_and_inputs_are_let_go():
    x = X.clone()
    held = weakref.ref(x)
    before = sys.getrefcount(Y), x._use_count()
    out = direct(pairwise_l1, x, Y)
    made = direct(pairwise_l1_grad, x, Y, D_OUT, want=("d_y",))
    assert out._use_count() == torch.empty(1)._use_count()
    assert made.d_y._use_count() == out._use_count()
    assert (sys.getrefcount(Y), x._use_count()) == before
    gone = weakref.ref(out)
    del out, x
    assert gone() is None
    assert held() is None


def test_results_are_tensors_like_others():
    out = direct(pairwise_l1, X, Y)
    assert out.is_leaf
    assert out._version == 0
    out.add_(1)
    assert out._version == 1
    out.resize_(2, 3)
    assert copy.deepcopy(out.requires_grad_()).requires_grad
    assert_close(out.untyped_storage().nbytes(), 5 * 6 * 4)


# Each of these takes away something that a later PyTorch may lack.
MISSING = {
    "function": "torch._C._dispatch_keys = None",
    "thread": "torch._C._dispatch_tls_local_include_set = torch._C._dispatch_tls_local_exclude_set",
    "address": "torch.Tensor._cdata = 123",
    "library": "pathlib.Path.__truediv__, old = lambda a, b: old(a, str(b).replace('python', "
    "'cpu')), pathlib.Path.__truediv__",
}
WITHOUT = """
import pathlib
import torch
old = pathlib.Path.__truediv__
{missing}
from nativeops import pairwise_l1
from nativeops.frameworks import load
from nativeops.library import extension
assert load("torch").not_direct
pathlib.Path.__truediv__ = old
x, y = torch.randn(5, 7, requires_grad=True), torch.randn(6, 7)
assert extension().direct_torch(pairwise_l1, (y, y), {{}}) is None
composed = lambda x, y: (x[..., :, None, :] - y).abs().sum(-1)
torch.testing.assert_close(pairwise_l1(y, y), composed(y, y))
torch.testing.assert_close(pairwise_l1(x, y), composed(x, y))
ours, expected = (torch.autograd.grad(f(x, y).sin().sum(), x) for f in (pairwise_l1, composed))
torch.testing.assert_close(ours, expected)
many = torch.func.vmap(pairwise_l1, (0, None))(x.detach()[:, None], y)
torch.testing.assert_close(many[:, 0], composed(x.detach(), y))
"""


@pytest.mark.parametrize("missing", MISSING)
def test_another_pytorch_takes_the_dispatcher_with_the_same_results(missing):
    code = WITHOUT.format(missing=MISSING[missing])
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_what_is_kept_for_the_gradient_lies_in_memory_that_is_lent_again():
    layer = torch.nn.LSTM(64, 256)
    x = torch.randn(64, 32, 64, requires_grad=True)

    def kept() -> set[int]:
        output = lstm_layer(x, *layer.parameters()).output
        tensors = output.grad_fn.saved_tensors  # type: ignore[union-attr]
        output.sum().backward()
        return {t.data_ptr() for t in tensors if t is not None and t.nbytes >= 4 << 20}

    assert len(kept()) == 1  # the gates, 8 MB
    assert kept() == kept()
