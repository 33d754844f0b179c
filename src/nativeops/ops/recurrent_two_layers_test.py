# SPDX-License-Identifier: Apache-2.0
"""Two layers are the layer twice: to the last bit, at any size, for any number of threads."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nativeops import get_num_threads, set_num_threads
from nativeops.errors import RangeError, ShapeError
from nativeops.registry import find

LAYERS = ["rnn_layer", "gru_layer", "lstm_layer", "lstm_projected_layer"]
# Computed at once by two threads: of few rows and of many, in chunks that end with one step; with
# inputs that take longer than the second layer. Then what is too large for that, and too short.
SIZES = {
    "alone": {"t": 61, "b": 1, "i": 64, "h": 64},
    "few": {"t": 22, "b": 1, "i": 160, "h": 130},
    "several": {"t": 40, "b": 3, "i": 9, "h": 33},
    "batch": {"t": 17, "b": 50, "i": 20, "h": 17},
    "large": {"t": 20, "b": 40, "i": 70, "h": 96},
    "short": {"t": 3, "b": 2, "i": 5, "h": 7},
}


WORDS: list[dict[str, Any]] = [
    {},
    {"reverse": True},
    {"low_memory": True},
    {"precision": "high"},
    {"linear_before_reset": False},
    {"activation": "relu"},
]
CASES = [
    (name, words)
    for name in LAYERS
    for words in WORDS
    if words.keys() <= {spec.name for spec in find(name).signature.attributes}
]


def _example(name: str, size: str, dtype: str = "float32") -> tuple[Any, dict[str, Any]]:
    two = find(f"two_{name}s")
    given = SIZES[size] | ({"p": 11} if "projected" in name else {})
    arrays = two.make_example(np.random.default_rng(3), given)
    if size in ("alone", "few"):
        arrays["lengths"][:] = given["t"]
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    floats = {name: a.astype(own) for name, a in arrays.items() if name != "lengths"}
    return two, floats | {"lengths": arrays["lengths"]}


def _made(op: Any, arrays: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    """All that an op makes."""
    names = [spec.name for spec in op.signature.outputs]
    made = op.only(names)(**{s.name: arrays.get(s.name) for s in op.signature.inputs}, **attributes)
    return {name: getattr(made, name) for name in names}


def _one_after_the_other(op: Any, arrays: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    """What two calls of the op of one layer make."""
    twice, known = op.twice, {**arrays}
    for place in (1, 0) if twice.backwards else (0, 1):
        inputs = {
            s.name: known.get(twice.names(s.name)[place]) for s in twice.layer.signature.inputs
        }
        made = _made(twice.layer, inputs, **attributes)
        known |= {twice.names(name)[place]: array for name, array in made.items()}
    return known


@pytest.fixture(params=[1, 2, 3])
def _threads(request: pytest.FixtureRequest) -> Any:
    before = get_num_threads()
    set_num_threads(request.param)
    yield
    set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("name", "words"), CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("size", SIZES)
def test_two_layers_have_the_bits_of_each(
    name: str, size: str, dtype: str, words: dict[str, Any]
) -> None:
    two, arrays = _example(name, size, dtype)
    grad = find(f"{two.name}_grad")
    attributes = dict(words)
    made = _made(two, arrays, **attributes)
    wanted = _one_after_the_other(two, arrays, **attributes)
    for field, array in made.items():
        assert np.array_equal(array, wanted[field]), field
    known = arrays | made
    known |= {f"d_{name}": np.sin(array).astype(array.dtype) for name, array in made.items()}
    if attributes.pop("low_memory", False):
        known |= {"gates": None, "gates_next": None}
    grads = _made(grad, known, **attributes)
    wanted = _one_after_the_other(grad, known, **attributes)
    for field, array in grads.items():
        assert np.array_equal(array, wanted[field]), field


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_left_out_is_left_out_of_that_layer(name: str) -> None:
    two, arrays = _example(name, "several")
    required = [spec.name for spec in two.signature.inputs if not spec.optional]
    given = {name: arrays[name] for name in required}
    more = {name: arrays[name] for name in ("h_0_next", "b_ih_next", "b_hh") if name in arrays}
    for arrays in (given, given | more):
        made, wanted = _made(two, arrays), _one_after_the_other(two, arrays)
        for field, array in made.items():
            assert np.array_equal(array, wanted[field]), field


def _gradient(name: str) -> tuple[Any, dict[str, Any]]:
    """The op of a gradient, and arguments of it."""
    two, arrays = _example(name, "several")
    made = _made(two, arrays)
    known = arrays | made | {f"d_{name}": np.cos(array) for name, array in made.items()}
    grad = find(f"{two.name}_grad")
    return grad, {s.name: known[s.name] for s in grad.signature.inputs}


@pytest.mark.parametrize(
    "wanted", [["d_w_hh_next"], ["d_h_0"], ["d_x"], ["d_w_ih", "d_h_0_next"]], ids=str
)
@pytest.mark.parametrize("name", LAYERS)
def test_only_what_is_wanted_is_made(name: str, wanted: list[str]) -> None:
    grad, given = _gradient(name)
    every, some = grad(**given), grad.only(wanted)(**given)
    for field in every._fields:
        if field in wanted:
            assert np.array_equal(getattr(some, field), getattr(every, field))
        else:
            assert getattr(some, field) is None


@pytest.mark.parametrize("name", LAYERS)
def test_results_of_inference_are_those_that_are_kept(name: str) -> None:
    two, arrays = _example(name, "alone")
    plain, made = two(**arrays), _made(two, arrays)
    assert plain.between is None
    assert np.array_equal(plain.output, made["output"])
    assert np.array_equal(plain.h_n_next, made["h_n_next"])


def test_nan_stays_in_its_sequence() -> None:
    two, arrays = _example("lstm_layer", "several")
    arrays["lengths"][:] = 40
    whole = two(**arrays).output
    arrays["x"][20, 1] = np.nan
    some = two(**arrays).output
    assert np.isnan(some[20:, 1]).all()
    assert np.array_equal(some[:20], whole[:20])
    assert np.array_equal(some[:, [0, 2]], whole[:, [0, 2]])


def test_mistakes_name_the_layer() -> None:
    two, arrays = _example("gru_layer", "several")
    with pytest.raises(ShapeError, match="`w_hh_next`"):
        two(**arrays | {"w_hh_next": arrays["w_hh_next"][:, :-1]})
    with pytest.raises(ShapeError, match="`w_ih_next`"):  # the outputs of the first are 33
        two(**arrays | {"w_ih_next": arrays["w_ih"]})
    for _ in range(20):  # neither layer waits for the other for ever
        with pytest.raises(RangeError, match=r"`lengths\[0\]`"):
            two(**arrays | {"lengths": arrays["lengths"] + 41})
