# SPDX-License-Identifier: Apache-2.0
"""The layers for PyTorch compute what `torch.nn` computes."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import PackedSequence, pack_sequence  # noqa: E402

import nativeops  # noqa: E402
from nativeops.layers.torch import FUSED, GRU, LSTM, RNN  # noqa: E402

KINDS = {kind.__name__: (kind, fused) for kind, fused in FUSED.items()}
T, B, D, H = 5, 3, 2, 4
F64 = torch.float64


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pair(kind: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    """PyTorch's layer and ours, with the same parameters."""
    theirs, ours = (make(*sizes, **{"dtype": F64, **options}) for make in KINDS[kind])
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def states(kind: str, *shape: int, dtype: Any = F64) -> Any:
    made = tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(2))
    return made if kind == "LSTM" else made[0]


def flat(result: Any) -> list[Any]:
    """All tensors of a layer's result or of its initial states."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [] if result is None else [tensor for part in result for tensor in flat(part)]


def check_equal(theirs: Any, ours: Any, x: Any, hx: Any = None, atol: float = 1e-12) -> None:
    """Results and all gradients are the same."""
    gradients = []
    for module in (theirs, ours):
        results = [r for r in flat(module(x, hx)) if r is not None and r.is_floating_point()]
        gradients.append(results)
        if results[0].requires_grad and results[0].numel():
            weights = [torch.linspace(-1, 1, r.numel(), dtype=r.dtype) for r in results]
            total = sum((r.reshape(-1) * w).sum() for r, w in zip(results, weights, strict=True))
            leaves = [leaf for leaf in [*flat(x), *flat(hx)] if leaf.requires_grad]
            found = torch.autograd.grad(total, [*leaves, *module.parameters()])
            gradients[-1] = [*results, *found]
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5 if atol > 1e-9 else 1e-9, atol=atol)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_equals_torch_with_gradients(kind: str, layers: int, bidirectional: bool) -> None:
    n = layers * (1 + bidirectional)
    for options in ({}, {"bias": False}, {"batch_first": True}):
        theirs, ours = pair(kind, D, H, layers, bidirectional=bidirectional, **options)
        shape = (B, T, D) if options.get("batch_first") else (T, B, D)
        x = torch.randn(shape, dtype=F64, requires_grad=True)
        check_equal(theirs, ours, x)
        check_equal(theirs, ours, x, states(kind, n, B, H))
        check_equal(theirs, ours, x[:, 0], states(kind, n, H))  # without a batch


def test_relu_equals_torch() -> None:
    theirs, ours = pair("RNN", D, H, 2, nonlinearity="relu", bidirectional=True)
    check_equal(theirs, ours, torch.randn(T, B, D, dtype=F64, requires_grad=True))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_projections_equal_torch(layers: int, bidirectional: bool) -> None:
    n = layers * (1 + bidirectional)
    for options in ({}, {"bias": False}, {"batch_first": True}, {"low_memory": True}):
        low = options.pop("low_memory", False)
        given = {"bidirectional": bidirectional, "proj_size": 3, **options}
        theirs, ours = pair("LSTM", D, H, layers, **given)
        ours.low_memory = low
        assert list(ours.state_dict()) == list(theirs.state_dict())
        shape = (B, T, D) if options.get("batch_first") else (T, B, D)
        x = torch.randn(shape, dtype=F64, requires_grad=True)
        hx = tuple(torch.randn(n, B, size, dtype=F64, requires_grad=True) for size in (3, H))
        check_equal(theirs, ours, x)
        check_equal(theirs, ours, x, hx)
        check_equal(theirs, ours, x[:, 0], tuple(state[:, 0] for state in hx))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 2, 1), (7, 1, 3, 17, 16), (2, 9, 5, 800, 300)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_projections_of_all_sizes_equal_torch(sizes: tuple[int, ...], dtype: str) -> None:
    steps, batch, inputs, units, projected = sizes
    kind = getattr(torch, dtype)
    theirs, ours = pair("LSTM", inputs, units, bidirectional=True, dtype=kind, proj_size=projected)
    x = torch.randn(steps, batch, inputs, dtype=kind, requires_grad=True)
    check_equal(theirs, ours, x, atol=2e-5 if dtype == "float32" else 1e-12)


def test_packed_sequences_with_projections_equal_torch() -> None:
    theirs, ours = pair("LSTM", D, H, 2, bidirectional=True, proj_size=2)
    check_packed(theirs, ours, pack_sequence(sequences(2, 5, 1, 4), enforce_sorted=False))


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])  # RNN keeps nothing but its outputs anyway
def test_low_memory_computes_the_same_and_is_kept(kind: str) -> None:
    theirs, ours = pair(kind, D, H, 2, bidirectional=True)
    low = KINDS[kind][1](D, H, 2, bidirectional=True, dtype=F64, low_memory=True)
    low.load_state_dict(theirs.state_dict())
    x = torch.randn(T, B, D, dtype=F64, requires_grad=True)
    check_equal(theirs, low, x)
    sizes = [kept_numbers(module, x) for module in (low, ours)]
    # Of two layers in two directions: four blocks of each step, or both biases.
    biases = sum(w.numel() for name, w in low.named_parameters() if "bias" in name)
    assert sizes[1] - sizes[0] == 4 * T * B * 4 * H - biases
    assert repr(low) == repr(ours)[:-1] + ", low_memory=True)"
    for other in (copy.deepcopy(low), pickle.loads(pickle.dumps(low))):
        assert other.low_memory


def kept_numbers(module: Any, x: Any) -> int:
    """How many numbers autograd keeps."""
    sizes: dict[int, int] = {}
    count = lambda t: (sizes.update({t.data_ptr(): t.numel()}), t)[1]  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        module(x)
    return sum(sizes.values())


def sequences(*lengths: int) -> list[Any]:
    return [torch.randn(length, D, dtype=F64, requires_grad=True) for length in lengths]


@pytest.mark.parametrize("lengths", [(5, 3, 3, 1), (2, 5, 1, 4), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_equal_torch(
    kind: str, lengths: tuple[int, ...], bidirectional: bool
) -> None:
    theirs, ours = pair(kind, D, H, 2, bidirectional=bidirectional)
    in_order = list(lengths) == sorted(lengths, reverse=True)
    packed = pack_sequence(sequences(*lengths), enforce_sorted=in_order)
    check_packed(theirs, ours, packed)
    check_packed(theirs, ours, packed, states(kind, 2 * (1 + bidirectional), len(lengths), H))


def check_packed(theirs: Any, ours: Any, packed: PackedSequence, hx: Any = None) -> None:
    leaf = packed.data.detach().requires_grad_()
    layers = [
        lambda data, hx, module=module: module(packed._replace(data=data), hx)
        for module in (theirs, ours)
    ]
    for layer, module in zip(layers, (theirs, ours), strict=True):
        layer.parameters = module.parameters  # type: ignore[attr-defined]
    check_equal(*layers, leaf, hx)
    output = ours(packed, hx)[0]
    assert isinstance(output, PackedSequence)
    for mine, right in zip(output[1:], packed[1:], strict=True):
        assert mine is right or torch.equal(mine, right)


SIZES = [
    (1, 1, 1, 1), (1, 3, 5, 3), (7, 1, 3, 17), (4, 0, 3, 3), (2, 2, 5, 800), (17, 3, 2, 1537),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_sizes_equal_torch(kind: str, sizes: tuple[int, ...], dtype: str) -> None:
    steps, batch, inputs, units = sizes
    theirs, ours = pair(kind, inputs, units, bidirectional=True, dtype=getattr(torch, dtype))
    x = torch.randn(steps, batch, inputs, dtype=getattr(torch, dtype), requires_grad=True)
    check_equal(theirs, ours, x, atol=2e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_float32(kind: str, dtype: Any) -> None:
    exact, ours = pair(kind, D, 17, 2, bidirectional=True, dtype=dtype)
    x, unit = torch.randn(T, B, D).to(dtype), 2.0 ** (-8 if dtype is torch.bfloat16 else -11)
    results = flat(ours(x))
    for found, expected in zip(results, flat(exact.float()(x.float())), strict=True):
        assert found.dtype is dtype
        # Each of both layers rounds its outputs; sums are kept in float32.
        assert (found.float() - expected).abs().max() < 4 * unit


def test_gradients_equal_finite_differences(kind: str) -> None:
    ours = KINDS[kind][1](2, 3, 2, bidirectional=True, dtype=F64)
    x = torch.randn(3, 2, 2, dtype=F64, requires_grad=True)
    hx = states(kind, 4, 2, 3)

    def call(x: Any, *rest: Any) -> Any:
        given = tuple(rest[: len(flat(hx))])
        names = [name for name, _ in ours.named_parameters()]
        weights = dict(zip(names, rest[len(given) :], strict=True))
        hidden = given if kind == "LSTM" else given[0]
        return tuple(flat(torch.func.functional_call(ours, weights, (x, hidden))))

    assert torch.autograd.gradcheck(call, (x, *flat(hx), *ours.parameters()), fast_mode=True)


def test_sequences_of_no_step_keep_the_state(kind: str) -> None:
    ours, hx = KINDS[kind][1](D, H, 2, dtype=F64), states(kind, 2, B, H)
    output, final = ours(torch.zeros(0, B, D, dtype=F64), hx)
    assert output.shape == (0, B, H)
    for found, expected in zip(flat(final), flat(hx), strict=True):
        assert torch.equal(found, expected)


def test_nan_stays_in_its_own_sequence(kind: str) -> None:
    ours = KINDS[kind][1](D, 17, 2, bidirectional=True)
    x = torch.randn(T, B, D)
    clean = flat(ours(x))
    x[2, 1] = torch.nan
    others = [0, 2]
    for found, expected in zip(flat(ours(x)), clean, strict=True):
        assert torch.equal(found[:, others], expected[:, others])
    assert ours(x)[0][:, 1].isnan().all()


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_inputs_give_finite_results_and_gradients(kind: str, size: float) -> None:
    ours = KINDS[kind][1](D, 17, 2)
    x = torch.full((T, B, D), size, requires_grad=True)
    results = flat(ours(x))
    sum(r.sum() for r in results).backward()
    for tensor in (*results, x.grad, *(w.grad for w in ours.parameters())):
        assert tensor.isfinite().all()


# How weights are read depends on the number of rows, and so does the order of a sum.
@pytest.mark.parametrize("steps", [1, T, 60])
def test_batch_equals_its_sequences_alone(kind: str, steps: int) -> None:
    ours, x = KINDS[kind][1](D, 17, 2, bidirectional=True), torch.randn(steps, 9, D)
    together = flat(ours(x))
    for b in range(9):
        for found, expected in zip(flat(ours(x[:, b : b + 1])), together, strict=True):
            torch.testing.assert_close(found[:, 0], expected[:, b], rtol=1e-6, atol=5e-7)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads(), nativeops.get_num_threads()

    def use(n: int) -> None:
        torch.set_num_threads(n)
        nativeops.set_num_threads(n)

    yield use
    torch.set_num_threads(before[0])
    nativeops.set_num_threads(before[1])


def test_results_do_not_depend_on_threads(kind: str, threads: Callable[[int], None]) -> None:
    ours = KINDS[kind][1](20, 100, 2, bidirectional=True, dropout=0.5)
    x = torch.randn(6, 7, 20, requires_grad=True)
    found = []
    for n in (1, 2, 3):
        threads(n)
        torch.manual_seed(1)
        results = flat(ours(x))
        total = sum(r.square().sum() for r in results)
        found.append([*results, *torch.autograd.grad(total, [x, *ours.parameters()])])
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


def test_parameters_start_as_those_of_torch(kind: str) -> None:
    made = []
    for make in KINDS[kind]:
        torch.manual_seed(3)
        made.append(make(D, H, 2, bidirectional=True))
    theirs, ours = (module.state_dict() for module in made)
    assert list(theirs) == list(ours)
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    made[0].load_state_dict(ours)
    assert repr(made[0]) == repr(made[1])


def test_pickled_copied_and_flattened_layers_compute_the_same(kind: str) -> None:
    ours, x = KINDS[kind][1](D, H, 2, bidirectional=True), torch.randn(T, B, D)
    ours.flatten_parameters()
    expected, file = ours(x)[0], io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (
        pickle.loads(pickle.dumps(ours)),
        copy.deepcopy(ours),
        torch.load(file, weights_only=False),
    ):
        assert torch.equal(other(x)[0], expected)
        other.weight_hh_l0.data.zero_()
        assert torch.equal(ours(x)[0], expected), "the copy shares memory"


def test_a_changed_weight_is_seen(kind: str) -> None:
    theirs, ours = pair(kind, D, H)
    x = torch.randn(T, B, D, dtype=F64)
    ours(x)
    for module in (theirs, ours):
        module.weight_hh_l0 = torch.nn.Parameter(torch.ones_like(module.weight_hh_l0))
        module.bias_ih_l0.data.fill_(0.5)
    check_equal(theirs, ours, x)


def test_conversion_and_devices(kind: str) -> None:
    ours = KINDS[kind][1](D, H, device="meta")
    assert ours(torch.zeros(T, B, D, device="meta"))[0].shape == (T, B, H)
    ours = ours.to_empty(device="cpu").double()
    ours.reset_parameters()
    assert ours(torch.zeros(T, B, D, dtype=F64))[0].dtype is F64


def test_dropout_follows_from_the_state_of_torchs_generator(kind: str) -> None:
    ours, x = KINDS[kind][1](D, 50, 3, dropout=0.5), torch.randn(T, B, D)
    state = torch.get_rng_state()
    first, second = ours(x)[0], ours(x)[0]
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(ours(x)[0], first)
    assert torch.equal(ours(x)[0], second)
    again = torch.utils.checkpoint.checkpoint(lambda x: ours(x)[0].sum(), x, use_reentrant=False)
    again.backward()
    ours.eval()
    state = torch.get_rng_state()
    assert torch.equal(ours(x)[0], ours(x)[0])
    assert torch.equal(torch.get_rng_state(), state), "inference takes random numbers"


def test_dropout_of_all_leaves_only_biases_as_in_torch(kind: str) -> None:
    theirs, ours = pair(kind, D, H, 2, dropout=1.0)
    check_equal(theirs, ours, torch.randn(T, B, D, dtype=F64, requires_grad=True))


def test_positional_arguments_are_those_of_torch() -> None:
    assert RNN(D, H, 2, "relu", False).nonlinearity == "relu"
    for make in (GRU, LSTM):
        made = make(D, H, 2, False, True, 0.25, True)
        assert (made.bias, made.batch_first, made.dropout, made.bidirectional) == (
            False, True, 0.25, True,
        )  # fmt: skip


@pytest.mark.parametrize("layers", [1, 2])
def test_final_states_can_be_detached_in_place_for_the_next_piece(kind: str, layers: int) -> None:
    theirs, ours = pair(kind, D, H, layers)
    x, found = torch.randn(T, B, D, dtype=F64), []
    for module in (theirs, ours):
        hx = None
        for _ in range(2):
            output, hx = module(x, hx)
            output.sum().backward()
            for state in flat(hx):
                state.detach_()
        found.append([*flat(hx), *(w.grad for w in module.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_numbers_of_both_kinds_of_states_of_lstm() -> None:
    _, ours = pair("LSTM", D, H)
    x = torch.zeros(T, B, D, dtype=F64)
    h = torch.randn(1, B, H, dtype=F64)
    zero = torch.zeros_like(h)
    assert not np.allclose(ours(x, (h, zero))[0].detach(), ours(x, (zero, h))[0].detach())


def test_precision_is_kept_and_reaches_the_op(kind: str) -> None:
    ours, x = KINDS[kind][1](D, H, precision="high"), torch.randn(T, B, D)
    plain = KINDS[kind][1](D, H)
    plain.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x)[0], plain(x)[0], rtol=0, atol=1e-4)
    assert repr(ours) == repr(plain).replace(")", ", precision=high)")
    again = pickle.loads(pickle.dumps(ours))
    assert again.precision == "high"
    again.precision = "low"
    text = r"`precision` must be one of \['default', 'highest', 'high'\], but is 'low'"
    with pytest.raises(ValueError, match=text):
        again(x)
    with pytest.raises(ValueError, match=f"{type(ours).__name__}: {text}"):
        KINDS[kind][1](D, H, precision="low")


def test_parameters_may_be_given_in_another_dtype_for_a_call(kind: str) -> None:
    theirs, ours = pair(kind, D, H, dtype=torch.float32)
    lowered = {name: weight.bfloat16() for name, weight in theirs.named_parameters()}
    x = torch.randn(T, B, D).bfloat16()
    found, expected = (
        torch.func.functional_call(layer, lowered, (x,))[0] for layer in (ours, theirs)
    )
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
