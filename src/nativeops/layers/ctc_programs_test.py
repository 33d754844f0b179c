# SPDX-License-Identifier: Apache-2.0
"""CTC in compiled programs: targets one behind the other, and lengths that are listed."""

from typing import Any

import numpy as np
import pytest

from nativeops import ctc_greedy_decode, ctc_loss

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.standard_normal((9, 3, 5)).astype("float32")


def test_jax_compiles_targets_one_behind_the_other_with_listed_lengths() -> None:
    jax = pytest.importorskip("jax")
    x, joined = RANDOM.standard_normal((9, 2, 5)).astype("float32"), np.array([1, 2, 3])
    compiled = jax.jit(lambda x, joined: ctc_loss(x, joined, target_lengths=[2, 1]))
    np.testing.assert_allclose(
        compiled(x, joined), ctc_loss(x, joined, target_lengths=[2, 1]), rtol=1e-5
    )


def test_torch_compiles_targets_one_behind_the_other_with_listed_lengths() -> None:
    torch = pytest.importorskip("torch")
    x, joined = torch.from_numpy(LOGITS), torch.tensor([1, 2, 3, 1, 4])
    loss = lambda x, joined: ctc_loss(x, joined, [9, 9, 8], [2, 2, 1])  # noqa: E731
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, joined), loss(x, joined))


def test_torch_leaves_its_program_for_lengths_in_a_tensor_of_targets_with_one_axis() -> None:
    """As for its own loss; where it may not, it says what to give instead."""
    torch = pytest.importorskip("torch")
    x, joined = torch.from_numpy(LOGITS), torch.tensor([1, 2, 3, 1, 4])
    loss = lambda x, joined, counts: ctc_loss(x, joined, None, counts)  # noqa: E731
    compiled = torch.compile(loss, backend="aot_eager")
    for counts in (torch.tensor([2, 2, 1]), torch.tensor([1, 1, 3])):
        torch.testing.assert_close(compiled(x, joined, counts), loss(x, joined, counts))
    torch.compiler.reset()  # the parts that it has
    whole = torch.compile(loss, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="it asks for the numbers of a tensor: give these as a"):
        whole(x, joined, torch.tensor([2, 2, 1]))


def test_torch_compiles_an_empty_batch() -> None:
    torch = pytest.importorskip("torch")
    x, lengths = torch.randn(4, 0, 5), torch.zeros(0, dtype=torch.int32)
    targets = torch.zeros(0, 2, dtype=torch.int32)
    loss = lambda x, t, n: ctc_loss(x, t, n, n, reduction="none")  # noqa: E731
    greedy = lambda x, t, n: ctc_greedy_decode(x, n).scores  # noqa: E731
    for function in (loss, greedy):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert compiled(x, targets, lengths).shape == (0,)


def test_torch_says_what_is_missing_where_it_compiles() -> None:
    torch = pytest.importorskip("torch")
    compiled = torch.compile(ctc_loss, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="`targets` has one axis, so `target_lengths` must say"):
        compiled(torch.from_numpy(LOGITS), torch.tensor([1, 2, 3]))


def test_torch_compiles_once_for_listed_lengths_of_any_values() -> None:
    torch = pytest.importorskip("torch")
    programs: list[Any] = []

    def count(graph: Any, _: Any) -> Any:
        programs.append(graph)
        return graph.forward

    targets = torch.tensor([[1, 2, 3], [1, 2, 1]])
    greedy = lambda x, t, n, m: ctc_greedy_decode(x, n).scores  # noqa: E731
    for function in (ctc_loss, greedy):
        programs.clear()
        compiled = torch.compile(function, fullgraph=True, backend=count)
        for steps in range(10, 22):
            given = torch.randn(steps, 2, 5), targets, [steps, steps // 2], [3, 1 + steps % 3]
            torch.testing.assert_close(compiled(*given), function(*given))
        assert len(programs) <= 3  # of these sizes, of any sizes, and of lengths that differ
