# SPDX-License-Identifier: Apache-2.0
"""The layers for PyTorch inside what PyTorch does with whole programs."""

import io
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import prune  # noqa: E402

from nativeops.errors import ArgumentError  # noqa: E402
from nativeops.layers.torch import FUSED, GRU, LSTM, RNN, CTCLoss, RNNTLoss  # noqa: E402

T, B, D, H = 5, 3, 2, 4
KINDS = {fused.__name__: fused for fused in FUSED.values()}
X = torch.randn(T, B, D, generator=torch.Generator().manual_seed(1))


class Model(torch.nn.Module):
    """A layer between two others."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.before, self.layer = torch.nn.Linear(D, D), layer
        self.after = torch.nn.Linear(2 * H, 1)

    def forward(self, x: Any) -> Any:
        return self.after(self.layer(self.before(x))[0])


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(2)
    return Model(KINDS[request.param](D, H, 2, bidirectional=True))


def gradients(model: Any, module: Model, x: Any) -> list[Any]:
    return [*torch.autograd.grad(model(x).sum(), list(module.parameters()))]


def test_compiled_as_a_whole_it_computes_the_same(model: Model) -> None:
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X), model(X))
    for found, expected in zip(
        gradients(compiled, model, X), gradients(model, model, X), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_compiled_it_takes_states_and_draws_dropout() -> None:
    ours = LSTM(D, 50, 2, dropout=0.5, batch_first=True)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    hx = tuple(torch.randn(2, T, 50) for _ in range(2))
    found = []
    for layer in (ours, compiled):
        torch.manual_seed(4)
        found += [layer(X, hx)[0], layer(X, hx)[0]]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_exported_it_computes_the_same_for_any_batch_and_length(model: Model) -> None:
    sizes = {0: torch.export.Dim("time"), 1: torch.export.Dim("batch")}
    program = torch.export.export(model, (X,), dynamic_shapes=(sizes,))
    names = {str(node.target) for node in program.graph.nodes}
    assert any("nativeops" in name and "_layer" in name for name in names)
    other = torch.randn(T + 4, B + 2, D)
    torch.testing.assert_close(program.module()(other), model(other))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of checks, as with PyTorch's own
def test_traced_it_computes_the_same(model: Model) -> None:
    traced = torch.jit.trace(model, (X,))
    other = torch.randn(T, B + 2, D)
    assert torch.equal(traced(other), model(other))


def test_traced_symbolically_it_is_one_node(model: Model) -> None:
    traced = torch.fx.symbolic_trace(model)
    (node,) = [node for node in traced.graph.nodes if node.target == "layer"]
    assert node.op == "call_module"
    other = torch.randn(T + 1, B + 2, D)
    assert torch.equal(traced(other), model(other))
    for found, expected in zip(
        gradients(traced, model, X), gradients(model, model, X), strict=True
    ):
        assert torch.equal(found, expected)


def test_traced_symbolically_it_takes_and_gives_states() -> None:
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = LSTM(D, H)

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            y, (h, c) = self.layer(x, (h, c))
            return y + h, c

    step, states = Step(), torch.randn(2, 1, B, H)
    for found, expected in zip(
        torch.fx.symbolic_trace(step)(X, *states), step(X, *states), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("early", [False, True])
def test_traced_symbolically_its_hooks_run_once(model: Model, early: bool) -> None:
    if early:
        model.layer.register_forward_pre_hook(lambda module, given: (given[0] * 2, *given[1:]))
    else:
        model.layer.register_forward_hook(lambda module, given, made: (made[0] * 2, made[1]))
    assert torch.equal(torch.fx.symbolic_trace(model)(X), model(X))


def test_traced_symbolically_a_derived_class_runs_once() -> None:
    class Doubled(LSTM):
        def forward(self, input: Any, hx: Any = None) -> Any:
            output, states = super().forward(input, hx)
            return output * 2, states

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Doubled(D, H)

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    outer = Outer()
    assert torch.equal(torch.fx.symbolic_trace(outer)(X), outer(X))


def test_traced_symbolically_a_pruned_layer_is_one_node(model: Model) -> None:
    prune.l1_unstructured(model.layer, "weight_hh_l0", 0.3)  # by a hook
    assert torch.equal(torch.fx.symbolic_trace(model)(X), model(X))


@pytest.mark.parametrize("kind", ["CTCLoss", "RNNTLoss"])
def test_traced_symbolically_a_loss_is_one_node(kind: str) -> None:
    loss = CTCLoss() if kind == "CTCLoss" else RNNTLoss()
    shape = (T, B, 4) if kind == "CTCLoss" else (B, T, 3, 4)
    logits = torch.randn(shape).log_softmax(-1)
    rest = (
        torch.randint(1, 3, (B, 2), dtype=torch.int32),
        torch.full((B,), T, dtype=torch.int32),
        torch.full((B,), 2, dtype=torch.int32),
    )

    class Criterion(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = loss

        def forward(self, logits: Any, targets: Any, times: Any, labels: Any) -> Any:
            return self.loss(logits, targets, times, labels)

    traced = torch.fx.symbolic_trace(Criterion())
    assert [node.op for node in traced.graph.nodes].count("call_module") == 1
    assert torch.equal(traced(logits, *rest), loss(logits, *rest))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_torchscript_is_told_what_takes_the_layer_instead(model: Model) -> None:
    name = type(model.layer).__name__
    with pytest.raises(
        ArgumentError, match=rf"{name}: cannot be compiled by TorchScript[^$]*jit.trace"
    ):
        torch.jit.script(model)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_computes_in_its_dtype(model: Model, compiled: bool) -> None:
    layer = model.layer
    if compiled:
        layer = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        output, final = layer(X)
        model(X).sum().backward()
    assert output.dtype is torch.bfloat16
    assert {state.dtype for state in final} == {torch.bfloat16}
    torch.testing.assert_close(output.float(), model.layer(X)[0], rtol=0, atol=4 * 2.0**-8)
    assert all(weight.grad.dtype is torch.float32 for weight in model.parameters())


def test_autocast_lowers_as_much_as_torchs_lstm() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        for layer in (torch.nn.LSTM(D, H), LSTM(D, H)):
            for x in (X, X.bfloat16()):
                assert layer(x)[0].dtype is torch.bfloat16


def test_vmap_over_models_and_items(model: Model) -> None:
    many = torch.randn(3, T, B, D)
    found = torch.func.vmap(model)(many)
    torch.testing.assert_close(found, torch.stack([model(x) for x in many]))


def standard(layer: Any, dynamo: bool = False) -> Any:
    """The model in ONNX, and what ONNX Runtime makes of X with it."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        program = torch.onnx.export(
            layer, (X,), None if dynamo else file, dynamo=dynamo, verbose=False
        )
    proto = program.model_proto if dynamo else onnx.load_from_string(file.getvalue())
    session = runtime.InferenceSession(proto.SerializeToString())
    found = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    return [node.op_type for node in proto.graph.node], found[0]


def test_exported_to_onnx_it_is_the_standard_node(model: Model) -> None:
    nodes, found = standard(model.eval())
    assert nodes.count(type(model.layer).__name__) == 2
    np.testing.assert_allclose(found, model(X).detach().numpy(), atol=1e-6)


def test_new_exporter_to_onnx_makes_the_standard_node() -> None:
    model = Model(LSTM(D, H, 2, bidirectional=True)).eval()
    nodes, found = standard(model, dynamo=True)
    assert nodes.count("LSTM") == 2
    np.testing.assert_allclose(found, model(X).detach().numpy(), atol=1e-6)


# Two processes, each with half of the batch; rank 0 compares with the whole batch.
DISTRIBUTED = """
    import os
    import sys
    import torch
    import torch.distributed as distributed
    from nativeops.layers.torch import LSTM

    rank, file = int(sys.argv[1]), sys.argv[2]
    distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)
    layer, x = LSTM(3, 4, 2, bidirectional=True), torch.randn(5, 6, 3)
    parallel = torch.nn.parallel.DistributedDataParallel(layer)
    parallel(x[:, 3 * rank : 3 * rank + 3])[0].square().mean().backward()
    shared = [weight.grad.clone() for weight in layer.parameters()]
    layer.zero_grad()
    layer(x)[0].square().mean().backward()
    for found, weight in zip(shared, layer.parameters(), strict=True):
        torch.testing.assert_close(found, weight.grad)
    distributed.destroy_process_group()
    os._exit(0)  # gloo's threads can abort a Python that ends
"""


@pytest.mark.slow
def test_two_processes_share_gradients(tmp_path: Path) -> None:
    program = textwrap.dedent(DISTRIBUTED)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(tmp_path / "meet")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        error = process.communicate(timeout=300)[1]
        assert process.returncode == 0, error


def test_layers_are_those_that_accelerate_puts_in() -> None:
    assert FUSED == {torch.nn.RNN: RNN, torch.nn.GRU: GRU, torch.nn.LSTM: LSTM}
