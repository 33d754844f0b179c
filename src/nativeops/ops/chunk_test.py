# SPDX-License-Identifier: Apache-2.0
"""chunk and unchunk: what is true beyond agreeing with their references (tests/test_matrix.py)."""

import itertools
from typing import Any

import numpy as np
import pytest

from nativeops import chunk, chunk_view, get_num_threads, set_num_threads, unchunk
from nativeops.errors import ArgumentError, NativeOpsError, RangeError, ShapeError
from nativeops.ops.chunk import chunk_grad, unchunk_grad
from nativeops.testing.aspects import levels, selected

RANDOM = np.random.default_rng(3)
# Time, batch, features, size, step: overlaps, gaps, nothing at all, rows around lines of caches.
EDGES = [
    *itertools.product((0, 1, 5, 12), (0, 1, 3), (0, 1, 17), (1, 4, 7), (1, 3, 9)),
    (40, 2, 16, 33, 1),
    (70, 3, 160, 20, 3),
    (9, 1, 700, 5, 2),
]


# Frames of few numbers: rows that merge and such that do not, more frames than a block has.
NARROW = [
    *itertools.product((1, 12, 70), (1, 3, 9), (1, 2, 3, 5, 12), (1, 7, 33), (1, 3, 40)),
    (2000, 2, 3, 40, 7),
    (9000, 1, 1, 16, 16),
    (700, 3, 1, 600, 1),
    (300, 5, 32, 64, 9),
]


def random_mask(time: int, batch: int) -> Any:
    return RANDOM.random((time, batch)) < 0.7


def classic(x: Any, mask: Any, size: int, step: int) -> tuple[Any, Any]:
    """RETURNN's contract, frame by frame."""
    time, batch, d = x.shape
    n = max(time - size + step - 1, 0) // step + 1
    out, held = np.zeros((size, batch * n, d), x.dtype), np.zeros((size, batch * n), bool)
    for b, k, u in itertools.product(range(batch), range(n), range(size)):
        t = step * k + u
        if t < time and mask[t, b]:
            out[u, b * n + k], held[u, b * n + k] = x[t, b], True
    return out, held


def classic_back(chunks: Any, held: Any, time: int, batch: int, step: int) -> tuple[Any, ...]:
    size, columns, d = chunks.shape
    n = columns // max(batch, 1)
    x, mask = np.zeros((time, batch, d)), np.zeros((time, batch), bool)
    factors = np.ones((time, batch))
    for t, b in itertools.product(range(time), range(batch)):
        rows = [
            chunks[t - step * k, b * n + k]
            for k in range(n)
            if 0 <= t - step * k < size and held[t - step * k, b * n + k]
        ]
        if rows:
            x[t, b], mask[t, b], factors[t, b] = np.mean(rows, 0), True, 1 / len(rows)
    return x, mask, factors


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_is_the_classic_op_at_all_edges(level: str, dtype: str) -> None:
    with selected(level):
        for time, batch, d, size, step in EDGES:
            x, mask = RANDOM.standard_normal((time, batch, d)), random_mask(time, batch)
            x = x.astype(dtype)
            out, held = chunk(x, mask, chunk_size=size, chunk_step=step)
            for found, expected in zip((out, held), classic(x, mask, size, step), strict=True):
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
            held &= RANDOM.random(held.shape) < 0.8  # masked in some chunks only
            whole = unchunk(out, held, n_time=time, n_batch=batch, chunk_step=step)
            expected = classic_back(out.astype("float64"), held, time, batch, step)
            np.testing.assert_array_equal(whole.mask, expected[1])
            unit = 4 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(whole.x.astype("float64"), expected[0], unit, unit)
            np.testing.assert_allclose(whole.factors.astype("float64"), expected[2], unit)


def laid_out(array: Any, kind: int) -> Any:
    """The same numbers with other steps: of a wider array, axes swapped, every second one."""
    t, b, *rest = array.shape
    memory = [
        lambda: np.empty_like(array),
        lambda: np.empty((t, b + 2, *rest), array.dtype)[:, 1 : b + 1],
        lambda: np.empty((b, t, *rest), array.dtype).swapaxes(0, 1),
        lambda: np.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2],
    ][kind]()
    memory[...] = array
    return memory


def all_of_narrow_frames(given: Any, masks: Any, sizes: Any, kinds: Any) -> list[Any]:
    """What all four ops make of them, into results with steps, too."""
    (x, parts), (mask, lengths, held), (time, batch, size, step) = given, masks, sizes
    cut: Any = {"chunk_size": size, "chunk_step": step}
    whole: Any = {"n_time": time, "n_batch": batch, "chunk_step": step}
    made: list[Any] = []
    for taken in ((None, None), (mask, None), (None, lengths), (mask, lengths)):
        made += [*chunk(x, *taken, **cut), chunk_grad(x, parts, *taken, **cut)]
    for taken in (None, held):
        made += [*unchunk(parts, taken, **whole), unchunk_grad(parts, x, taken, **whole)]
    into = [
        laid_out(np.zeros_like(a), k) for a, k in zip(unchunk(parts, **whole), kinds, strict=True)
    ]
    unchunk(parts, held, **whole, out=tuple(into))
    chunks = [laid_out(np.zeros_like(a), k) for a, k in zip((parts, held), kinds[:2], strict=True)]
    chunk(x, mask, **cut, out=tuple(chunks))
    return [*made, *into, *chunks]


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_narrow_frames_have_the_bits_of_the_portable_kernel(level: str, dtype: str) -> None:
    random = np.random.default_rng(5)
    for time, batch, d, size, step in NARROW:
        n = batch * (max(time - size + step - 1, 0) // step + 1)
        kinds = random.integers(0, 4, 5)
        x, parts = random.standard_normal((time, batch, d)), random.standard_normal((size, n, d))
        x[random.random(x.shape) < 0.1] = np.nan
        given = [laid_out(a.astype(dtype), k) for a, k in zip((x, parts), kinds, strict=False)]
        mask, held = (random.random(a.shape[:2]) < 0.7 for a in (x, parts))
        lengths = random.integers(0, time + 1, batch)
        masks = laid_out(mask, kinds[2]), lengths, laid_out(held, kinds[3])
        sizes = time, batch, size, step
        found = []
        for each in (level, "portable"):
            with selected(each):
                found.append(all_of_narrow_frames(given, masks, sizes, kinds[2:]))
        for ours, expected in zip(*found, strict=True):
            np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("level", levels())
def test_narrow_frames_of_zeros_keep_their_signs(level: str) -> None:
    x = np.array([-0.0, 0.0, -0.0, 1.0]).reshape(4, 1, 1)
    sizes = {"chunk_size": 1, "chunk_step": 1}
    with selected(level):
        assert np.array_equal(np.signbit(chunk(x, **sizes).chunks).ravel(), np.signbit(x).ravel())
        nothing = chunk_grad(x, x.reshape(1, 4, 1), np.zeros((4, 1), bool), **sizes)
    assert not np.signbit(nothing).any()


@pytest.mark.parametrize(("size", "step"), [(4, 2), (5, 1), (3, 3), (30, 7)])
def test_unchunk_inverts_chunk_wherever_frames_take_part(size: int, step: int) -> None:
    x, lengths = RANDOM.standard_normal((20, 3, 4)), np.array([20, 0, 13])
    whole = unchunk(
        *chunk(x, lengths=lengths, chunk_size=size, chunk_step=step),
        n_time=20, n_batch=3, chunk_step=step,
    )  # fmt: skip
    here = np.arange(20)[:, None] < lengths
    assert np.array_equal(whole.mask, here)
    np.testing.assert_allclose(whole.x, np.where(here[..., None], x, 0), rtol=1e-15)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("d", [256, 257, 700])
def test_wide_rows_of_many_chunks_are_put_together(level: str, d: int) -> None:
    x = np.random.default_rng(3).standard_normal((40, 2, d))
    sizes = {"chunk_size": 14, "chunk_step": 2}
    with selected(level):
        chunks = chunk(x, **sizes).chunks
        again = unchunk(chunks, n_time=40, n_batch=2, chunk_step=2)
    np.testing.assert_allclose(again.x, x, rtol=1e-13)


def test_frames_between_chunks_come_back_as_zeros() -> None:
    x = np.ones((10, 1, 1))
    cut = chunk(x, chunk_size=2, chunk_step=5)
    assert cut.chunks.shape == (2, 3, 1), "the third chunk begins behind the end"
    whole = unchunk(*cut, n_time=10, n_batch=1, chunk_step=5)
    assert whole.mask.ravel().tolist() == [True, True, False, False, False] * 2
    assert whole.factors.ravel().tolist() == [1] * 10


def test_lengths_and_mask_together_are_both_asked() -> None:
    x, mask = RANDOM.standard_normal((6, 2, 1)), random_mask(6, 2)
    lengths = np.array([4, 6], np.int32)
    both = chunk(x, mask, lengths, chunk_size=3, chunk_step=2)
    joined = chunk(x, mask & (np.arange(6)[:, None] < lengths), chunk_size=3, chunk_step=2)
    assert np.array_equal(both.chunks, joined.chunks)
    assert np.array_equal(both.chunk_mask, joined.chunk_mask)


def test_what_is_masked_out_is_not_seen_even_if_it_is_nan() -> None:
    x = np.full((5, 1, 2), np.nan)
    out, held = chunk(x, np.zeros((5, 1), bool), chunk_size=2, chunk_step=1)
    assert not out.any()
    nothing = unchunk(
        np.full_like(out, np.nan), held, n_time=5, n_batch=1, chunk_step=1
    )  # fmt: skip
    assert not nothing.x.any()


def test_gradients_are_the_transposed_maps() -> None:
    """<chunk(x), y> = <x, chunk_grad(y)>, and the same of unchunk; masks with holes."""
    for time, batch, d, size, step in EDGES:
        x, mask = RANDOM.standard_normal((time, batch, d)), random_mask(time, batch)
        cut = chunk(x, mask, chunk_size=size, chunk_step=step)
        y = RANDOM.standard_normal(cut.chunks.shape)
        d_x = chunk_grad(x, y, mask, chunk_size=size, chunk_step=step)
        np.testing.assert_allclose((cut.chunks * y).sum(), (x * d_x).sum(), atol=1e-9)
        held = RANDOM.random(cut.chunk_mask.shape) < 0.8
        whole = unchunk(y, held, n_time=time, n_batch=batch, chunk_step=step)
        d_y = unchunk_grad(y, x, held, n_time=time, n_batch=batch, chunk_step=step)
        np.testing.assert_allclose((whole.x * x).sum(), (y * d_y).sum(), atol=1e-9)


def test_torch_differentiates_both_of_them_twice() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.from_numpy(random_mask(7, 2))

    def there_and_back(x: Any) -> Any:
        cut = chunk(x, mask, chunk_size=4, chunk_step=3)
        whole = unchunk(cut.chunks**2, cut.chunk_mask, n_time=7, n_batch=2, chunk_step=3)
        return whole.x

    assert torch.autograd.gradcheck(there_and_back, x)
    assert torch.autograd.gradgradcheck(there_and_back, x)


def test_equals_torch_unfold_and_fold() -> None:
    torch = pytest.importorskip("torch")
    time, batch, d, size, step = 26, 3, 5, 8, 3
    x = torch.randn(time, batch, d, dtype=torch.float64)
    image = x.permute(1, 2, 0)[..., None]  # b d t 1
    unfolded = torch.nn.functional.unfold(image, (size, 1), stride=(step, 1))
    out = chunk(x, chunk_size=size, chunk_step=step).chunks
    n = out.shape[1] // batch
    ours = out.reshape(size, batch, n, d).permute(1, 3, 0, 2).reshape(batch, d * size, n)
    assert torch.equal(ours, unfolded)
    folded = torch.nn.functional.fold(unfolded, (time, 1), (size, 1), stride=(step, 1))
    d_x = chunk_grad(x, out, chunk_size=size, chunk_step=step)
    torch.testing.assert_close(d_x, folded[..., 0].permute(2, 0, 1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("level", levels())
def test_long_results_are_right_wherever_they_begin(level: str) -> None:
    """They are written past the caches, in whole lines."""
    x = RANDOM.standard_normal((1500, 3, 1037), dtype=np.float32)
    with selected(level):
        out = chunk(x, chunk_size=900, chunk_step=350).chunks
        assert out.nbytes > 32 << 20
        n = out.shape[1] // 3
        for b, k in itertools.product(range(3), range(n)):
            frames = x[k * 350 : k * 350 + 900, b]
            assert np.array_equal(out[: len(frames), b * n + k], frames)
            assert not out[len(frames) :, b * n + k].any()
        whole = unchunk(out, n_time=1500, n_batch=3, chunk_step=350).x
        np.testing.assert_allclose(whole, x, rtol=1e-6)


@pytest.mark.parametrize("level", levels())
def test_long_results_of_short_rows_are_right(level: str) -> None:
    x = np.random.default_rng(4).standard_normal((10, 1, 3)).astype("float32")
    with selected(level):
        found = chunk(x, chunk_size=1 << 20, chunk_step=1).chunks
    assert found.nbytes > 8 << 20
    assert np.array_equal(found[:10], x)
    assert not found[10:].any()


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    x, before = RANDOM.standard_normal((300, 7, 33), dtype=np.float32), get_num_threads()
    made = []
    try:
        for threads in (1, 2, 3):
            set_num_threads(threads)
            cut = chunk(x, chunk_size=50, chunk_step=7)
            back = unchunk(*cut, n_time=300, n_batch=7, chunk_step=7)
            d_x = chunk_grad(x, cut.chunks, chunk_size=50, chunk_step=7)
            made.append([a.tobytes() for a in (*cut, *back, d_x)])
    finally:
        set_num_threads(before)
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_length_beyond_the_frames_is_refused_in_every_framework(framework: str) -> None:
    module = pytest.importorskip(framework)
    make = {"torch": "from_numpy", "tensorflow": "constant"}.get(framework, "asarray")
    array = getattr(module.numpy if framework == "jax" else module, make)
    x, lengths = array(np.zeros((5, 2, 1), np.float32)), array(np.array([5, 6], np.int32))
    with pytest.raises(NativeOpsError) as caught:
        chunk(x, lengths=lengths, chunk_size=2, chunk_step=1)
    text = "chunk: `lengths[1]` is 6, but must be from 0 to 5, the frames of `x`."
    assert str(caught.value) == text


def test_columns_that_do_not_fit_are_refused_with_both_numbers() -> None:
    with pytest.raises(ShapeError, match=r"must be 6 but is 5 in `chunks`"):
        unchunk(np.zeros((4, 5, 1)), n_time=8, n_batch=2, chunk_step=2)
    bounds = "at least 1 and at most 2147483647"
    with pytest.raises(RangeError, match=f"`chunk_step` must be {bounds}, but is 0"):
        chunk(np.zeros((4, 5, 1)), chunk_size=2, chunk_step=0)


def test_view_is_the_chunks_and_copies_nothing() -> None:
    x = RANDOM.standard_normal((13, 3, 4))
    view = chunk_view(x, chunk_size=5, chunk_step=4)
    assert np.shares_memory(view, x)
    copied = chunk(x, chunk_size=5, chunk_step=4).chunks
    assert np.array_equal(view.reshape(copied.shape), copied)
    view[0, 1, 2] = 7  # frame 8 of sequence 1
    assert (x[8, 1] == 7).all()


def test_torch_view_has_the_tensors_own_memory_and_gradients() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(13, 3, 4, dtype=torch.float64, requires_grad=True)
    view = chunk_view(x, chunk_size=5, chunk_step=4)
    assert view.data_ptr() == x.data_ptr()
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    out = chunk(x, chunk_size=5, chunk_step=4).chunks
    assert torch.equal(view.reshape(out.shape), out)
    d_out = torch.randn_like(out)
    d_view, d_op = (torch.autograd.grad(y, x, d_out)[0] for y in (view.reshape(out.shape), out))
    torch.testing.assert_close(d_view, d_op)


@pytest.mark.parametrize("time", [4, 14])
def test_view_of_frames_that_do_not_fit_is_refused(time: int) -> None:
    with pytest.raises(ShapeError, match="pad `x` at its end, or call `chunk`"):
        chunk_view(np.zeros((time, 1, 1)), chunk_size=5, chunk_step=4)


@pytest.mark.parametrize("shape", [(), (6,), (6, 2), (6, 2, 1, 1)])
def test_view_of_other_axes_is_refused_as_such(shape: tuple[int, ...]) -> None:
    text = rf"chunk_view: `x` must have 3 axes \[t b d\], but has {len(shape)}"
    with pytest.raises(ShapeError, match=text):
        chunk_view(np.zeros(shape), chunk_size=2, chunk_step=2)


def test_view_shows_no_masked_elements_as_numbers() -> None:
    x = np.ma.masked_less(np.arange(6.0).reshape(6, 1, 1), 2)
    with pytest.raises(ArgumentError, match="chunk_view: `x` must have no masked elements"):
        chunk_view(x, chunk_size=2, chunk_step=2)


def test_view_of_arrays_without_steps_is_refused() -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(ArgumentError, match="call `chunk`, which copies"):
        chunk_view(jax.numpy.zeros((5, 1, 1)), chunk_size=5, chunk_step=4)


@pytest.mark.parametrize("given", [[[[1.0]]], 3, None])
def test_view_of_what_is_no_array_is_refused(given: object) -> None:
    with pytest.raises(ArgumentError, match="must be a NumPy array or a PyTorch tensor, but is"):
        chunk_view(given, chunk_size=1, chunk_step=1)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("apart", [0, 1, 8, 16])
def test_results_may_be_written_into_a_wider_array(apart: int, level: str) -> None:
    """Of more than the caches hold, where lines are written past them if rows begin with one."""
    time, batch, d = 2000, 4, 320
    chunks = RANDOM.standard_normal((100, batch * 39, d)).astype("float32")
    memory = np.empty(time * (batch * d + apart) + 16, "float32")
    start = -memory.ctypes.data % 64 // 4
    rows = memory[start : start + time * (batch * d + apart)].reshape(time, -1)
    out = rows[:, : batch * d].reshape(time, batch, d, copy=False)
    given = {"n_time": time, "n_batch": batch, "chunk_step": 50}
    with selected(level):
        expected = unchunk(chunks, **given).x
        unchunk(chunks, **given, out=(out, None, None))
        np.testing.assert_array_equal(out, expected)
        sizes = {"chunk_size": 100, "chunk_step": 50}
        expected = chunk_grad(expected, chunks, **sizes)
        chunk_grad(np.ascontiguousarray(expected), chunks, **sizes, out=out)
        np.testing.assert_array_equal(out, expected)


def test_steps_beyond_32_bits_are_refused() -> None:
    x = np.zeros((3, 2, 1))
    for name, sizes in (("chunk_step", (5, 2**31)), ("chunk_size", (2**31, 5))):
        with pytest.raises(RangeError, match=rf"chunk: `{name}` must be at least"):
            chunk(x, chunk_size=sizes[0], chunk_step=sizes[1])
    last = chunk(x, chunk_size=5, chunk_step=2**31 - 1).chunks
    assert last.shape == (5, 2, 1)
    assert not last.any()
