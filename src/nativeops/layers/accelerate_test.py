# SPDX-License-Identifier: Apache-2.0
"""accelerate swaps the recurrent layers of a model in place, and says so."""

import copy
import subprocess
import sys
from typing import Any

import pytest

import nativeops
from nativeops.errors import ArgumentError

torch = pytest.importorskip("torch")

from nativeops.layers.torch import GRU, LSTM, RNN  # noqa: E402

LAYERS = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}


def model() -> Any:
    made = torch.nn.ModuleDict({name: getattr(torch.nn, name)(3, 4) for name in LAYERS})
    made["relu"] = torch.nn.RNN(3, 4, nonlinearity="relu")
    made["nested"] = torch.nn.Sequential(torch.nn.Linear(3, 3), made["LSTM"])
    return made


def test_layers_are_swapped_and_named() -> None:
    ours = model()
    report = nativeops.accelerate(ours)
    assert report.swapped == ["RNN", "GRU", "LSTM", "relu"]
    assert not report.left
    assert str(report) == "swapped RNN\nswapped GRU\nswapped LSTM\nswapped relu"
    assert {name: type(ours[name]) for name in LAYERS} == LAYERS
    assert ours["nested"][1] is ours["LSTM"], "a shared layer is no longer shared"


def test_swapped_layers_compute_the_same_and_remain_what_they_were() -> None:
    ours, theirs = model().double(), None
    theirs, x, called = copy.deepcopy(ours), torch.randn(5, 2, 3).double(), []
    ours["GRU"].register_forward_hook(lambda *_: called.append("hook"))
    ours["LSTM"].eval().weight_hh_l0.requires_grad_(False)
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)
    before = {name: (id(w), w.requires_grad) for name, w in ours.named_parameters()}
    nativeops.accelerate(ours)
    assert {name: (id(w), w.requires_grad) for name, w in ours.named_parameters()} == before
    assert [module.training for module in ours.values()][:4] == [True, True, False, True]
    for name in (*LAYERS, "relu"):
        torch.testing.assert_close(ours[name](x)[0], theirs[name](x)[0])
    assert called == ["hook"]
    ours["LSTM"](x)[0].sum().backward()
    optimizer.step()
    changed = ours["LSTM"].weight_ih_l0, theirs["LSTM"].weight_ih_l0
    assert not torch.equal(*changed), "the optimizer does not know the parameters"
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours["LSTM"](x)[0], theirs["LSTM"](x)[0])


def test_what_is_left_has_a_reason() -> None:
    class Own(torch.nn.LSTM):
        pass

    ours = torch.nn.ModuleDict(
        {
            "own": Own(3, 4),
            "fused": GRU(3, 4),
            "cell": torch.nn.LSTMCell(3, 4),
            "complex": torch.nn.LSTM(3, 4, dtype=torch.complex64),
        }
    )
    report = nativeops.accelerate(ours)
    assert not report.swapped
    assert str(report).splitlines() == [
        "left own: its class Own is derived from torch.nn.LSTM",
        "left fused: it is fused already",
        "left complex: it is of complex64, for which there is no kernel",
    ]
    assert type(ours["own"]) is Own


def test_layer_whose_forward_was_replaced_is_left() -> None:
    ours = torch.nn.LSTM(3, 4)
    ours.forward = ours.forward  # as tools do that wrap it
    report = nativeops.accelerate(ours)
    assert str(report) == "left the model itself: its method `forward` was replaced"


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is not supported:DeprecationWarning")
def test_scripted_layers_are_left() -> None:
    report = nativeops.accelerate(torch.nn.Sequential(torch.jit.script(torch.nn.GRU(3, 4))))
    assert report.left == {"0": "it is compiled by TorchScript"}


def test_model_may_be_the_layer_itself() -> None:
    layer = torch.nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
    x = torch.randn(2, 5, 3)
    expected = layer(x)[0]
    assert str(nativeops.accelerate(layer)) == "swapped the model itself"
    assert type(layer) is LSTM
    torch.testing.assert_close(layer(x)[0], expected)


def test_model_without_recurrent_layers_says_so() -> None:
    assert str(nativeops.accelerate(torch.nn.Linear(3, 4))) == "there is no recurrent layer"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"`model` must be a torch.nn.Module, but is int"):
        nativeops.accelerate(3)


def test_torch_is_not_imported_for_it() -> None:
    program = (
        "import sys, nativeops\n"
        "try: nativeops.accelerate(3)\n"
        "except nativeops.errors.ArgumentError: assert 'torch' not in sys.modules\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_precision_is_that_of_all_swapped_layers() -> None:
    ours = model()
    nativeops.accelerate(ours, precision="high")
    assert {ours[name].precision for name in LAYERS} == {"high"}
    with pytest.raises(ValueError, match="accelerate: `precision` must be one of"):
        nativeops.accelerate(ours, precision="low")  # type: ignore[arg-type]
