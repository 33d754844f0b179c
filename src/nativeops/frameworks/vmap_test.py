# SPDX-License-Identifier: Apache-2.0
"""Mapped ops against one call per item: also where the items share an axis in one call."""

import zlib
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

import nativeops  # noqa: E402  needs both
import nativeops.ops  # noqa: E402
from nativeops.frameworks import jax_vmap, torch_vmap, vmap  # noqa: E402
from nativeops.frameworks.vmap import place_of  # noqa: E402
from nativeops.registry import ops  # noqa: E402
from nativeops.testing.draw import arguments, base_sizes, defaults  # noqa: E402

N = 3
SHARING = [op for op in ops() if op.built_in and op.independent]
PLACE = {"jax": jax.numpy.asarray, "torch": torch.from_numpy}
MAP = {"jax": jax.vmap, "torch": torch.func.vmap}


@pytest.fixture(params=PLACE)
def framework(request):
    return request.param


@pytest.fixture
def names(monkeypatch):
    """The axes that items shared, of each call."""
    found = []

    def seen(*args):
        found.append(vmap.shared_axis(*args))
        return found[-1]

    for module in (jax_vmap, torch_vmap):
        monkeypatch.setattr(module, "shared_axis", seen)
    return found


def drawn(op):
    """The arguments of N items, one behind the other."""
    random = np.random.default_rng(zlib.crc32(op.name.encode()))
    leads = [() for _ in op.signature.inputs]
    items = [arguments(op, random, base_sizes(op), leads, defaults(op)) for _ in range(N)]
    return [
        np.stack([np.asarray(item[spec.name]).astype(spec.dtypes[0]) for item in items])
        for spec in op.signature.inputs
    ]


def choices(op):
    """Which inputs are mapped, and the results that are wanted."""
    specs, shown = op.signature.inputs, [s for s in op.signature.outputs if not s.kept]
    certain = [spec.name for spec in shown if not spec.optional]
    every = tuple(spec.name for spec in shown)
    yield [True for _ in specs], every
    yield [place == 0 for place in range(len(specs))], every
    for name in op.independent:
        has = {spec.name for spec in shown if place_of(name, spec)}
        wanted = tuple(each for each in every if each in has or each in certain)
        mapped = [bool(place_of(name, spec)) for spec in specs]
        yield mapped, wanted
        first = mapped.index(True)
        yield [m and place != first for place, m in enumerate(mapped)], wanted


def made_by(call):
    """The call with a tuple of the results that it makes."""

    def made(*arrays):
        result = call(*arrays)
        parts = result if isinstance(result, tuple) else (result,)
        return tuple(part for part in parts if part is not None)

    return made


def check(call, framework, arrays, mapped, axis=0):
    """Map a call over an axis of some arrays, and of the others take what the first item has."""
    call, place = made_by(call), PLACE[framework]
    pairs = [*zip(arrays, mapped, strict=True)]
    given = [place(np.moveaxis(a, 0, axis).copy() if m else a[0, ...]) for a, m in pairs]
    found = MAP[framework](call, tuple(axis if m else None for m in mapped))(*given)
    alone = [call(*(place(a[n if m else 0, ...]) for a, m in pairs)) for n in range(N)]
    for each, *parts in zip(found, *alone, strict=True):
        np.testing.assert_allclose(each, np.stack(parts), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op", SHARING, ids=lambda op: op.name)
def test_every_op_gives_each_item_what_it_gives_alone(op, framework):
    arrays = drawn(op)
    for mapped, wanted in choices(op):
        if any(mapped):
            call = partial(op.only(wanted), **defaults(op))
            check(call, framework, arrays, mapped, axis=-1 if not all(mapped) else 0)


LSTM = drawn(nativeops.lstm_layer)[:7]  # x, four weights, h_0, c_0


def lstm(x, w_ih, w_hh, b_ih, b_hh, h_0, c_0):
    """With a state, and without lengths and peepholes."""
    return nativeops.lstm_layer(x, w_ih, w_hh, b_ih, b_hh, h_0, c_0)


@pytest.mark.parametrize(
    ("mapped", "name"),
    [
        ((True, False, False, False, False, False, False), "b"),
        ((True, False, False, False, False, True, True), "b"),
        ((False, False, False, False, False, True, False), "b"),
        ((True, True, False, False, False, False, False), ""),
        ((False, False, False, False, True, False, False), ""),
    ],
)
def test_items_share_the_batch_unless_they_have_weights_of_their_own(
    mapped, name, framework, names
):
    check(lstm, framework, LSTM, mapped, axis=1)
    assert names == [name]


def gradients(framework, map_outside):
    """Of a sum over items, for what they share and what each has, or of each item for all."""
    if framework == "torch":
        map_, grad = torch.func.vmap, torch.func.grad
    else:
        map_, grad = jax.vmap, jax.grad

    def one(x, w_ih):
        return (nativeops.lstm_layer(x, w_ih, *placed[2:]).output ** 2).sum()

    placed = [PLACE[framework](array[0]) for array in LSTM]
    x = PLACE[framework](LSTM[0])
    if map_outside:
        return map_(grad(one, (0, 1)), (0, None))(x, placed[1])
    return grad(lambda x, w_ih: map_(one, (0, None))(x, w_ih).sum(), (0, 1))(x, placed[1])


def test_gradients_of_shared_weights_are_one_call_and_those_of_each_item_a_loop(framework, names):
    d_x, d_w = map(np.asarray, gradients(framework, map_outside=False))
    assert set(names) == {"b"}
    each_x, each_w = map(np.asarray, gradients(framework, map_outside=True))
    assert names[-1] == ""
    np.testing.assert_allclose(d_x, each_x, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(d_w, each_w.sum(0), rtol=2e-5, atol=2e-5)


def test_maps_nest(framework):
    _, *others = (PLACE[framework](array[0]) for array in LSTM)
    many = PLACE[framework](np.stack([LSTM[0], 2 * LSTM[0]]))
    call = lambda x: nativeops.lstm_layer(x, *others).output  # noqa: E731
    found = MAP[framework](MAP[framework](call))(many)
    np.testing.assert_allclose(found[1][2], call(many[1][2]), rtol=2e-5, atol=2e-5)


def test_no_items(framework):
    x, *others = (PLACE[framework](array[0]) for array in LSTM)
    none = PLACE[framework](np.zeros((0, *x.shape), np.float32))
    output, *_ = MAP[framework](made_by(lambda x: nativeops.lstm_layer(x, *others)))(none)
    assert output.shape == (0, *x.shape[:2], others[1].shape[1])


def test_number_of_items_is_open_in_an_exported_program():
    x, *others = (jax.numpy.asarray(array[0]) for array in LSTM)
    size = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("n"), *x.shape), x.dtype)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("nativeops")]
    mapped = jax.jit(jax.vmap(lambda x: nativeops.lstm_layer(x, *others).output))
    program = jax.export.export(mapped, disabled_checks=allowed)(size)
    np.testing.assert_allclose(program.call(LSTM[0]), mapped(LSTM[0]), rtol=2e-5, atol=2e-5)
