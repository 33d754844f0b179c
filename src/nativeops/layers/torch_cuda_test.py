# SPDX-License-Identifier: Apache-2.0
"""The layers for PyTorch on a GPU compute what `torch.nn` computes there."""

from collections.abc import Iterator
from typing import Any

import pytest

from nativeops.testing.marks import missing

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

from nativeops.layers.torch import FUSED, CTCLoss  # noqa: E402

pytestmark = pytest.mark.cuda

KINDS = {kind.__name__: (kind, fused) for kind, fused in FUSED.items()}
# Blocks with all units, with some, with some of the sequences, in passes; weights that fit nowhere.
SIZES = [
    (1, 1, 4, 4), (5, 3, 3, 7), (4, 9, 8, 33), (6, 70, 5, 130), (3, 2, 7, 800), (9, 20, 40, 512),
    (3, 21, 9, 1030), (2, 3, 2, 1537),
]  # fmt: skip


@pytest.fixture(autouse=True)
def float32_in_full() -> Iterator[None]:
    """cuDNN rounds to 10 bits of mantissa otherwise."""
    if not torch.cuda.is_available():
        missing("cuda", "this machine has no NVIDIA GPU that PyTorch can use")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def pair(kind: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    """PyTorch's layer and ours, with the same parameters."""
    theirs, ours = (make(*sizes, device="cuda", **options) for make in KINDS[kind])
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def trained(module: Any, x: Any, lengths: Any = None) -> list[Any]:
    """The outputs, final states and all gradients."""
    given = x.detach().requires_grad_()
    if lengths is None:
        output, states = module(given)
    else:
        packed, states = module(pack_padded_sequence(given, lengths, enforce_sorted=False))
        output = pad_packed_sequence(packed, total_length=len(x))[0]
    results = [output, *(states if isinstance(states, tuple) else [states])]
    weights = [torch.linspace(-1, 1, r.numel(), device="cuda").view(r.shape) for r in results]
    total = sum((r.float() * w).sum() for r, w in zip(results, weights, strict=True))
    return [*results, *torch.autograd.grad(total, [given, *module.parameters()])]


def check(found: list[Any], expected: list[Any], most: float) -> None:
    """Each is as near as a part of its largest number."""
    for ours, theirs in zip(found, expected, strict=True):
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=most * max(scale, 1e-3))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_all_sizes_equal_torch_with_gradients(kind: str, sizes: tuple[int, ...]) -> None:
    steps, batch, inputs, units = sizes
    theirs, ours = pair(kind, inputs, units)
    x = torch.randn(steps, batch, inputs, device="cuda")
    check(trained(ours, x), trained(theirs, x), 3e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_long_sequences_equal_torch_with_gradients(kind: str) -> None:
    theirs, ours = pair(kind, 40, 256)
    x = torch.randn(2000, 4, 40, device="cuda")
    check(trained(ours, x), trained(theirs, x), 2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_in_both_directions_equal_torch(kind: str) -> None:
    theirs, ours = pair(kind, 6, 96, 2, bidirectional=True)
    x, lengths = torch.randn(9, 14, 6, device="cuda"), torch.arange(14) % 9 + 1
    check(trained(ours, x, lengths), trained(theirs, x, lengths), 3e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(7, 12, 24, 160), *SIZES], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_near_float32(kind: str, sizes: tuple[int, ...], dtype: Any) -> None:
    steps, batch, inputs, units = sizes
    theirs, ours = pair(kind, inputs, units)
    x = torch.randn(steps, batch, inputs, device="cuda")
    expected = trained(theirs, x)
    found = trained(ours.to(dtype), x.to(dtype))
    check([each.float() for each in found], expected, 0.05)


# cuDNN's own float32 has about 1e-6; the sums of the gradients lose more.
@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_three_bf16_are_near_float32(
    kind: str, sizes: tuple[int, ...], low_memory: bool
) -> None:
    steps, batch, inputs, units = sizes
    theirs, ours = pair(kind, inputs, units)
    ours.precision, ours.low_memory = "high", low_memory
    x = torch.randn(steps, batch, inputs, device="cuda")
    expected, found = trained(theirs, x), trained(ours, x)
    assert float((found[0] - expected[0]).detach().square().mean().sqrt()) <= 1e-5
    check(found, expected, 2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_sequence(kind: str, precision: str, dtype: Any) -> None:
    ours = pair(kind, 24, 160)[1].to(dtype)
    ours.precision = precision
    x = torch.randn(7, 12, 24, device="cuda", dtype=dtype)
    spoilt = x.clone()
    spoilt[3, 5] = torch.nan
    expected, found = ours(x)[0], ours(spoilt)[0]
    assert bool(found[3:, 5].isnan().all())
    found[:, 5] = expected[:, 5]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_layers_compile_and_follow_autocast() -> None:
    theirs, ours = pair("LSTM", 8, 32)
    x = torch.randn(5, 3, 8, device="cuda")
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    check(trained(compiled, x), trained(theirs, x), 3e-5)
    with torch.autocast("cuda"):
        assert ours(x)[0].dtype is torch.float16


def test_dropout_follows_from_the_state_of_the_gpus_generator() -> None:
    _, ours = pair("GRU", 4, 50, 3, dropout=0.5)
    x, state = torch.randn(5, 3, 4, device="cuda"), torch.cuda.get_rng_state()
    first, second = ours(x)[0], ours(x)[0]
    assert not torch.equal(first, second)
    torch.cuda.set_rng_state(state)
    assert torch.equal(ours(x)[0], first)


def test_calls_on_two_streams_do_not_disturb_each_other() -> None:
    _, ours = pair("LSTM", 64, 256)
    inputs = [torch.randn(50, 16, 64, device="cuda") for _ in range(2)]
    expected = [ours(x)[0] for x in inputs]
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in inputs], []
    for _ in range(5):
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                found.append(ours(x)[0])
    torch.cuda.synchronize()
    for i, output in enumerate(found):
        assert torch.equal(output, expected[i % 2])


def test_a_cuda_graph_repeats_a_layer() -> None:
    _, ours = pair("LSTM", 8, 96)
    x = torch.randn(6, 4, 8, device="cuda")
    with torch.no_grad():
        expected = ours(x)[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = ours(x)[0]
        graph.replay()
        assert torch.equal(output, expected)


def test_ctc_loss_equals_torch() -> None:
    x = torch.randn(40, 5, 12, device="cuda", dtype=torch.float64, requires_grad=True)
    targets = torch.randint(1, 12, (5, 7), device="cuda")
    lengths = torch.tensor([40, 30, 21, 40, 9]), torch.tensor([7, 5, 7, 0, 3])
    values = []
    for loss in (CTCLoss(), torch.nn.CTCLoss()):
        value = loss(x.log_softmax(-1), targets, *lengths)
        values.append([value, *torch.autograd.grad(value, x)])
    torch.testing.assert_close(*values)
