# SPDX-License-Identifier: Apache-2.0
"""rnnt_costs: what is true beyond agreeing with its reference (tests/test_matrix.py)."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

import nativeops
from nativeops.ops.rnnt_loss import rnnt_costs, rnnt_costs_grad
from nativeops.testing.aspects import levels, selected
from nativeops.testing.marks import without_sanitizer

TOPOLOGIES = ("rnnt", "monotonic", "rna")


def draw(b, t, u, v, seed=0, dtype="float64", blank=-1):
    """Arguments at full length; labels are never the blank."""
    random = np.random.default_rng(seed)
    labels = np.delete(np.arange(v), blank)
    return (
        random.standard_normal((b, t, u + 1, v)).astype(dtype),
        random.choice(labels, (b, u)).astype(np.int32),
        np.full(b, t, np.int32),
        np.full(b, u, np.int32),
    )


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def enumerate_paths(frames: int, labels: int, topology: str):
    """All paths, each as its cells: (t, u, whether it leaves by the label)."""
    steps = frames if topology != "rnnt" else frames + labels
    for places in itertools.combinations(range(steps), labels):
        t = u = 0
        cells = []
        for step in range(steps):
            emits = step in places
            if t >= frames:  # a label after the last frame, which does not exist
                break
            cells.append((t, u, emits))
            u += emits
            t += not emits or topology != "rnnt"
        else:
            yield cells


def brute_force(x, y, blank, topology):
    """The cost from a sum over all paths, and its gradient for the probabilities."""
    p, labels = softmax(x), len(y)
    total, d_p = 0.0, np.zeros_like(p)
    for cells in enumerate_paths(x.shape[0], labels, topology):
        symbols = [(t, u, y[u] if emits else blank) for t, u, emits in cells]
        value = math.prod(p[cell] for cell in symbols)
        total += value
        for cell in symbols:
            d_p[cell] += value / p[cell]
    d_p /= -total
    return -math.log(total), p * (d_p - (p * d_p).sum(-1, keepdims=True))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("size", [(1, 0), (1, 1), (3, 0), (2, 2), (4, 3), (5, 2)], ids=str)
@pytest.mark.parametrize("blank", [-1, 0, 2])
def test_cost_and_gradient_are_those_of_all_paths(level, topology, size, blank) -> None:
    x, y, t_len, u_len = draw(1, *size, 5, seed=blank + 2, blank=blank)
    cost, d_x = brute_force(x[0], y[0], blank % 5, topology)
    with selected(level):
        found = rnnt_costs(x, y, t_len, u_len, blank=blank, topology=topology).costs
        d_found = rnnt_costs_grad(x, y, t_len, u_len, np.ones(1), blank=blank, topology=topology)
    np.testing.assert_allclose(found, [cost], rtol=1e-13)
    np.testing.assert_allclose(d_found[0], d_x, atol=1e-13)


def whole_lattice(x, y, topology):
    """The cost by one linear solve: all paths at once are the inverse of 1 - (matrix of steps)."""
    (frames, nodes, _), p = x.shape, softmax(x)
    steps = np.zeros(((frames + 1) * nodes,) * 2)
    for t, u in np.ndindex(frames, nodes):
        steps[t * nodes + u, (t + 1) * nodes + u] = p[t, u, -1]
        if u < nodes - 1:
            to = (t + (topology != "rnnt")) * nodes + u + 1
            steps[t * nodes + u, to] = p[t, u, y[u]]
    return -math.log(np.linalg.inv(np.eye(len(steps)) - steps)[0, -1])


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cost_is_that_of_one_matrix_over_the_whole_lattice(topology, dtype) -> None:
    x, y, _, _ = draw(3, 14, 9, 12, dtype=dtype)
    t_len, u_len = np.array([14, 10, 13], np.int32), np.array([9, 9, 4], np.int32)
    found = rnnt_costs(x, y, t_len, u_len, topology=topology).costs
    expected = [
        whole_lattice(x[b, : t_len[b], : u_len[b] + 1].astype("float64"), y[b], topology)
        for b in range(3)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-13 if dtype == "float64" else 2e-7)


def torch_costs(torch, logits, y, frames: int, labels: int):
    """One sequence, composed of PyTorch's functions."""
    log_p = torch.log_softmax(logits, -1)
    alpha = {(0, 0): log_p.new_zeros(())}
    for t, u in itertools.product(range(frames), range(labels + 1)):
        ways = [alpha[t - 1, u] + log_p[t - 1, u, -1]] if t else []
        ways += [alpha[t, u - 1] + log_p[t, u - 1, y[u - 1]]] if u else []
        if ways:
            alpha[t, u] = torch.logsumexp(torch.stack(ways), 0)
    return -(alpha[frames - 1, labels] + log_p[frames - 1, labels, -1])


def test_gradient_is_that_of_torchs_autograd() -> None:
    torch = pytest.importorskip("torch")
    x, y, t_len, u_len = (torch.from_numpy(a) for a in draw(2, 6, 4, 7))
    t_len[1], u_len[1] = 4, 2
    x.requires_grad_()
    d_costs = torch.tensor([2.0, -0.5], dtype=torch.float64)
    expected = torch.stack(
        [torch_costs(torch, x[b], y[b].tolist(), int(t_len[b]), int(u_len[b])) for b in (0, 1)]
    )
    found = rnnt_costs(x, y, t_len, u_len).costs
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(
        *(torch.autograd.grad(c, x, d_costs)[0] for c in (found, expected)), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("fused", [True, False])
def test_torch_gradcheck(topology, fused) -> None:
    torch = pytest.importorskip("torch")
    x, y, t_len, u_len = (torch.from_numpy(a) for a in draw(2, 4, 2, 3))
    t_len[1], u_len[1] = 3, 1

    def costs(logits):
        return rnnt_costs(
            logits, y, t_len, u_len, topology=topology, fused_log_softmax=fused
        ).costs  # fmt: skip

    torch.autograd.gradcheck(costs, (x.requires_grad_(),))


def test_log_probabilities_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    x, y, t_len, u_len = (torch.from_numpy(a) for a in draw(2, 5, 3, 6))
    x.requires_grad_()
    fused = rnnt_costs(x, y, t_len, u_len).costs
    apart = rnnt_costs(
        torch.log_softmax(x, -1), y, t_len, u_len, fused_log_softmax=False
    ).costs  # fmt: skip
    torch.testing.assert_close(fused, apart, rtol=1e-13, atol=0)
    torch.testing.assert_close(
        *(torch.autograd.grad(c.sum(), x)[0] for c in (fused, apart)), rtol=0, atol=1e-13
    )


def test_one_symbol_a_frame_has_two_names() -> None:
    given = draw(2, 6, 3, 5)
    assert np.array_equal(
        rnnt_costs(*given, topology="rna").costs, rnnt_costs(*given, topology="monotonic").costs
    )
    assert (rnnt_costs(*given).costs < rnnt_costs(*given, topology="rna").costs + 5).all()


@pytest.mark.parametrize("level", levels())
def test_clamp_bounds_each_number_before_what_flows_back_is_multiplied(level: str) -> None:
    x, y, t_len, u_len = draw(2, 4, 3, 25)
    d_costs = np.array([3.0, -1.0])
    free = rnnt_costs_grad(x, y, t_len, u_len, np.ones(2))
    assert np.abs(free).max() > 0.2
    assert ((free > 0.01) & (free < 0.02)).any(), "classes that are neither blank nor label"
    for clamp, most in ((0.1, 0.1), (0.01, 0.01), (0.0, np.inf), (-1.0, np.inf)):
        with selected(level):
            found = rnnt_costs_grad(x, y, t_len, u_len, d_costs, clamp=clamp)
        expected = np.clip(free, -most, most) * d_costs[:, None, None, None]
        np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_long_sequence_is_exact_in_float32(level, topology) -> None:
    x, y, t_len, u_len = draw(1, 3000, 40, 5, dtype="float32")
    with selected(level):
        found = rnnt_costs(x, y, t_len, u_len, topology=topology).costs
        d_found = rnnt_costs_grad(x, y, t_len, u_len, np.ones(1, "f"), topology=topology)
    wide = x.astype("float64")
    expected = rnnt_costs(wide, y, t_len, u_len, topology=topology).costs
    d_expected = rnnt_costs_grad(wide, y, t_len, u_len, np.ones(1), topology=topology)
    assert expected > 3000
    np.testing.assert_allclose(found, expected, rtol=2e-7)
    np.testing.assert_allclose(d_found, d_expected, atol=1e-5)
    assert np.abs(d_found.sum(-1)).max() < 1e-5, "the gradient of a softmax sums to 0"


def test_very_long_sequence_does_not_underflow() -> None:
    x, y, t_len, u_len = draw(1, 20000, 3, 4, dtype="float32")
    cost = rnnt_costs(x * 10, y, t_len, u_len).costs
    exact = rnnt_costs(x.astype("float64") * 10, y, t_len, u_len).costs
    assert np.isfinite(cost).all()
    np.testing.assert_allclose(cost, exact, rtol=1e-6)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_logits_lose_nothing(level, dtype) -> None:
    x, y, t_len, u_len = draw(2, 6, 3, 40, dtype=dtype)
    whole = np.round(x * 8) / 8  # exact, also with 1e4 added
    with selected(level):
        near, far = (rnnt_costs(whole + a, y, t_len, u_len).costs for a in (0, x.dtype.type(1e4)))
        d_near, d_far = (
            rnnt_costs_grad(whole + a, y, t_len, u_len, np.ones(2, dtype))
            for a in (0, x.dtype.type(1e4))
        )
        sharp = rnnt_costs(x * x.dtype.type(1e4), y, t_len, u_len).costs
    np.testing.assert_array_equal(near, far)
    np.testing.assert_array_equal(d_near, d_far)
    assert np.isfinite(sharp).all()
    assert (sharp > 1e4).all()


@pytest.mark.parametrize("size", [(7, 60, 11, 130), (1, 300, 40, 60)], ids=str)
def test_threads_do_not_change_a_bit(size) -> None:
    x, y, t_len, u_len = draw(*size, dtype="float32")
    batch, frames, labels, _ = size
    if batch > 1:
        random = np.random.default_rng(1)
        t_len, u_len = (random.integers(1, n + 1, batch).astype(np.int32) for n in (frames, labels))
    before, found = nativeops.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            nativeops.set_num_threads(threads)
            ones = np.ones(batch, "f")
            costs = rnnt_costs(x, y, t_len, u_len).costs
            found.append((costs, rnnt_costs_grad(x, y, t_len, u_len, ones)))
    finally:
        nativeops.set_num_threads(before)
    for costs, grads in found[1:]:
        assert np.array_equal(costs, found[0][0])
        assert np.array_equal(grads, found[0][1])


def test_half_precision_is_rounded_once() -> None:
    x, y, t_len, u_len = draw(2, 30, 8, 50, dtype="float16")
    wide = x.astype("float64")
    cost, exact = rnnt_costs(x, y, t_len, u_len).costs, rnnt_costs(wide, y, t_len, u_len).costs
    assert (np.abs(cost - exact) <= 2.0**-11 * exact * (1 + 1e-3)).all()
    d = rnnt_costs_grad(x, y, t_len, u_len, np.ones(2, "float16")).astype("float64")
    d_exact = rnnt_costs_grad(wide, y, t_len, u_len, np.ones(2))
    assert (np.abs(d - d_exact) <= 2.0**-11 * np.abs(d_exact) + 2.0**-24).all()


# In a process of its own, since a maximum over the life of a process cannot be reset.
PEAK = """
import numpy as np, torch
from nativeops.ops.rnnt_loss import rnnt_costs
from nativeops.bench.memory import peak
b, t, u, v = 4, 200, 50, 200
x = torch.randn(b, t, u + 1, v, requires_grad=True)
y = torch.zeros(b, u, dtype=torch.int32)
t_len, u_len = (torch.full((b,), n, dtype=torch.int32) for n in (t, u))
rnnt_costs(x[:, :2], y, t_len.clamp(max=2), u_len).costs.sum().backward()
x.grad = None
before = peak()
rnnt_costs(x, y, t_len, u_len).costs.sum().backward()
cells = b * t * (u + 1)
print((peak() - before - 4 * cells * v) / (4 * cells))
"""


@without_sanitizer
def test_memory_is_the_gradient_and_ten_numbers_a_cell() -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    # 4 kept, 2 of workspace, and 2 of float64 for each of two threads; pages and pools beside.
    assert float(done.stdout) < 20, "numbers for each cell beside the gradient"
