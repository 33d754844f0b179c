# SPDX-License-Identifier: Apache-2.0
"""Ops in compiled, traced and exported programs, also in processes that start with them."""

import io
import os
import subprocess
import sys

import pytest
import torch
import torch._dynamo
import torch.compiler.config
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.testing import assert_close

from nativeops import pairwise_l1, pairwise_lp
from nativeops.errors import GradientError
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.arrays_torch import composed_l1, random

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def _nothing_is_remembered():
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


def leaves(*shapes):
    return [random(*shape).requires_grad_() for shape in shapes]


def gradients(f, arrays):
    return torch.autograd.grad(f(*arrays), arrays)


def loss(op):
    return lambda x, y: op(x.sin(), y).cos().sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shapes", [((5, 7), (6, 7)), ((3, 1, 5, 7), (2, 6, 7))])
def test_compiled_value_and_gradient_are_those_of_composed_torch(shapes, backend):
    compiled = torch.compile(loss(pairwise_l1), fullgraph=True, backend=backend)
    arrays = leaves(*shapes)
    with torch.no_grad():
        assert_close(compiled(*arrays), loss(composed_l1)(*arrays))
    assert_close(compiled(*arrays), loss(composed_l1)(*arrays))
    assert_close(gradients(compiled, arrays), gradients(loss(composed_l1), arrays))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_graph_serves_all_sizes(backend):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(loss(pairwise_l1), fullgraph=True, dynamic=True, backend=counter)
    for n in (3, 4, 9):
        arrays = leaves((n, 7), (2, n + 2, 7))
        assert_close(gradients(compiled, arrays), gradients(loss(composed_l1), arrays))
    assert counter.frame_count == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_attributes_may_be_arguments_of_the_program(dynamic):
    def program(x, y, p):
        return pairwise_lp(x, y=y, p=p)

    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for p in (3.0, 4.0, 5, 5.5):
        assert_close(
            compiled(random(5, 7), random(6, 7), p), pairwise_lp(random(5, 7), random(6, 7), p=p)
        )


def test_compiled_call_with_several_results_gives_those_that_are_wanted():
    x, y, d_out = random(5, 7), random(6, 7), random(5, 6)
    compiled = torch.compile(
        lambda *arrays: pairwise_l1_grad(*arrays, want=("d_y",)),
        fullgraph=True,
        backend="aot_eager",
    )
    result = compiled(x, y, d_out)
    assert result.d_x is None
    assert_close(result.d_y, pairwise_l1_grad(x, y, d_out).d_y)


class Picked(torch.nn.Module):
    """Two arrays with as many leading axes as the data has items of a kind."""

    def forward(self, x):
        picked = x[x[:, 0, 0] > 0]
        return pairwise_l1(picked, picked * 2).sum()


def test_leading_axes_of_which_only_the_data_know_the_size_are_compiled():
    x = random(9, 5, 7)
    x[:4, 0, 0] = 1.0
    compiled = torch.compile(Picked(), fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), Picked()(x))
    found, expected = (gradients(f, [x.clone().requires_grad_()]) for f in (compiled, Picked()))
    assert_close(found, expected)
    assert expected[0].abs().max() > 0
    for strict in (False, True):
        program = torch.export.export(Picked(), (x,), strict=strict).module()
        for n in (1, 4):
            x[:, 0, 0] = -1.0
            x[:n, 0, 0] = 1.0
            assert_close(program(x), Picked()(x))


def test_compiled_error_says_what_ours_says():
    compiled = torch.compile(pairwise_l1, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="pairwise_l1: axis `d` is 7 in `x` but 3 in `y`") as error:
        compiled(random(5, 7), random(6, 3))
    assert "hint: give `y` the size 7 along `d`" in str(error.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_transforms_are_those_of_composed_torch(backend):
    def per_item(op):
        one = torch.func.grad(loss(op))
        return lambda many, y: (one(many[0], y), torch.func.vmap(one, (0, None))(many, y))

    compiled = torch.compile(per_item(pairwise_l1), fullgraph=True, backend=backend)
    many, y = random(3, 5, 7), random(6, 7)
    assert_close(compiled(many, y), per_item(composed_l1)(many, y))
    assert compiled(many, y)[0].abs().max() > 0


def test_compiled_forward_mode_says_that_there_is_none():
    x, y = random(5, 7), random(6, 7)
    sentence = r"pairwise_l1: has no forward-mode derivative \(jvp\)"
    tangent = torch.compile(
        lambda x: torch.func.jvp(lambda x: pairwise_l1(x, y), (x,), (x,))[1], backend="aot_eager"
    )
    with pytest.raises(Exception, match=sentence):
        tangent(x)
    compiled = torch.compile(lambda x: pairwise_l1(x, y), backend="aot_eager")
    with forward_ad.dual_level(), pytest.raises(GradientError, match=sentence):
        compiled(forward_ad.make_dual(x, x))


@pytest.mark.parametrize(
    ("backend", "error"),
    [("eager", "pairwise_l1_grad: has no gradient"), ("aot_eager", "double backward")],
)
def test_compiled_double_backward_is_an_error(backend, error):
    compiled = torch.compile(loss(pairwise_l1), fullgraph=True, backend=backend)
    x, y = leaves((5, 7), (6, 7))
    [d_x] = torch.autograd.grad(compiled(x, y), x, create_graph=True)
    with pytest.raises(RuntimeError, match=error):
        d_x.sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_backward_of_an_eager_forward_may_be_compiled():
    def gradients_of(op):
        arrays = leaves((5, 7), (6, 7))
        eager = torch.compiler.disable(loss(op))
        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(lambda x, y: eager(x, y).backward(), backend="eager")(*arrays)
        return [array.grad for array in arrays]

    assert_close(gradients_of(pairwise_l1), gradients_of(composed_l1))


def test_compiled_autocast_computes_in_float32():
    def program(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return pairwise_l1(x, y)

    x, y = random(5, 7).bfloat16().requires_grad_(), random(6, 7)
    out = torch.compile(program, fullgraph=True, backend="aot_eager")(x, y)
    assert out.dtype == torch.float32
    assert_close(out, composed_l1(x.float(), y))
    assert torch.autograd.grad(out.sum(), x)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traced_graph_holds_the_ops(mode):
    arrays = leaves((5, 7), (6, 7))
    graph = make_fx(lambda x, y: gradients(loss(pairwise_l1), (x, y)), tracing_mode=mode)(*arrays)
    targets = [str(node.target) for node in graph.graph.nodes]
    assert "nativeops.pairwise_l1.default" in targets
    assert "nativeops.pairwise_l1_grad.default" in targets
    others = arrays if mode != "symbolic" else leaves((9, 7), (4, 7))
    assert_close(tuple(graph(*others)), gradients(loss(composed_l1), others))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_jit_trace_keeps_gradients(requires_grad):
    x, y = random(5, 7).requires_grad_(requires_grad), random(6, 7)
    traced = torch.jit.trace(loss(pairwise_l1), (x, y))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    for program in (traced, torch.jit.load(file)):
        arrays = leaves((5, 7), (6, 7))
        assert_close(gradients(program, arrays), gradients(loss(composed_l1), arrays))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_registration_passes_all_checks_of_torch(requires_grad):
    space = torch.ops.nativeops
    x, y, d_out = random(5, 7).requires_grad_(requires_grad), random(2, 6, 7), random(2, 5, 6)
    calls = [(space.pairwise_l1, (x, y)), (space.pairwise_lp, (x, y, 3.0))]
    if not requires_grad:
        calls += [(space.pairwise_l1_grad, (x, y, d_out, mask)) for mask in (1, 2, 3)]
        calls += [(space.pairwise_lp_grad, (x, y, pairwise_lp(x, y), d_out, 2.0, 3))]
    for packet, arguments in calls:
        assert set(opcheck(packet.default, arguments).values()) == {"SUCCESS"}


def run(code, *arguments):
    environment = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, timeout=300)


COLD = """
{imports}
compiled = torch.compile(lambda x, y: nativeops.pairwise_l1(x * 2, y).sin().sum(), fullgraph=True,
                         backend="aot_eager")
torch.manual_seed(0)
x, y = (torch.randn(n, 7, dtype=torch.float64, requires_grad=True) for n in (5, 6))
ours = torch.autograd.grad(compiled(x, y), (x, y))
composed = (2 * x[:, None] - y[None]).abs().sum(-1).sin().sum()
torch.testing.assert_close(ours, torch.autograd.grad(composed, (x, y)))
"""
IMPORTS = ["import torch, nativeops", "import nativeops, torch"]


@pytest.mark.slow
@pytest.mark.parametrize("imports", IMPORTS)
def test_compiled_program_may_hold_the_first_call_of_a_process(imports):
    run(COLD.format(imports=imports))


class Program(torch.nn.Module):
    def forward(self, x, y):
        return pairwise_l1(x, y) + pairwise_lp(x, y, p=3.0)


LOAD = """
{imports}
program = torch.export.load(sys.argv[1]).module()
x, y = torch.randn(9, 7), torch.randn(4, 7)
torch.testing.assert_close(program(x, y), torch.cdist(x, y, p=1) + torch.cdist(x, y, p=3))
"""


@pytest.mark.slow
def test_exported_program_loads_in_another_process(tmp_path):
    sizes = ({0: torch.export.Dim("n")}, {0: torch.export.Dim("m")})
    exported = torch.export.export(Program(), (random(5, 7), random(6, 7)), dynamic_shapes=sizes)
    assert_close(
        exported.module()(random(8, 7), random(3, 7)), Program()(random(8, 7), random(3, 7))
    )
    torch.export.save(exported, tmp_path / "program.pt2")
    for imports in (
        "import sys, torch, nativeops",
        "import sys, nativeops, torch; nativeops.frameworks.load('torch')",
    ):
        run(LOAD.format(imports=imports), tmp_path / "program.pt2")


@pytest.mark.slow
def test_ahead_of_time_package_runs(tmp_path):
    exported = torch.export.export(Program(), (random(5, 7), random(6, 7)), strict=True)
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "p.pt2"))
    program = torch._inductor.aoti_load_package(path)
    assert_close(program(random(5, 7), random(6, 7)), Program()(random(5, 7), random(6, 7)))


def test_caches_of_compiled_programs_know_our_version():
    pairwise_l1(random(1, 1), random(1, 1))
    assert "nativeops-" in torch.compiler.config.cache_key_tag


@pytest.mark.cuda
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_value_and_gradient_on_cuda(backend):
    compiled = torch.compile(loss(pairwise_l1), fullgraph=True, backend=backend)
    arrays = [a.detach().cuda().requires_grad_() for a in leaves((5, 7), (6, 7))]
    assert_close(gradients(compiled, arrays), gradients(loss(composed_l1), arrays))
