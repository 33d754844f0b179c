# SPDX-License-Identifier: Apache-2.0
"""two_d_lstm: cell by cell with PyTorch's functions and autograd, which know nothing of ours."""

from typing import Any

import numpy as np
import pytest

from nativeops import two_d_lstm
from nativeops.errors import NativeOpsError, RangeError
from nativeops.ops.native_lstm_test import check_all, gradients
from nativeops.testing.aspects import levels, num_threads, selected

torch = pytest.importorskip("torch")

SIZES = [(1, 1, 1, 1, 1), (4, 6, 3, 5, 7), (7, 3, 5, 2, 17), (1, 9, 2, 3, 33), (9, 1, 2, 3, 16)]
FLOATS = ("x", "w", "v_v", "v_h", "bias", "h_0", "c_0")


def draw(
    t: int, s: int, b: int, i: int, h: int, *, dtype: str = "float64", sizes: bool = True
) -> dict[str, Any]:
    """Arguments; heights and widths from 0 to those of the grid."""
    random = np.random.default_rng(t * s + h)
    shapes = {"x": (t, s, b, i), "w": (i, 5 * h), "v_v": (h, 5 * h), "v_h": (h, 5 * h)}
    shapes |= {"bias": (5 * h,), "h_0": (s, b, h), "c_0": (s, b, h)}
    given = {name: random.uniform(-1, 1, shape) for name, shape in shapes.items()}
    for name in ("v_v", "v_h"):
        given[name] /= np.sqrt(h)
    made = {n: torch.from_numpy(a.astype("float32" if dtype != "float64" else dtype))
            for n, a in given.items()}  # fmt: skip
    made = {n: a.to(getattr(torch, dtype)).requires_grad_() for n, a in made.items()}
    if sizes:
        made["heights"] = torch.from_numpy(random.integers(0, t + 1, b).astype(np.int32))
        made["widths"] = torch.from_numpy(random.integers(0, s + 1, b).astype(np.int32))
    return made


def cell_by_cell(given: dict[str, Any]) -> list[Any]:
    """The definition, for one cell of one sequence after the other."""
    x, (time, width, batch, _) = given["x"], given["x"].shape
    outputs, last = torch.zeros(time, width, batch, *given["h_0"].shape[2:], dtype=x.dtype), []
    heights = given.get("heights", torch.full((batch,), time)).tolist()
    widths = given.get("widths", torch.full((batch,), width)).tolist()
    for b in range(batch):
        h = {(-1, s): given["h_0"][s, b] for s in range(width)}
        c = {(-1, s): given["c_0"][s, b] for s in range(width)}
        zero = torch.zeros_like(given["h_0"][0, 0])
        for t in range(heights[b]):
            for s in range(widths[b]):
                above, left = h[t - 1, s], h.get((t, s - 1), zero)
                z = x[t, s, b] @ given["w"] + given["bias"]
                z = z + above @ given["v_v"] + left @ given["v_h"]
                i, f, lam, o, g = z.chunk(5)
                i, f, lam, o = (torch.sigmoid(gate) for gate in (i, f, lam, o))
                before = lam * c[t - 1, s] + (1 - lam) * c.get((t, s - 1), zero)
                c[t, s] = f * before + i * torch.tanh(g)
                h[t, s] = o * torch.tanh(c[t, s])
                outputs = outputs.index_put(
                    (torch.tensor(t), torch.tensor(s), torch.tensor(b)), h[t, s]
                )
        last.append([
            torch.stack([e[heights[b] - 1, s] if s < widths[b] else zero for s in range(width)])
            for e in (h, c)
        ])  # fmt: skip
    return [outputs, *(torch.stack([pair[n] for pair in last], 1) for n in range(2))]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("ragged", [False, True])
def test_is_its_definition(level: str, sizes: tuple[int, ...], ragged: bool) -> None:
    given = draw(*sizes, sizes=ragged)
    expected = cell_by_cell(given)
    with selected(level):
        found = two_d_lstm(**given)[:3]
        check_all(found, expected, 1e-12)
        check_all(gradients(found, given), gradients(expected, given), 1e-11)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.06)])
def test_other_dtypes(level: str, dtype: str, tolerance: float) -> None:
    given = draw(5, 4, 3, 6, 20, dtype=dtype)
    exact = {n: v.detach().double() if n in FLOATS else v for n, v in given.items()}
    exact = {n: v.requires_grad_() if n in FLOATS else v for n, v in exact.items()}
    expected = cell_by_cell(exact)
    with selected(level):
        found = two_d_lstm(**given)[:3]
        check_all(found, expected, tolerance)
        check_all(gradients(found, given), gradients(expected, exact), 8 * tolerance)


@pytest.mark.parametrize("level", levels())
def test_rows_one_by_one_give_the_same(level: str) -> None:
    given = draw(6, 5, 3, 4, 9, sizes=False)
    given["widths"] = torch.tensor([5, 2, 0], dtype=torch.int32)
    whole = two_d_lstm(**given)
    x, states, rows = given.pop("x"), {n: given.pop(n) for n in ("h_0", "c_0")}, []
    with selected(level):
        for row in x:
            output, h_n, c_n = two_d_lstm(row[None], **given, **states)[:3]
            states = {"h_0": h_n, "c_0": c_n}
            rows.append(output)
    check_all([torch.cat(rows), *states.values()], whole[:3], 1e-13)


def test_left_away_they_are_whole_and_zero() -> None:
    given = draw(3, 4, 2, 3, 5, sizes=False)
    zeros = {name: torch.zeros_like(given.pop(name)) for name in ("h_0", "c_0")}
    sizes = {"heights": torch.full((2,), 3).int(), "widths": torch.full((2,), 4).int()}
    check_all(two_d_lstm(**given)[:3], two_d_lstm(**given, **zeros, **sizes)[:3], 0)


@pytest.mark.parametrize("level", levels())
def test_what_lies_outside_is_not_seen(level: str) -> None:
    given = draw(6, 5, 4, 3, 9)
    inside = torch.arange(6)[:, None, None] < given["heights"]
    inside = inside & (torch.arange(5)[:, None] < given["widths"])
    with torch.no_grad():
        given["x"][~inside] = torch.nan
        beyond = torch.arange(5)[:, None] >= given["widths"]
        given["h_0"][beyond], given["c_0"][beyond] = torch.nan, torch.inf
    with selected(level):
        found = two_d_lstm(**given)[:3]
        for value in (*found, *gradients(found, given)):
            assert torch.isfinite(value).all()
        assert not found[0][~inside].any()


@pytest.mark.parametrize("level", levels())
def test_any_number_of_threads_gives_the_same_bits(level: str) -> None:
    given = draw(12, 17, 8, 24, 40, dtype="float32")
    with selected(level):
        for n in (1, 2, 3):
            with num_threads(n):
                found = two_d_lstm(**given)[:3]
                values = (*found, *gradients(found, given))
                first = values if n == 1 else first
                assert all(torch.equal(a, b) for a, b in zip(first, values, strict=True)), n


def test_only_what_is_needed_has_a_gradient() -> None:
    given = draw(3, 4, 2, 3, 5)
    for name in FLOATS:
        alone = {n: v.detach() for n, v in given.items()}
        alone[name].requires_grad_()
        found = two_d_lstm(**alone)[:3]
        whole = two_d_lstm(**given)[:3]
        check_all(
            gradients(found, {name: alone[name]}), gradients(whole, {name: given[name]}), 1e-13
        )


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"heights": torch.tensor([0, 4, 1]).int()}, RangeError, r"heights\[1\].* 4.*rows of `x`"),
        ({"widths": torch.tensor([-1, 4, 1]).int()}, RangeError, r"widths\[0\].*-1.*columns of"),
        ({"widths": torch.tensor([1, 1]).int()}, NativeOpsError, r"axis `b` is 3 .* `widths`"),
        ({"heights": torch.tensor([1.0, 1, 1])}, NativeOpsError, "`heights`.*int32"),
        ({"v_h": torch.zeros(5, 20).double()}, NativeOpsError, r"axis `5\*h` must be 25 but is 20"),
        ({"h_0": torch.zeros(3, 3, 5).double()}, NativeOpsError, r"axis `s` is 4 in `x` but 3"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(wrong: Any, error: Any, text: str) -> None:
    given = {n: v.detach() for n, v in draw(3, 4, 3, 2, 5).items()}
    with pytest.raises(error, match=f"two_d_lstm: (?s:.*){text}"):
        two_d_lstm(**{**given, **wrong})


def test_four_directions_are_flips() -> None:
    given = {n: v.detach() for n, v in draw(3, 4, 2, 3, 5, sizes=False).items()}
    for axes in ((0,), (1,), (0, 1)):
        flipped = {**given, "x": given["x"].flip(axes)}
        found = two_d_lstm(**flipped).output.flip(axes)
        check_all([found], [cell_by_cell(flipped)[0].flip(axes)], 1e-12)
