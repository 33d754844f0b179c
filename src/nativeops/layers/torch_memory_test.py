# SPDX-License-Identifier: Apache-2.0
"""The layers for PyTorch: what they make and what they leave, in memory and in random numbers."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from nativeops.call import Op  # noqa: E402
from nativeops.layers.torch import FUSED, LSTM  # noqa: E402

KINDS = {fused.__name__: fused for fused in FUSED.values()}
T, B, D, H = 40, 30, 200, 8


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def flat(result: Any) -> list[Any]:
    """All tensors of a result."""
    return [result] if torch.is_tensor(result) else [t for part in result for t in flat(part)]


def made_bytes(call: Any) -> int:
    """The bytes of all tensors that a call makes."""
    call()
    with torch.autograd.profiler.profile(profile_memory=True) as seen:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in seen.function_events)


@pytest.mark.parametrize("batch_first", [False, True])
def test_inputs_are_not_copied(kind: Any, batch_first: bool) -> None:
    layer = kind(D, H, batch_first=batch_first)
    x = torch.randn((B, T, D) if batch_first else (T, B, D))
    results = 4 * B * H * (T + 4)  # outputs, and states as a stack and alone
    with torch.no_grad():
        assert made_bytes(lambda: layer(x)) <= results < x.nbytes / 10


def test_inputs_are_not_copied_for_the_gradient_either(kind: Any) -> None:
    layer = kind(D, H, batch_first=True)
    x = torch.randn(B, T, D)
    assert made_bytes(lambda: layer(x)[0].sum().backward()) < x.nbytes


def kept_numbers(call: Any) -> int:
    """How many numbers a call keeps for the gradient."""
    sizes: list[int] = []
    pack = lambda tensor: (sizes.append(tensor.numel()), tensor)[1]  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(sizes)


def test_frozen_first_layer_keeps_nothing(kind: Any) -> None:
    both, last = kind(D, H, 2), kind(H, H)
    x, between = torch.randn(T, B, D), torch.randn(T, B, H)
    assert kept_numbers(lambda: both(x)) > 1.9 * kept_numbers(lambda: last(between))
    for name, parameter in both.named_parameters():
        parameter.requires_grad_("l1" in name)
    assert kept_numbers(lambda: both(x)) == kept_numbers(lambda: last(between))
    assert kept_numbers(lambda: both(x.clone().requires_grad_())) > T * B * D


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The gradients that are asked for."""
    found: list[str] = []
    plain = Op.__call__

    def spy(op: Any, *args: Any, **kwargs: Any) -> Any:
        found.extend(kwargs.get("want") or ())
        return plain(op, *args, **kwargs)

    monkeypatch.setattr(Op, "__call__", spy)
    return found


def test_only_gradients_that_somebody_needs_are_computed(kind: Any, asked: list[str]) -> None:
    layer, x = kind(3, 5), torch.randn(4, 2, 3)
    layer.requires_grad_(False)
    layer(x.requires_grad_())[0].sum().backward()
    assert asked == ["d_x"]
    asked.clear()
    layer.weight_hh_l0.requires_grad_()
    layer(x.detach())[0].sum().backward()
    assert asked == ["d_w_hh"]
    asked.clear()
    layer.requires_grad_()
    layer(x.detach())[0].sum().backward()
    assert "d_x" not in asked
    assert not any(name.endswith("_0") for name in asked)


def test_projection_alone_is_trained(asked: list[str]) -> None:
    layer = LSTM(3, 5, proj_size=2).requires_grad_(False)
    layer.weight_hr_l0.requires_grad_()
    layer(torch.randn(4, 2, 3))[0].sum().backward()
    assert asked == ["d_w_hr"]
    assert layer.weight_hr_l0.grad.abs().sum() > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_draws_the_same_zeros_again(kind: Any, reentrant: bool) -> None:
    layer, x = kind(3, 50, 3, dropout=0.5), torch.randn(4, 2, 3)
    found = []
    for again in (False, True):
        torch.manual_seed(3)
        leaf = x.clone().requires_grad_()
        run = lambda x: layer(x)[0]  # noqa: E731
        if again:
            output = checkpoint(run, leaf, use_reentrant=reentrant, preserve_rng_state=True)
        else:
            output = run(leaf)
        torch.randn(7)  # what draws in between must not matter
        layer.zero_grad()
        output.square().sum().backward()
        found.append([output, leaf.grad, *(w.grad.clone() for w in layer.parameters())])
    assert all(map(torch.equal, *found))


def test_another_state_draws_other_zeros(kind: Any) -> None:
    layer, x = kind(3, 50, 2, dropout=0.5), torch.randn(4, 2, 3)
    outputs = [(torch.manual_seed(seed), layer(x)[0])[1] for seed in (1, 2, 1)]
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])


def changed_before_the_gradient(layer: Any) -> Any:
    """The gradient of the inputs, where the biases change after the outputs are there."""
    x = torch.ones(4, 2, 3, requires_grad=True)
    output = layer(x)[0].sum()
    with torch.no_grad():
        layer.bias_ih_l0.add_(1)
        layer.bias_hh_l0.add_(1)
    return torch.autograd.grad(output, x)[0]


def test_biases_are_kept_only_where_the_gradient_reads_them(kind: Any) -> None:
    layer, x = kind(3, 5), torch.ones(4, 2, 3, requires_grad=True)
    expected = torch.autograd.grad(layer(x)[0].sum(), x)[0]
    assert torch.equal(changed_before_the_gradient(layer), expected)
    if kind is not KINDS["RNN"]:  # of which nothing is kept but the outputs
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            changed_before_the_gradient(kind(3, 5, low_memory=True))


def test_biases_of_a_projected_layer_are_not_kept_either() -> None:
    assert changed_before_the_gradient(LSTM(3, 5, proj_size=2)).isfinite().all()
