# SPDX-License-Identifier: Apache-2.0
"""RETURNN's LSTM ops: their names, orders of arguments, masks that are numbers, signed steps."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import nativeops
from nativeops.compat import returnn
from nativeops.errors import ArgumentError, DtypeError, ShapeError
from nativeops.ops.native_lstm_test import by_steps, check_all, draw, gradients
from nativeops.ops.two_d_lstm_test import cell_by_cell
from nativeops.ops.two_d_lstm_test import draw as draw_grid
from nativeops.testing.arrays import arrays_of

torch = pytest.importorskip("torch")


def drawn() -> dict[str, Any]:
    """Arguments with a mask with holes, as numbers."""
    given = draw(11, 4, 5, 8, "holes")
    given["z"] = given["x"] @ given["w_in"] + given["bias"]
    given = {n: v if n == "mask" else v.requires_grad_() for n, v in given.items()}
    return {**given, "index": given["mask"].float()}


@pytest.mark.parametrize("step", [1, 3, -1, -2])
@pytest.mark.parametrize("start", [0, 2])
def test_steps_have_a_sign(start: int, step: int) -> None:
    g = drawn()
    walk = {"start": start, "stride": abs(step), "reverse": step < 0}
    z = g["x"] @ g["w_in"] + g["bias"]
    output, _, d = by_steps(z, g["w_re"], g["mask"], g["h_0"], g["c_0"], **walk)
    found = returnn.native_lstm2(z, g["w_re"], g["h_0"], g["c_0"], g["index"], start, step)
    check_all(found, (output, d), 1e-12)
    w = torch.cat([g["w_in"], g["w_re"]])
    arguments = g["x"], w, g["bias"], g["h_0"], g["c_0"], g["index"], start, step
    check_all(returnn.lstm_low_mem(*arguments), (output, d), 1e-12)
    wanted = {n: g[n] for n in ("x", "w_in", "w_re", "bias", "h_0", "c_0")}
    own = gradients(returnn.lstm_low_mem(*arguments), wanted)
    check_all(own, gradients((output, d), wanted), 1e-11)


def test_native_lstm_begins_anew_after_a_hole() -> None:
    g = drawn()
    walk = {"start": 0, "stride": 1, "reverse": False}
    zeros = torch.zeros_like(g["h_0"])
    expected = by_steps(g["z"], g["w_re"], g["mask"], zeros, g["c_0"], resets=True, **walk)
    found = returnn.native_lstm(g["z"], g["w_re"], g["c_0"], g["index"])
    check_all(found, (expected[0], expected[2]), 1e-12)


def test_a_step_of_nothing_is_refused() -> None:
    g = drawn()
    with pytest.raises(ArgumentError, match="native_lstm2: `step` is 0"):
        returnn.native_lstm2(g["z"], g["w_re"], g["h_0"], g["c_0"], g["index"], 0, 0)


def test_a_step_that_is_no_integer_is_refused() -> None:
    g = drawn()
    with pytest.raises(DtypeError, match=r"native_lstm2: `step` must be an integer, but is 1.5"):
        returnn.native_lstm2(g["z"], g["w_re"], g["h_0"], g["c_0"], g["index"], 0, 1.5)


def test_sizes_may_be_unknown_to_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    g = {n: v.detach().numpy().astype(np.float32) for n, v in drawn().items()}
    w = np.concatenate([g["w_in"], g["w_re"]])
    given = [tf.constant(v) for v in (g["x"], w, g["bias"], g["h_0"], g["c_0"], g["index"])]
    expected = returnn.lstm_low_mem(*given)
    for ranks in (True, False):
        specs = [tf.TensorSpec([None] * len(v.shape) if ranks else None) for v in given]
        function = tf.function(returnn.lstm_low_mem, input_signature=specs)
        for one, other in zip(function(*given), expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_what_is_empty_is_not_left_away(framework: str) -> None:
    pytest.importorskip(framework)
    place = arrays_of(framework, "cpu").place
    g = {n: place(v.detach().numpy(), "float32").array for n, v in drawn().items()}
    nothing = place(np.zeros((0, 0)), "float32").array
    names = ("z", "w_re", "h_0", "c_0", "index")
    for name in names[2:]:
        given = [nothing if name == each else g[each] for each in names]
        with pytest.raises(ShapeError, match=r"^native_lstm2: axis `[tb]` is \d+ in `x` but 0 in"):
            returnn.native_lstm2(*given)
    w = place(np.zeros((13, 32)), "float32").array
    with pytest.raises(ShapeError, match=r"^lstm_low_mem: axis `t` is 11 in `x` but 0 in `index`"):
        returnn.lstm_low_mem(g["x"], w, g["bias"], g["h_0"], g["c_0"], nothing)
    for cells, index in ((nothing, g["index"]), (g["c_0"], nothing)):
        with pytest.raises(ShapeError, match=r"^native_lstm: axis"):
            returnn.native_lstm(g["z"], g["w_re"], cells, index)
    grid, sizes = (place(np.zeros(shape), "float32").array for shape in ((2, 3, 4, 5), (0, 2)))
    with pytest.raises(ShapeError, match=r"^two_d_lstm: axis `b` is 4 in `x` but 0 in `sizes`"):
        returnn.two_d_lstm(grid, grid, grid, grid, grid, sizes)


def test_weights_with_other_rows_than_inputs_and_state_are_refused() -> None:
    x, state, index = np.ones((5, 3, 8), "f"), np.zeros((3, 2), "f"), np.ones((5, 3), bool)
    text = r"^lstm_low_mem: `w` has 9 rows, but `x` and `y0` have 8 \+ 2 numbers"
    with pytest.raises(ShapeError, match=text):
        returnn.lstm_low_mem(x, np.zeros((9, 8), "f"), np.zeros(8, "f"), state, state, index)


def test_weights_of_another_size_are_told_by_the_names_that_are_given() -> None:
    state, index = np.ones((3, 2), "f"), np.ones((5, 3), bool)
    z, w_re = np.ones((5, 3, 8), "f"), np.ones((2, 8), "f")
    with pytest.raises(
        ShapeError, match=r"^native_lstm2: axis `dim` is 2 in `x` but 3 in `w_re`\.$"
    ):
        returnn.native_lstm2(z, np.ones((3, 8), "f"), state, state, index)
    text = r"^native_lstm: axis `dim` is 2 in `z` but `4\*dim` is 12 in `w_re`\.$"
    with pytest.raises(ShapeError, match=text):
        returnn.native_lstm(z, np.ones((2, 12), "f"), state, index)
    text = r"^native_lstm2: axis `4\*dim` is 9 in `x`, no multiple of 4\.$"
    with pytest.raises(ShapeError, match=text):
        returnn.native_lstm2(np.ones((5, 3, 9), "f"), w_re, state, state, index)
    grid, of_output = np.ones((2, 3, 4, 6), "f"), np.ones((7, 35), "f")
    given = {"v_v": of_output, "w": np.ones((6, 35), "f"), "b": np.ones(35, "f")}
    sizes = np.ones((4, 2), np.int32)
    with pytest.raises(
        ShapeError, match=r"^two_d_lstm: axis `dim` is 8 in `v_h` but 7 in `v_v`\.$"
    ):
        returnn.two_d_lstm(grid, np.ones((8, 40), "f"), **given, sizes=sizes)
    text = r"^two_d_lstm: `sizes` must be \[b, 2\], but has the shape \[4, 3\]\.$"
    with pytest.raises(ShapeError, match=text):
        returnn.two_d_lstm(grid, of_output, **given, sizes=np.ones((4, 3), np.int32))


def test_an_index_that_is_a_list_is_refused() -> None:
    g = drawn()
    text = r"native_lstm2: `index` must be an array \[t, b\], but is list"
    with pytest.raises(ArgumentError, match=text):
        returnn.native_lstm2(g["z"], g["w_re"], g["h_0"], g["c_0"], g["index"].tolist())


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_index_may_be_integers(framework: str) -> None:
    pytest.importorskip(framework)
    place = arrays_of(framework, "cpu").place
    g = {n: place(v.detach().numpy(), "float32").array for n, v in drawn().items()}
    given = [g[name] for name in ("z", "w_re", "h_0", "c_0")]
    expected = returnn.native_lstm2(*given, g["index"])[0]
    numbers = np.asarray(g["index"]) > 0.1
    for dtype in ("int32", "uint8"):
        found = returnn.native_lstm2(*given, place(numbers, dtype).array)[0]
        np.testing.assert_array_equal(found, expected)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
from nativeops.compat import returnn
x = np.ones((2, 1, 4), np.float32)
print(returnn.native_lstm(x, x[0, :, :4], x[0, :, :1], np.ones((2, 1)))[0].shape)
assert not hasattr(returnn, "edit_distance")
"""


def test_it_needs_no_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "(2, 1, 1)\n", done.stderr


def test_two_d_lstm_has_its_sizes_side_by_side() -> None:
    g = draw_grid(4, 5, 3, 2, 7)
    sizes = torch.stack([g["heights"], g["widths"]], 1)
    found = returnn.two_d_lstm(g["x"], g["v_h"], g["v_v"], g["w"], g["bias"], sizes)
    g = {**g, "h_0": torch.zeros_like(g["h_0"]), "c_0": torch.zeros_like(g["c_0"])}
    torch.testing.assert_close(found, cell_by_cell(g)[0])


@pytest.mark.parametrize("framework", ["numpy", "jax", "tensorflow"])
def test_arrays_of_other_frameworks(framework: str) -> None:
    pytest.importorskip(framework)
    g = {n: v.detach().numpy().astype(np.float32) for n, v in drawn().items()}
    names = ("z", "w_re", "h_0", "c_0", "index")
    expected = nativeops.native_lstm2(g["z"], g["w_re"], g["mask"] > 0, g["h_0"], g["c_0"]).output
    if framework == "numpy":
        given = [g[name] for name in names]
    elif framework == "jax":
        import jax.numpy as jnp

        given = [jnp.asarray(g[name]) for name in names]
    else:
        import tensorflow as tf

        given = [tf.constant(g[name]) for name in names]
    np.testing.assert_array_equal(np.asarray(returnn.native_lstm2(*given)[0]), expected)
