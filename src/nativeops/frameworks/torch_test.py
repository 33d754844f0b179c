# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors: values, errors, and what PyTorch's users do around a call."""

import copy
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import nativeops
from nativeops import pairwise_l1, pairwise_lp
from nativeops.errors import AllocationError, ArgumentError, DeviceError, DtypeError, ShapeError
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_torch import composed_l1, random
from nativeops.testing.threads import check_first_calls, check_others_run

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


class Distances(torch.nn.Module):
    def __init__(self, op=pairwise_l1):
        super().__init__()
        self.op = op
        self.centers = torch.nn.Parameter(random(6, 7))

    def forward(self, x):
        return self.op(x, self.centers)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_value_is_that_of_composed_torch(dtype, device):
    x, y = random(3, 1, 5, 7).to(device, dtype), random(2, 6, 7).to(device, dtype)
    out = pairwise_l1(x, y)
    assert out.dtype == dtype
    assert out.device == x.device
    assert out.shape == (3, 2, 5, 6)
    assert out.is_contiguous()
    assert_close(out, composed_l1(x.double(), y.double()).to(dtype))


@pytest.mark.parametrize(
    "x",
    [
        random(7, 5).mT,
        random(9, 14)[::2, ::2],
        random(1, 7).expand(5, 7),
        random(60)[3:].as_strided((5, 7), (2, 3)),
        random(5, 7, dtype=torch.complex64).conj().imag,
    ],
    ids=["transposed", "sliced", "expanded", "overlapping", "negative"],
)
def test_any_view_of_memory_gives_the_value_of_its_copy(x):
    assert torch.equal(pairwise_l1(x, random(6, 7)), pairwise_l1(x.clone(), random(6, 7)))


def test_gradient_modes_change_the_graph_and_not_the_value():
    x, y = random(5, 7).requires_grad_(), random(6, 7)
    value = composed_l1(x, y).detach()
    recorded = pairwise_l1(x, y)
    assert recorded.requires_grad
    assert_close(recorded.detach(), value)
    with torch.no_grad():
        assert not pairwise_l1(x, y).requires_grad
    with torch.inference_mode():
        inferred = pairwise_l1(x, y)
    assert inferred.is_inference()
    assert_close(inferred, value)
    assert not pairwise_l1(x.detach(), y).requires_grad


@pytest.mark.parametrize("p", [1, 1.0, 2.0, 3.5, float("inf")])
def test_attributes_arrive_as_written(p):
    x, y = random(5, 7), random(6, 7)
    assert_close(pairwise_lp(x, y, p=p), torch.cdist(x, y, p=float(p)))
    assert_close(pairwise_lp(y=y, x=x, p=p), torch.cdist(x, y, p=float(p)))
    assert_close(pairwise_lp(x, y), torch.cdist(x, y))


def test_results_that_nobody_wants_are_not_made():
    x, y, d_out = random(5, 7), random(6, 7), random(5, 6)
    both = pairwise_l1_grad(x, y, d_out)
    for wanted in (["d_x"], ("d_x",)):
        one = pairwise_l1_grad(x, y, d_out, want=wanted)
        assert one.d_y is None
        assert torch.equal(one.d_x, both.d_x)
    assert torch.equal(pairwise_l1_grad.only(["d_y"])(x, y, d_out=d_out).d_y, both.d_y)


def test_parameters_and_subclasses_are_tensors():
    class Labelled(torch.Tensor):
        pass

    x, y = random(5, 7), random(6, 7)
    assert_close(Distances()(x).detach(), composed_l1(x, Distances().centers.detach()))
    assert type(pairwise_l1(x.as_subclass(Labelled), y)) is Labelled
    assert type(pairwise_l1(x, y.as_subclass(Labelled))) is Labelled
    assert_close(
        pairwise_l1(x, y.as_subclass(Labelled)).as_subclass(torch.Tensor), composed_l1(x, y)
    )


@pytest.mark.parametrize("requires_grad", [False, True])
def test_meta_tensors_give_the_shape_alone(requires_grad):
    x = torch.empty(3, 1, 5, 7, device="meta", requires_grad=requires_grad)
    y = torch.empty(2, 6, 7, device="meta")
    out = pairwise_l1(x, y)
    assert (out.device.type, out.shape, out.dtype) == ("meta", (3, 2, 5, 6), torch.float32)
    if requires_grad:
        out.sum().backward()
        assert x.grad.shape == x.shape


def test_fake_tensors_give_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(5, 7, requires_grad=True)
        out = pairwise_l1(x, torch.empty(6, 7))
        out.sum().backward()
    assert isinstance(out, FakeTensor)
    assert out.shape == (5, 6)
    assert x.grad.shape == (5, 7)


def test_default_device_concerns_new_tensors_only():
    x, y = random(5, 7), random(6, 7)
    torch.set_default_device("meta")
    try:
        out, empty = pairwise_l1(x, y), pairwise_l1(torch.empty(3, 7), torch.empty(2, 7))
    finally:
        torch.set_default_device(None)
    assert_close(out, composed_l1(x, y))
    assert empty.device.type == "meta"


WRONG = {
    "dtype": lambda new: pairwise_l1(new(5, 7, "int64"), new(6, 7)),
    "two dtypes": lambda new: pairwise_l1(new(5, 7), new(6, 7, "float64")),
    "axis": lambda new: pairwise_l1(new(5, 7), new(6, 8)),
    "transposed": lambda new: pairwise_l1(new(5, 7), new(7, 6)),
    "rank": lambda new: pairwise_l1(new(5, 7), new(7)),
    "leading axes": lambda new: pairwise_l1(new(2, 5, 7), new(3, 6, 7)),
    "missing": lambda new: pairwise_l1(new(5, 7)),
    "too many": lambda new: pairwise_l1(new(5, 7), new(6, 7), 3),
    "no array": lambda new: pairwise_l1(new(5, 7), 3.0),
    "unknown": lambda new: pairwise_lp(new(5, 7), new(6, 7), q=1.0),
    "range": lambda new: pairwise_lp(new(5, 7), new(6, 7), p=0.5),
    "bool": lambda new: pairwise_lp(new(5, 7), new(6, 7), p=True),
    "word": lambda new: pairwise_lp(new(5, 7), new(6, 7), p="one"),
    "want": lambda new: pairwise_l1_grad(new(5, 7), new(6, 7), new(5, 6), want=["d_z"]),
    "memory": lambda new: pairwise_l1(new(1 << 24, 1, huge=True), new(1 << 24, 1, huge=True)),
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "with gradient"])
@pytest.mark.parametrize("wrong", WRONG)
def test_errors_say_the_same_as_for_numpy(wrong, requires_grad):
    def array(*words, huge=False):
        shape = [word for word in words if isinstance(word, int)]
        dtype = next((word for word in words if isinstance(word, str)), "float32")
        return np.broadcast_to(np.zeros(1, dtype), shape) if huge else np.zeros(shape, dtype)

    def tensor(*words, huge=False):
        made = torch.from_numpy(array(*words, huge=False) if not huge else np.zeros(1, "float32"))
        made = made.expand(*words) if huge else made
        return made.requires_grad_(requires_grad and made.is_floating_point())

    with pytest.raises(nativeops.NativeOpsError) as ours:
        WRONG[wrong](array)
    with pytest.raises(type(ours.value)) as error:
        WRONG[wrong](tensor)
    assert type(error.value) is type(ours.value)
    assert str(error.value) == str(ours.value)
    if wrong == "memory":
        assert isinstance(error.value, AllocationError)


@pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:.*nested tensors", "ignore:Sparse")
def test_tensors_that_are_not_dense_are_refused():
    x, y = random(5, 7), random(6, 7)
    with pytest.raises(ArgumentError, match=r"`x` must be a dense tensor, but is torch.sparse_coo"):
        pairwise_l1(x.to_sparse(), y)
    with pytest.raises(ArgumentError, match=r"`y` must be a dense tensor, but is torch.sparse_csr"):
        pairwise_l1(x, y.to_sparse_csr())
    with pytest.raises(ArgumentError, match="`x` must be a dense tensor, but is nested"):
        pairwise_l1(torch.nested.nested_tensor([x, x]), y)
    with pytest.raises(DtypeError, match=r"`x` must be float32, .*, but is qint8"):
        pairwise_l1(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), y)
    with pytest.raises(DtypeError, match=r"`y` must be float32, .*, but is complex64"):
        pairwise_l1(x, y.to(torch.complex64))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_of_two_devices_are_refused(requires_grad):
    x, y = random(5, 7).requires_grad_(requires_grad), random(6, 7)
    with pytest.raises(DeviceError, match="`x` is on cpu but `y` is on meta"):
        pairwise_l1(x, y.to("meta"))
    with pytest.raises(DeviceError, match="`x` is on meta but `y` is on cpu"):
        pairwise_l1(x.to("meta"), y)


@pytest.mark.cuda
def test_tensors_of_cpu_and_cuda_are_refused():
    with pytest.raises(DeviceError, match="`x` is on cpu but `y` is on cuda:0"):
        pairwise_l1(random(5, 7), random(6, 7).cuda())


def test_other_frameworks_are_refused():
    x, y = random(5, 7), random(6, 7)
    with pytest.raises(ArgumentError, match="`x` is a torch array but `y` is a numpy array"):
        pairwise_l1(x, y.numpy())
    with pytest.raises(ArgumentError, match="`x` is a numpy array but `y` is a torch array"):
        pairwise_l1(x.numpy(), y)


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.bfloat16,) * 2])
def test_autocast_computes_in_float32_and_gives_gradients_in_the_inputs_dtypes(dtypes):
    x, y = (random(n, 7).to(d).requires_grad_() for n, d in zip((5, 6), dtypes, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = pairwise_l1(x, y)
    assert out.dtype == torch.float32
    assert_close(out, composed_l1(x.float(), y.float()))
    gradients = torch.autograd.grad(out.sin().sum(), (x, y))
    expected = torch.autograd.grad(composed_l1(x.float(), y.float()).sin().sum(), (x, y))
    assert tuple(g.dtype for g in gradients) == dtypes
    assert_close(gradients, expected)
    with pytest.raises(DtypeError):
        pairwise_l1(x.half(), y.double())


def test_dispatch_modes_see_the_op_and_its_gradient():
    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen = []
    x = random(5, 7).requires_grad_()
    with Record():
        pairwise_l1(x, random(6, 7)).sum().backward()
    assert "nativeops.pairwise_l1.default" in seen
    assert "nativeops.pairwise_l1_grad.default" in seen
    assert_close(x.grad, torch.autograd.grad(composed_l1(x, random(6, 7)).sum(), x)[0])


def test_flop_counter_counts_by_a_rule_of_the_user():
    from torch.utils.flop_counter import FlopCounterMode

    def flops(x_shape, y_shape, out_shape=None, **_):
        return 3 * x_shape[0] * x_shape[1] * y_shape[0]

    pairwise_l1(random(1, 1), random(1, 1))
    rule = {torch.ops.nativeops.pairwise_l1: flops}
    with FlopCounterMode(display=False, custom_mapping=rule) as counter:
        pairwise_l1(random(5, 7), random(6, 7))
    assert counter.get_total_flops() == 3 * 5 * 6 * 7


def test_profiler_shows_the_name():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        pairwise_l1(random(5, 7).requires_grad_(), random(6, 7)).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"nativeops::pairwise_l1", "nativeops::pairwise_l1_grad"} <= names


def test_threads_may_call_at_once():
    def work(seed):
        x = torch.randn(2, 17, 9, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        for _ in range(50):
            out = pairwise_l1(x, random(13, 9))
            gradient = torch.autograd.grad(out.sin().sum(), x)[0]
        return out.detach(), gradient

    alone = [work(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert_close(list(pool.map(work, range(8))), alone, rtol=0, atol=0)


def test_first_calls_may_come_from_several_threads():
    check_first_calls("torch")


def test_other_python_threads_run_during_an_op():
    x = torch.ones(3000, 400, dtype=torch.float64)
    check_others_run(lambda: pairwise_l1(x, x))


class FromWorkers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return pairwise_l1(random(300, 7) + i, random(200, 7))


def test_forked_data_loader_workers_call_ops():
    pairwise_l1(random(300, 7), random(200, 7))  # the parent's pool of threads has started
    loader = torch.utils.data.DataLoader(
        FromWorkers(), num_workers=2, multiprocessing_context="fork"
    )
    for i, batch in enumerate(loader):
        assert_close(batch[0], composed_l1(random(300, 7) + i, random(200, 7)))


def test_ops_and_modules_with_ops_copy_and_pickle():
    assert pickle.loads(pickle.dumps(pairwise_l1)) is pairwise_l1
    assert copy.deepcopy(pairwise_l1) is pairwise_l1
    module = Distances()
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert other.op is pairwise_l1
        assert torch.equal(other(random(5, 7)), module(random(5, 7)))


@pytest.mark.cuda
def test_op_runs_on_the_current_stream():
    x, y = random(2000, 64).cuda(), random(2000, 64).cuda()
    expected = composed_l1(x, y)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = x * 2
        out = pairwise_l1(late, y * 2)
    stream.synchronize()
    assert_close(out, 2 * expected)


def test_import_of_the_package_imports_no_framework():
    code = "import sys, nativeops; assert 'torch' not in sys.modules and nativeops.pairwise_l1"
    subprocess.run([sys.executable, "-c", code], check=True)


class Criterion(Distances):
    """Weights before the input, a keyword, and a result of several tensors."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([random(3, 5), random(3, 3)])

    def forward(self, x):
        far = self.op(self.centers, y=x)
        output, final = nativeops.rnn_layer(far[:, None], *self.weights, activation="relu")
        return output.sum() + final.square().sum()


def test_symbolic_trace_calls_the_ops_themselves():
    module, x = Criterion(), random(5, 7)
    traced = torch.fx.symbolic_trace(module)
    called = {node.target for node in traced.graph.nodes}
    assert called >= {pairwise_l1, nativeops.rnn_layer}
    traced = pickle.loads(pickle.dumps(traced))
    assert_close(traced(x), module(x), rtol=0, atol=0)
    for program in (traced, module):
        program(x).backward()
    for found, expected in zip(traced.parameters(), module.parameters(), strict=True):
        assert expected.grad.any()
        assert_close(found.grad, expected.grad, rtol=0, atol=0)
    with pytest.raises(ShapeError, match="pairwise_l1: axis `d` is 7 in `x`"):
        traced(random(5, 8))


def test_tensor_likes_are_asked_for_the_op_itself():
    class Wrapped:
        def __init__(self, tensor):
            self.tensor = tensor

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            asked.append((function, types, kwargs))
            return function(*[a.tensor if isinstance(a, cls) else a for a in args], **kwargs)

    x, y = random(5, 7), random(6, 7).requires_grad_()
    for args in ((Wrapped(x), y), (x, Wrapped(y)), (Wrapped(x), Wrapped(y))):
        asked = []
        (found,) = torch.autograd.grad(pairwise_lp(*args, p=3.0).sum(), y)
        assert asked == [(pairwise_lp, (Wrapped,), {"p": 3.0})]
        (expected,) = torch.autograd.grad(pairwise_lp(x, y, p=3.0).sum(), y)
        assert_close(found, expected, rtol=0, atol=0)
    with pytest.raises(ArgumentError, match="`x` is a numpy array but `y` is a torch array"):
        pairwise_l1(x.numpy(), Wrapped(y))
