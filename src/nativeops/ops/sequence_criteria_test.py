# SPDX-License-Identifier: Apache-2.0
"""What the sequence criteria have in common: long sequences, memory, layouts, and each other."""

import subprocess
import sys

import numpy as np
import pytest

from nativeops import (
    ctc_fsa,
    ctc_loss,
    fast_baum_welch,
    fast_viterbi,
    forced_align,
    fsa_loss,
)
from nativeops.ops.fsa_loss import fsa_loss_grad
from nativeops.testing.aspects import levels, selected
from nativeops.testing.marks import without_sanitizer
from nativeops.testing.paths import dense_posteriors

torch = pytest.importorskip("torch")
RANDOM = np.random.default_rng(5)
each_level = pytest.mark.parametrize("level", levels())


@each_level
@pytest.mark.parametrize("label_loop", [True, False])
@pytest.mark.parametrize("blank", [0, 4, 8])
def test_ctc_loss_is_the_sum_over_its_automaton(level: str, blank: int, label_loop: bool) -> None:
    labels = RANDOM.integers(0, 8, (6, 9))
    targets = torch.from_numpy(labels + (labels >= blank))
    widths = torch.tensor([9, 0, 1, 5, 9, 7])
    frames = torch.tensor([40, 40, 3, 12, 8, 40])
    logits = torch.from_numpy(RANDOM.standard_normal((40, 6, 9))).requires_grad_()
    arriving = torch.from_numpy(RANDOM.standard_normal(6))
    options = {"blank": blank, "label_loop": label_loop}
    with selected(level):
        edges, weights, ends = ctc_fsa(targets, widths, **options)
        ours = fsa_loss(logits, edges, weights.double(), ends, frames.int())
        found = ctc_loss(logits, targets, frames, widths, reduction="none", **options)
        [expected] = torch.autograd.grad(ours, logits, arriving)
        [gradient] = torch.autograd.grad(found, logits, arriving)
    assert torch.isinf(found).tolist() == [False, False, False, False, True, False]
    torch.testing.assert_close(found, ours, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@each_level
def test_posteriors_are_those_of_dense_matrices(level: str) -> None:
    costs = RANDOM.exponential(1.0, (50, 2, 7))
    edges, weights, ends = ctc_fsa(RANDOM.integers(1, 7, (2, 8)))
    weights = weights + RANDOM.exponential(0.5, weights.shape)
    with selected(level):
        found = fast_baum_welch(costs, edges, weights, ends)
        grads = fsa_loss_grad(-costs, edges, weights, ends, np.ones(2), normalized=True)
        ctc = ctc_fsa(RANDOM.integers(1, 7, (2, 8)))
        plain = ctc[0], ctc[1].astype("float64"), ctc[2]
        without = fast_baum_welch(costs, *plain)
    for automaton, result in (((edges, weights, ends), found), (plain, without)):
        for b in range(2):
            total, posterior, taken = dense_posteriors(costs[:, b], b, *automaton)
            np.testing.assert_allclose(result.obs_scores[:, b], -np.log(total), rtol=1e-12)
            np.testing.assert_allclose(np.exp(-result.fwdbwd[:, b]), posterior, atol=1e-12)
            if result is found:
                np.testing.assert_allclose(grads.d_logits[:, b], -posterior, atol=1e-12)
                own = edges[3] == b
                np.testing.assert_allclose(grads.d_weights[own], taken[own], atol=1e-11)


@each_level
def test_twenty_thousand_frames_of_an_automaton_are_as_exact_as_of_ctc(level: str) -> None:
    logits = torch.from_numpy(RANDOM.standard_normal((20000, 1, 8))).requires_grad_()
    targets = torch.from_numpy(RANDOM.integers(1, 8, (1, 150)))
    expected = ctc_loss(logits, targets, reduction="none")
    [slope] = torch.autograd.grad(expected.sum(), logits)
    narrow = logits.detach().float().numpy()
    edges, weights, ends = (a.numpy() for a in ctc_fsa(targets))
    with selected(level):
        loss = fsa_loss(narrow, edges, weights.astype("float32"), ends)
        grads = fsa_loss_grad(narrow, edges, weights.astype("float32"), ends, np.ones(1, "float32"))
    np.testing.assert_allclose(loss, expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(grads.d_logits, slope.numpy(), atol=1e-3)
    assert grads.d_weights[weights < np.inf].sum() == pytest.approx(20000, rel=1e-4)


@each_level
def test_all_mass_on_one_path_is_found_by_all(level: str) -> None:
    said = [0, 2, 2, 0, 2, 1, 1, 0]
    scores = np.full((8, 1, 3), -np.inf)
    scores[range(8), 0, said] = 0.0
    targets = np.array([[2, 2, 1]])
    edges, weights, ends = ctc_fsa(targets)
    automaton = edges, weights.astype("float64"), ends
    with selected(level):
        posteriors = fast_baum_welch(-scores, *automaton)
        path = fast_viterbi(scores, *automaton)
        aligned = forced_align(scores, targets)
        loss = fsa_loss(scores, *automaton, normalized=True)
    assert not posteriors.obs_scores.any()
    assert np.array_equal(np.exp(-posteriors.fwdbwd), np.exp(scores))
    assert path.alignment[:, 0].tolist() == aligned.labels[:, 0].tolist() == said
    assert path.scores[0] == loss[0] == 0


@each_level
def test_frame_without_any_class_leaves_no_path(level: str) -> None:
    scores = RANDOM.standard_normal((12, 2, 5))
    scores[7, 1] = -np.inf
    targets = RANDOM.integers(1, 5, (2, 3))
    edges, weights, ends = ctc_fsa(targets)
    with selected(level):
        path = fast_viterbi(scores, edges, weights.astype("float64"), ends)
        aligned = forced_align(scores, targets)
    assert np.isfinite(path.scores[0])
    assert np.array_equal(path.alignment[:, 0], aligned.labels[:, 0])
    assert np.isneginf(path.scores[1])
    assert (path.alignment[:, 1] == -1).all()
    assert (aligned.labels[:, 1] == -1).all()


# In a process of its own, since a maximum over the life of a process cannot be reset.
PEAK = """
import numpy as np, nativeops
from nativeops.ops.fsa_loss import fsa_loss_grad
from nativeops.bench.memory import peak
random = np.random.default_rng(0)
"""


def beyond(program: str) -> int:
    """The peak that a program prints, in bytes beyond what it had before."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK + program], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


LONG = """
x = random.standard_normal((20000, 1, 6)).astype("float32")
edges, weights, ends = nativeops.ctc_fsa(random.integers(1, 6, (1, 500)))
weights, one = weights.astype("float32"), np.ones(1, "float32")
few = nativeops.ctc_fsa(np.ones((1, 2), int))
def run(x, *fsa):
    return {call}
run(x[:9], few[0], few[1].astype("float32"), few[2])
before = peak()
found = run(x, edges, weights, ends)
kept = found if isinstance(found, tuple) else (found,)
print(peak() - before - sum(array.nbytes for array in kept))
"""


@without_sanitizer
@pytest.mark.parametrize(
    "call",
    [
        "nativeops.fast_viterbi(x, *fsa)",
        "nativeops.fsa_loss(x, *fsa)",
        "fsa_loss_grad(x, *fsa, one)",
    ],
)
def test_long_sequence_takes_no_memory_that_grows_with_frames_times_states(call: str) -> None:
    import nativeops

    states, root, threads = 2505 + 3, 142, nativeops.get_num_threads()
    numbers = (40 + 6 * root + threads * (20 + 2 * root)) * states
    assert beyond(LONG.replace("{call}", call)) <= 4 * (numbers + 20000) + (6 << 20)
    assert 4 * numbers < 20000 * 1001  # less than a byte for each


LAYOUT = """
x = random.standard_normal((4, 1000, 5000)).astype("float32").transpose(1, 0, 2)
targets = random.integers(1, 5000, (4, 20))
def run(x, targets):
    return {call}
run(x[:9, :, :50], targets[:, :2] % 49 + 1)
before = peak()
found = run(x, targets)
print(peak() - before)
"""


@without_sanitizer
@pytest.mark.parametrize(
    "call",
    ["nativeops.ctc_loss(x, targets)", "nativeops.forced_align(x, targets)"],
)
def test_batch_major_logits_are_not_copied(call: str) -> None:
    assert beyond(LAYOUT.replace("{call}", call)) < 4 * 1000 * 5000 * 4 // 8
