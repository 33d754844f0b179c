# SPDX-License-Identifier: Apache-2.0
"""On a GPU: shared memory just below its limit, and values out of range that nobody refuses."""

from typing import Any

import numpy as np
import pytest

from nativeops import automata, ctc_loss, fast_baum_welch_packed, forced_align, rnnt_costs
from nativeops.errors import RangeError
from nativeops.ops.sparse_cross_entropy import cross_entropy_softmax_and_gradient_sparse
from nativeops.testing.marks import missing

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        missing("cuda", "this machine has no NVIDIA GPU that PyTorch can use")


def on_both(function: Any, *arrays: Any) -> None:
    """The GPU computes what the CPU does."""
    found = function(*(array.cuda() for array in arrays))
    for mine, expected in zip(found, function(*arrays), strict=True):
        torch.testing.assert_close(mine.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [79, 80, 81, 764, 767])
def test_ctc_of_targets_that_fill_the_shared_memory(width: int) -> None:
    def gradient(x: Any, targets: Any) -> tuple[Any, ...]:
        x = x.requires_grad_()
        loss = ctc_loss(x, targets, reduction="none")
        return loss.detach(), *torch.autograd.grad(loss.sum(), x)

    on_both(gradient, torch.randn(2 * width, 2, 9), torch.randint(1, 9, (2, width)))


@pytest.mark.parametrize("classes", [12256, 12257, 12288, 12289])
def test_cross_entropy_of_classes_that_fill_the_shared_memory(classes: int) -> None:
    targets = torch.tensor([[0], [1]]), torch.tensor([[3], [classes - 1]]), torch.ones(2, 1)
    on_both(cross_entropy_softmax_and_gradient_sparse, torch.randn(2, 1, classes), *targets)


@pytest.mark.parametrize("width", [1523, 1534, 3055, 3070])
def test_alignment_to_targets_that_fill_the_shared_memory(width: int) -> None:
    for dtype in (torch.float32, torch.float64):
        scores = torch.randn(width + 5, 1, 4, dtype=dtype).log_softmax(-1)
        targets = 1 + torch.arange(width, dtype=torch.int32)[None] % 3
        on_both(lambda x, y: forced_align(x, y)[:1], scores, targets)


def test_blank_that_is_no_class_is_refused() -> None:
    x, targets = torch.zeros(5, 1, 4, device="cuda"), torch.ones(1, 2, dtype=torch.int32).cuda()
    with pytest.raises(RangeError, match="forced_align: `blank` is 4, but must be from 0 to 3"):
        forced_align(x, targets, blank=4)
    counts = [torch.tensor([n], dtype=torch.int32, device="cuda") for n in (5, 2)]
    with pytest.raises(RangeError, match="rnnt_loss: `blank` is 4, but must be from -1"):
        rnnt_costs(torch.zeros(1, 5, 3, 4, device="cuda"), targets, *counts, blank=4)


@pytest.mark.parametrize("start", [-3, 8, 12])
def test_packed_frames_out_of_range_change_nothing_beside_the_result(start: int) -> None:
    arrays = automata.ctc([[1]]).arguments()
    edges = {name: torch.from_numpy(np.asarray(array)).cuda() for name, array in arrays.items()}
    around = torch.full((30, 3), 7.0, device="cuda")
    fast_baum_welch_packed(
        torch.zeros(10, 3, device="cuda"),
        torch.tensor([start], dtype=torch.int32, device="cuda"),
        torch.tensor([5], dtype=torch.int32, device="cuda"),
        **edges,
        out=(around[10:20], None),
    )
    assert (around[:10] == 7).all()
    assert (around[20:] == 7).all()
