# SPDX-License-Identifier: Apache-2.0
"""RETURNN's LSTM layers: every mask, start and step against PyTorch's functions and autograd."""

import itertools
from typing import Any

import numpy as np
import pytest

from nativeops import lstm_layer, lstm_low_mem, native_lstm2
from nativeops.declare import transpose
from nativeops.errors import NativeOpsError
from nativeops.testing.aspects import levels, selected

torch = pytest.importorskip("torch")

WALKS = [
    dict(zip(("start", "stride", "reverse"), walk, strict=True))
    for walk in itertools.product((0, 2), (1, 3), (False, True))
]
MASKS = ("holes", "lengths", "left", "none", "some are empty")


def draw(t: int, b: int, i: int, h: int, masked: str, dtype: str = "float64") -> dict[str, Any]:
    """Arguments of both layers."""
    random = np.random.default_rng(t * b * h)
    shapes = {"x": (t, b, i), "w_in": (i, 4 * h), "w_re": (h, 4 * h), "bias": (4 * h,)}
    shapes |= {"h_0": (b, h), "c_0": (b, h)}
    given = {name: random.uniform(-1, 1, shape) for name, shape in shapes.items()}
    given = {name: torch.from_numpy(array.astype(dtype)) for name, array in given.items()}
    given["w_re"] /= np.sqrt(max(h, 1))
    time, lengths = np.arange(t)[:, None], random.integers(0, t + 1, b)
    mask = {
        "holes": random.random((t, b)) < 0.6,
        "lengths": time < lengths,
        "left": time >= lengths,
        "none": np.ones((t, b), bool),
        "some are empty": (random.random((t, b)) < 0.6) & (np.arange(b) % 2 == 0),
    }[masked]
    return {**given, "mask": torch.from_numpy(mask)}


def by_steps(
    z: Any, w_re: Any, mask: Any, h_0: Any, c_0: Any, *, resets: bool = False, **walk: Any
) -> list[Any]:
    """The definition, frame by frame; nothing of it is ours."""
    h, h_n, c, outputs = h_0, h_0, c_0, [torch.zeros_like(h_0)] * len(z)
    times = range(len(z))[:: -1 if walk["reverse"] else 1][walk["start"] :: walk["stride"]]
    for t in times:
        m = mask[t][:, None]
        g, i, f, o = (torch.nan_to_num(z[t]) + h @ w_re).chunk(4, -1)
        c = torch.where(m, torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g), c)
        y = torch.sigmoid(o) * torch.tanh(c)
        outputs[t] = torch.where(m, y, 0.0)
        h_n = torch.where(m, y, h_n)
        h = torch.where(m, y, 0.0 if resets else h)
    return [torch.stack(outputs) if outputs else torch.zeros(0, *h_0.shape), h_n, c]


def gradients(results: Any, given: dict[str, Any]) -> list[Any]:
    """Of a sum of the results with weights of their own."""
    random = torch.Generator().manual_seed(0)
    wanted = [value for value in given.values() if value.requires_grad]
    arriving = [torch.randn(r.shape, dtype=torch.float64, generator=random) for r in results]
    pairs = [(r, a.to(r.dtype)) for r, a in zip(results, arriving, strict=True) if r.requires_grad]
    if not pairs:  # nothing takes part
        return [torch.zeros_like(value) for value in wanted]
    made, arriving = zip(*pairs, strict=True)
    return list(
        torch.autograd.grad(made, wanted, arriving, allow_unused=True, materialize_grads=True)
    )


def with_gradient(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some of the arguments, anew."""
    chosen = {name: given[name].clone() for name in names}
    return {n: v.requires_grad_() if v.is_floating_point() else v for n, v in chosen.items()}


def check_all(found: Any, expected: Any, tolerance: float) -> None:
    """Both must be of the same lengths."""
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=tolerance, atol=tolerance, check_dtype=False)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_native_lstm2_is_its_definition(
    level: str, masked: str, resets: bool, walk: dict[str, Any]
) -> None:
    drawn = draw(11, 7, 5, 19, masked)
    drawn["z"] = drawn["x"] @ drawn["w_in"] + drawn["bias"]
    given = with_gradient(drawn, "z", "w_re", "mask", "h_0", "c_0")
    expected = by_steps(**given, **walk, resets=resets)
    with selected(level):
        found = native_lstm2(**given, **walk, resets=resets)[:3]
        check_all(found, expected, 1e-12)
        check_all(gradients(found, given), gradients(expected, given), 1e-11)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_lstm_low_mem_is_its_definition(level: str, masked: str, walk: dict[str, Any]) -> None:
    drawn = draw(11, 7, 5, 19, masked)
    given = with_gradient(drawn, "x", "w_in", "w_re", "bias", "mask", "h_0", "c_0")
    z = given["x"] @ given["w_in"] + given["bias"]
    rest = {name: given[name] for name in ("w_re", "mask", "h_0", "c_0")}
    expected = by_steps(z, **rest, **walk)
    with selected(level):
        found = lstm_low_mem(**given, **walk)[:3]
        check_all(found, expected, 1e-12)
        check_all(gradients(found, given), gradients(expected, given), 1e-11)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.06)])
@pytest.mark.parametrize("sizes", [(1, 1, 3, 1), (9, 1, 17, 70), (6, 60, 3, 33), (40, 3, 8, 128)])
def test_other_dtypes_and_sizes(
    level: str, dtype: str, tolerance: float, sizes: tuple[int, ...]
) -> None:
    drawn = draw(*sizes, "holes", "float32")
    drawn["z"] = drawn["x"] @ drawn["w_in"] + drawn["bias"]
    drawn = {n: v.to(getattr(torch, dtype)) if n != "mask" else v for n, v in drawn.items()}
    wide = {n: v.double() if n != "mask" else v for n, v in drawn.items()}
    names, walk = ("z", "w_re", "mask", "h_0", "c_0"), WALKS[1]
    given, exact = with_gradient(drawn, *names), with_gradient(wide, *names)
    expected = by_steps(**exact, **walk)
    with selected(level):
        found = native_lstm2(**given, **walk)[:3]
        check_all(found, expected, tolerance)
        check_all(gradients(found, given), gradients(expected, exact), 8 * tolerance)


@pytest.mark.parametrize("level", levels())
def test_without_holes_it_is_the_lstm_layer(level: str) -> None:
    drawn = draw(9, 4, 5, 37, "lengths")
    order = np.arange(4 * 37).reshape(4, 37)[[1, 2, 0, 3]].ravel()  # its gates are i, f, g, o
    weights = [transpose(drawn[name])[order] for name in ("w_in", "w_re")]
    lengths = drawn["mask"].sum(0).int()
    states = {name: drawn[name] for name in ("h_0", "c_0")}
    with selected(level):
        expected = lstm_layer(
            drawn["x"], *weights, drawn["bias"][order], lengths=lengths, **states
        )[:3]
        check_all(lstm_low_mem(**drawn)[:3], expected, 1e-13)
        z = drawn["x"] @ drawn["w_in"] + drawn["bias"]
        found = native_lstm2(z, drawn["w_re"], drawn["mask"], **states)[:3]
        check_all(found, expected, 1e-13)


@pytest.mark.parametrize("level", levels())
def test_what_takes_no_part_is_not_seen(level: str) -> None:
    drawn = draw(11, 7, 5, 19, "holes")
    drawn["z"] = drawn["x"] @ drawn["w_in"] + drawn["bias"]
    for name in ("x", "z"):
        drawn[name][~drawn["mask"]] = torch.nan
    names, walk = ("w_re", "mask", "h_0", "c_0"), WALKS[2]
    with selected(level):
        for op, own in ((native_lstm2, ("z",)), (lstm_low_mem, ("x", "w_in", "bias"))):
            given = with_gradient(drawn, *own, *names)
            found = op(**given, **walk)[:3]
            for value in (*found, *gradients(found, given)):
                assert torch.isfinite(value).all(), op.name


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("resets", [False, True])
def test_any_byte_but_0_takes_part(level: str, resets: bool) -> None:
    drawn = draw(11, 7, 5, 19, "holes")
    z = drawn["x"] @ drawn["w_in"] + drawn["bias"]
    pixels = drawn["mask"].to(torch.uint8) * 254
    with selected(level):
        expected = native_lstm2(z, drawn["w_re"], drawn["mask"], resets=resets)[:3]
        found = native_lstm2(z, drawn["w_re"], pixels.view(torch.bool), resets=resets)[:3]
    check_all(found, expected, 0)


@pytest.mark.parametrize("level", levels())
def test_no_frames_leave_the_states(level: str) -> None:
    drawn = draw(0, 3, 5, 4, "none")
    given = with_gradient({**drawn, "z": torch.zeros(0, 3, 16).double()}, "z", "w_re", "h_0", "c_0")
    with selected(level):
        output, h_n, c_n = native_lstm2(**given)[:3]
        assert output.shape == (0, 3, 4)
        assert torch.equal(h_n, given["h_0"])
        assert torch.equal(c_n, given["c_0"])
        late = draw(5, 3, 5, 4, "none")
        found = lstm_low_mem(**late, start=5)
        assert not found.output.any(), "the first frame that is visited lies beyond the end"
        assert torch.equal(found.c_n, late["c_0"])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"stride": 0}, "stride"),
        ({"start": -1}, "start"),
        ({"w_re": torch.zeros(19, 75).double()}, "w_re"),
        ({"mask": torch.ones(10, 7, dtype=torch.bool)}, "mask"),
        ({"mask": torch.ones(11, 7)}, "mask"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], text: str) -> None:
    drawn = draw(11, 7, 5, 19, "holes")
    drawn["z"] = drawn["x"] @ drawn["w_in"]
    given = {name: drawn[name] for name in ("z", "w_re", "mask")} | wrong
    with pytest.raises(NativeOpsError, match=f"native_lstm2: .*`{text}`"):
        native_lstm2(**given)
