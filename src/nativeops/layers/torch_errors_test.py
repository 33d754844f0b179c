# SPDX-License-Identifier: Apache-2.0
"""The layers for PyTorch say what `torch.nn` says where something is wrong."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_sequence  # noqa: E402

from nativeops.errors import DtypeError  # noqa: E402
from nativeops.layers.torch import FUSED, LSTM  # noqa: E402

KINDS = {kind.__name__: (kind, fused) for kind, fused in FUSED.items()}
T, B, D, H = 5, 3, 2, 4


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


X = (T, B, D)
MISTAKES: dict[str, Callable[[Any], Any]] = {
    "4 axes": lambda m: m(torch.zeros(1, *X)),
    "1 axis": lambda m: m(torch.zeros(D)),
    "another width": lambda m: m(torch.zeros(T, B, D + 1)),
    "another dtype": lambda m: m(torch.zeros(X, dtype=torch.float64)),
    "state without a batch": lambda m: m(torch.zeros(X), of(m, H)),
    "state with a batch": lambda m: m(torch.zeros(T, D), of(m, 1, B, H)),
    "state of another batch": lambda m: m(torch.zeros(X), of(m, 1, B + 1, H)),
    "state of more layers": lambda m: m(torch.zeros(X), of(m, 2, B, H)),
    "packed of another width": lambda m: m(pack_sequence([torch.zeros(3, D + 1)])),
}
WRONG: dict[str, dict[str, Any]] = {
    "negative dropout": {"dropout": -0.1},
    "too much dropout": {"dropout": 1.5},
    "no layer": {"num_layers": 0},
    "no unit": {"hidden_size": 0},
    "no input": {"input_size": 0},
    "a number for a flag": {"batch_first": 1},
    "a fraction": {"hidden_size": 2.5},
}


def of(module: Any, *shape: int) -> Any:
    return (torch.zeros(shape),) * 2 if "LSTM" in type(module).__name__ else torch.zeros(shape)


def error_of(call: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises((RuntimeError, ValueError, TypeError)) as raised:
        call()
    return raised.type, str(raised.value)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained_as_by_torch(kind: str, mistake: str) -> None:
    theirs, ours = (make(D, H) for make in KINDS[kind])
    if kind == "LSTM" and "packed" in mistake:
        theirs = torch.nn.GRU(D, H)  # PyTorch's LSTM fails in its kernel
    assert error_of(lambda: MISTAKES[mistake](ours)) == error_of(lambda: MISTAKES[mistake](theirs))


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_arguments_are_explained_as_by_torch(kind: str, mistake: str) -> None:
    given = {"input_size": D, "hidden_size": H, **WRONG[mistake]}
    theirs, ours = (error_of(lambda make=make: make(**given)) for make in KINDS[kind])
    assert ours == theirs


def test_three_states_of_an_lstm_are_refused_as_by_torch() -> None:
    states = (torch.zeros(1, B, H),) * 3
    theirs, ours = (error_of(lambda m=m: m(D, H)(torch.zeros(X), states)) for m in KINDS["LSTM"])
    assert ours == theirs


def test_one_layer_with_dropout_warns_as_torch() -> None:
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        LSTM(D, H, dropout=0.5)


def test_unknown_nonlinearity_is_explained_as_by_torch() -> None:
    theirs, ours = (error_of(lambda m=m: m(D, H, nonlinearity="selu")) for m in KINDS["RNN"])
    assert ours == theirs


@pytest.mark.parametrize("size", [H, H + 1, -1])
def test_wrong_projections_are_explained_as_by_torch(size: Any) -> None:
    theirs, ours = (error_of(lambda m=m: m(D, H, proj_size=size)) for m in KINDS["LSTM"])
    assert ours == theirs


@pytest.mark.parametrize("kind", ["GRU", "RNN"])
def test_projections_of_other_layers_are_refused_as_by_torch(kind: str) -> None:
    theirs, ours = (error_of(lambda m=m: m(D, H, proj_size=2)) for m in KINDS[kind])
    assert ours == theirs


def test_states_of_projected_layers_are_checked_as_by_torch() -> None:
    for shapes in (((1, B, H), (1, B, H)), ((1, B, 2), (1, B, 2)), ((2, B, 2), (2, B, H))):
        states = tuple(map(torch.zeros, shapes))
        theirs, ours = (
            error_of(lambda m=m, given=states: m(D, H, proj_size=2)(torch.zeros(X), given))
            for m in KINDS["LSTM"]
        )
        assert ours == theirs


def test_unknown_arguments_are_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sparse'"):
        KINDS[kind][1](D, H, sparse=True)


# What PyTorch accepts, or refuses by errors that name no argument.
UNCLEAR = {
    "`dropout` must be float, but is 'a'.": {"dropout": "a"},
    "`dropout` must be float, but is None.": {"dropout": None},
    "`num_layers` must be int, but is '2'.": {"num_layers": "2"},
    "`num_layers` must be int, but is 1.5.": {"num_layers": 1.5},
    "`bidirectional` must be bool, but is None.": {"bidirectional": None},
    "`bidirectional` must be bool, but is 1.": {"bidirectional": 1},
    "`low_memory` must be bool, but is 'no'.": {"low_memory": "no"},
    "`proj_size` must be int, but is 0.5.": {"proj_size": 0.5},
}


@pytest.mark.parametrize("text", UNCLEAR)
def test_arguments_that_torch_does_not_explain_are_named(kind: str, text: str) -> None:
    if "proj_size" in text or "low_memory" in text:
        kind = "LSTM"  # which has both
    found = error_of(lambda: KINDS[kind][1](D, H, **UNCLEAR[text]))
    assert found == (DtypeError, f"{kind}: {text}")


def test_integers_of_numpy_are_sizes_as_in_torch() -> None:
    numpy = pytest.importorskip("numpy")
    layer = LSTM(D, H, num_layers=numpy.int64(2), dropout=numpy.float32(0.5))
    assert (layer.num_layers, layer.dropout) == (2, 0.5)


def test_autocast_makes_no_numbers_of_integers(kind: str) -> None:
    ids = torch.ones(T, B, D, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(DtypeError, match="int64"):
        KINDS[kind][1](D, H)(ids)
