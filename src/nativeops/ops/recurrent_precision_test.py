# SPDX-License-Identifier: Apache-2.0
"""`precision` of the recurrent layers: what it changes, where, and by how much at most."""

import copy
import importlib

import numpy as np
import pytest

import nativeops
from nativeops.declare import Array, Float, op
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.ops.recurrent_test import both_ways, check_close, each_kind, each_level
from nativeops.testing import cases, installed
from nativeops.testing.arrays import arrays_of
from nativeops.testing.aspects import levels, num_threads, selected
from nativeops.testing.recurrent import (
    KINDS,
    Kind,
    Values,
    as_dtype,
    draw,
    draw_arriving,
    forward_backward,
    torch_results,
)
from nativeops.testing.tolerance import assert_same

SIZE = (20, 9, 33, 40)
PRESENT = [name for name in FRAMEWORKS if installed(name)]
NAMES = {"lstm": nativeops.lstm, "gru": nativeops.gru, "rnn": nativeops.rnn}


def computed(kind: Kind, given: Values, arriving: Values, level: str, precision: str) -> Values:
    with selected(level):
        return forward_backward(kind, {**given, "precision": precision}, arriving)


@each_kind
@each_level
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_default_is_the_highest(kind: Kind, level: str, dtype: str) -> None:
    given = draw(kind, SIZE, dtype=dtype)
    arriving = draw_arriving(kind, given)
    highest = computed(kind, given, arriving, level, "highest")
    for name, found in computed(kind, given, arriving, level, "default").items():
        assert_same(found, highest[name], f"`{name}`")


@each_kind
@each_level
@both_ways
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_high_without_tiles_is_the_highest(kind: Kind, level: str, reverse: bool, dtype) -> None:
    if level == "amx" and dtype == "float32":
        return
    given = draw(kind, SIZE, dtype=dtype, reverse=reverse)
    arriving = draw_arriving(kind, given)
    highest = computed(kind, given, arriving, level, "highest")
    for name, found in computed(kind, given, arriving, level, "high").items():
        assert_same(found, highest[name], f"`{name}`")


@each_kind
@each_level
@pytest.mark.parametrize("size", [SIZE, (300, 4, 24, 80), (2, 40, 100, 100)], ids=str)
def test_rms_error_of_high_is_at_most_1e_5(kind: Kind, level: str, size) -> None:
    given = draw(kind, size, dtype="float32")
    arriving = draw_arriving(kind, given)
    wide = [as_dtype(values, "float64") for values in (given, arriving)]
    exact = computed(kind, *wide, level, "highest")
    for name, found in computed(kind, given, arriving, level, "high").items():
        scale = max(1.0, float(np.abs(exact[name]).max(initial=0)))
        rms = np.sqrt(np.mean((found - exact[name]) ** 2)) / scale
        assert rms <= 1e-5, f"`{name}`"


# Not relu, whose slope jumps where rounding leads to the other side of 0.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name != "relu"], ids=str)
@each_level
@pytest.mark.parametrize("units", [1, 6, 7, 34, 35])
def test_bfloat16_of_odd_sizes_is_near_float64(kind: Kind, level: str, units: int) -> None:
    pytest.importorskip("torch")
    given = draw(kind, (6, 9, 5, units), dtype="bfloat16")
    arriving = draw_arriving(kind, given)
    wide = [as_dtype(values, "float64") for values in (given, arriving)]
    with selected(level):
        found = forward_backward(kind, given, arriving)
    check_close(found, torch_results(kind, *wide), 0.06)


def apart(values: Values, names: tuple[str, ...]) -> Values:
    """Some arrays with gaps of NaN between the numbers of a row."""

    def spread(array: np.ndarray) -> np.ndarray:
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]

    return {name: spread(v) if name in names else v for name, v in values.items()}


@each_kind
@each_level
@pytest.mark.parametrize("units", [1, 7, 35])
def test_bfloat16_of_odd_units_is_the_same_for_all_threads_and_layouts(
    kind: Kind, level: str, units: int
) -> None:
    given = draw(kind, (9, 7, 5, units), dtype="bfloat16")
    arriving = draw_arriving(kind, given)
    with selected(level):
        first = forward_backward(kind, given, arriving)
        found = forward_backward(kind, apart(given, ("x",)), apart(arriving, ("d_output",)))
        for name, array in first.items():
            assert_same(found[name], array, f"`{name}` of rows with gaps")
        for n in (1, 2, 3):
            with num_threads(n):
                found = forward_backward(kind, given, arriving)
            for name, array in first.items():
                assert_same(found[name], array, f"`{name}` with {n} threads")


# The last word of a gate holds only one of its numbers, and the next gate's follow.
@each_kind
@each_level
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_word_of_bfloat16_leads_to_another_sequence(kind: Kind, level: str, value) -> None:
    given = draw(kind, (9, 7, 5, 35), None, dtype="bfloat16")
    arriving = draw_arriving(kind, given)
    with selected(level):
        first = forward_backward(kind, given, arriving)
        strange, flowing = (copy.deepcopy(some) for some in (given, arriving))
        strange["x"][:, 3], flowing["d_output"][:, 3] = value, value
        found = forward_backward(kind, strange, flowing)
        again = forward_backward(kind, given, arriving)
    for name in ("output", "d_x"):
        mine, before = (np.delete(v[name], 3, 1) for v in (found, first))
        assert_same(mine, before, f"`{name}` of another sequence")
    for name, array in first.items():
        assert_same(again[name], array, f"`{name}` after another call")


@pytest.mark.skipif(levels()[-1] != "amx", reason="this CPU has no AMX, so high is highest")
@each_kind
def test_high_by_tiles_is_not_the_highest(kind: Kind) -> None:
    given = draw(kind, SIZE, dtype="float32")
    arriving = draw_arriving(kind, given)
    one, other = (computed(kind, given, arriving, "amx", word) for word in ("high", "highest"))
    for name in ("output", "d_x", "d_w_ih", "d_w_hh"):
        assert (one[name] != other[name]).any(), name


@pytest.mark.parametrize("framework", PRESENT)
@pytest.mark.parametrize("kind", [*KINDS, *NAMES], ids=str)
def test_unknown_precision_is_explained(kind: Kind | str, framework: str) -> None:
    place = arrays_of(framework, "cpu").place
    x, *weights = (
        place(np.zeros(shape, np.float32), "float32").array
        for shape in ((2, 3, 4), (5 * 12, 4), (5 * 12, 5), (5, 15))
    )
    if isinstance(kind, str) or "w_hr" not in kind.more:
        del weights[2]
    name = kind if isinstance(kind, str) else kind.op.name
    call = NAMES[kind] if isinstance(kind, str) else kind.op
    arguments = [[weights]] if isinstance(kind, str) else weights
    text = rf"^{name}: `precision` must be one of \['default', 'highest', 'high'\], but is 'low'\.$"
    with pytest.raises(ValueError, match=text):
        call(x, *arguments, precision="low")


@pytest.mark.parametrize("name", ["lstm", "lstm_projected", "gru", "rnn"])
def test_gradient_has_the_precision_of_the_layer(name: str, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    module = importlib.import_module(f"nativeops.ops.{name}")
    op, seen = getattr(module, f"{name}_layer_grad"), []
    plain = type(op).__call__

    def watched(called, *arrays, **options):
        if called is op:
            seen.append(options["precision"])
        return plain(called, *arrays, **options)

    monkeypatch.setattr(type(op), "__call__", watched)
    kind = next(k for k in KINDS if k.op.name == f"{name}_layer")
    x = torch.ones(2, 3, 4, requires_grad=True)
    weights = [torch.ones(kind.gates * 5, 4), torch.ones(kind.gates * 5, 5)]
    weights += [torch.ones(5, 5)] if "w_hr" in kind.more else []
    getattr(module, f"{name}_layer")(x, *weights, precision="high").output.sum().backward()
    assert seen == ["high"]


def test_the_matrix_allows_high_what_three_products_leave_out_and_nothing_else() -> None:
    layer = importlib.import_module("nativeops.ops.lstm").lstm_layer
    spec, reference = layer.signature.outputs[0], np.ones((5, 3, 2))

    def allowed(precision: str) -> float:
        wanted = (
            case
            for case in cases(layer, "numpy", "cpu")
            if case.dtypes["Float"] == "float32" and case.attributes["precision"] == precision
        )
        return float(next(wanted).tolerance(spec, reference).max())

    assert 100 < allowed("high") / allowed("default") < 200
    assert allowed("highest") == allowed("default")


def test_rounding_names_an_attribute() -> None:
    declared = op(kernel="none.h", rounding={("precise", "high"): 1e-5})

    def f(x: Float[Array, "n"], *, precision: int = 0) -> Float[Array, "n"]:
        return x

    with pytest.raises(TypeError, match="f: `rounding` names no attribute `precise`"):
        declared(f)
