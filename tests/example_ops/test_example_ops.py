# SPDX-License-Identifier: Apache-2.0
"""Ops that users declare: built on first use, and right in all that the built-in ones are."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nativeops import build, registry
from nativeops.declare import Array, Float, op
from nativeops.errors import ArgumentError, BuildError
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.testing import Case, Mistake, cases, installed, mistakes, modes
from nativeops.testing.arrays import STRIDED, arrays_of
from nativeops.testing.guard import check_memory

from . import choices, results, sums, windows

FOLDER = Path(__file__).parent
OPS = [op for op in registry.ops() if op.kernel.parent == FOLDER]
for each in OPS:
    del registry._OPS[each.name]  # other tests look at the ops of the package
PRESENT = [framework for framework in FRAMEWORKS if installed(framework)]


@pytest.fixture(scope="module", autouse=True)
def known():
    """The ops are known meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_OPS", {**registry._OPS, **{op.name: op for op in OPS}})
        yield


@pytest.mark.parametrize(
    "case",
    [
        case
        for framework in PRESENT
        for mode in modes(framework)
        for op in OPS
        for case in cases(op, framework, mode=mode, brief=framework not in STRIDED)
    ],
    ids=str,
)
def test_case_is_right(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("mistake", [m for op in OPS for m in mistakes(op)], ids=str)
def test_mistake_is_explained_alike_in_all_frameworks(mistake: Mistake) -> None:
    mistake.run(PRESENT)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_kernels_stay_inside_their_arrays(op) -> None:
    assert check_memory(op) > 0


def test_all_ops_of_a_header_are_one_library(cache: Path) -> None:
    built = {build.build(each) for each in OPS}
    assert len(built) == len({each.kernel for each in OPS})
    assert not [path for path in cache.iterdir() if path.suffix != ".so"], "something was left"


def test_second_process_compiles_nothing(cache: Path) -> None:
    build.build(windows.moving_sum)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, subprocess, windows\n"
        "from nativeops import build\n"
        "def refuse(*args, **kwargs): raise AssertionError('the compiler was called')\n"
        "build._compile = refuse\n"
        "print(windows.moving_sum(np.ones((4, 1)), k=2).tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(FOLDER)],
        env={**os.environ, "NATIVEOPS_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[[2.0], [2.0], [2.0]]", done.stderr


def declare_twice(folder: Path, body: str):
    """An op `doubled` whose kernel has this body."""
    (folder / "doubled.h").write_text(
        '#pragma once\n#include "nativeops/devices/kernel.h"\nnamespace nativeops {\n'
        f"template <class T>\n{body}\n}}  // namespace nativeops\n"
    )
    registry._OPS.pop("doubled", None)

    @op(kernel=str(folder / "doubled.h"))
    def doubled(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return 2 * x

    return doubled


DOUBLED = """void doubled(Device& dev, In<T, 1> x, Out<T, 1> out) {
  for_each(dev, out, [=] KERNEL(int64_t i) { out(i) = T(FACTOR * Accum<T>(x(i))); });
}"""


def test_changed_kernel_is_built_anew(tmp_path: Path, cache: Path) -> None:
    first = declare_twice(tmp_path, DOUBLED.replace("FACTOR", "2"))
    assert first(np.ones(2)).tolist() == [2, 2]
    second = declare_twice(tmp_path, DOUBLED.replace("FACTOR", "3"))
    assert second(np.ones(2)).tolist() == [3, 3]
    again = declare_twice(tmp_path, DOUBLED.replace("FACTOR", "2"))
    assert again(np.ones(2)).tolist() == [2, 2]


def test_kernel_that_takes_something_else_is_refused_by_name(tmp_path: Path) -> None:
    wrong = declare_twice(tmp_path, "void doubled(Device&, In<T, 2>, Out<T, 1>) {}")
    with pytest.raises(BuildError, match=r"kernel `doubled` in doubled\.h does not take"):
        wrong(np.ones(2))


def test_missing_kernel_is_named(tmp_path: Path) -> None:
    missing = declare_twice(tmp_path, DOUBLED)
    missing.kernel.unlink()
    with pytest.raises(BuildError, match="there is no kernel at"):
        missing(np.ones(2))
    missing.kernel.mkdir()
    with pytest.raises(BuildError, match="there is no kernel at"):
        missing(np.ones(2))


def test_input_cannot_have_the_name_of_a_gradient(tmp_path: Path) -> None:
    @op(kernel=str(tmp_path / "clash.h"))
    def clash(d_out: Float[Array, "n"]) -> Float[Array, "n"]:
        return d_out

    with pytest.raises(ArgumentError, match="`d_out`"):
        clash.gradient(lambda d_out: d_out)
    del registry._OPS["clash"]


def test_kept_result_is_made_only_for_a_gradient() -> None:
    assert results.normalise(np.ones((2, 3))).inverse is None
    pytest.importorskip("torch")
    import torch

    x = torch.ones(2, 3, requires_grad=True)
    result = results.normalise(x)
    assert result.inverse is None
    assert result.y.grad_fn is not None


@pytest.mark.parametrize("framework", PRESENT)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums_are_as_wide_as_they_were_added_up(framework: str, dtype: str) -> None:
    arrays = arrays_of(framework, "cpu")
    with arrays.scope({dtype}):
        found = sums.mean_of(arrays.place(np.array([[0.0, 1.0, 2048.0]]), dtype).array)
        assert arrays.dtype(found) == ("float64" if dtype == "float64" else "float32")
        np.testing.assert_allclose(arrays.values(found), [683], rtol=1e-7)


@pytest.mark.parametrize("framework", PRESENT)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sums_that_are_absent_have_the_dtype_of_the_others(framework: str, dtype: str) -> None:
    arrays = arrays_of(framework, "cpu")
    wide = "float64" if dtype == "float64" else "float32"
    with arrays.scope({dtype, wide}):
        mean, x = arrays.place(np.ones(2), wide).array, arrays.place(np.eye(2), dtype).array
        compiled = lambda m, x: tuple(sums.centred(m, x))  # noqa: E731
        for run in (sums.centred, compiled if framework == "numpy" else arrays.compiled(compiled)):
            out, total = run(mean, x)
            assert (arrays.dtype(out), arrays.dtype(total)) == (dtype, wide)
            assert arrays.values(out).tolist() == [[0, -1], [-1, 0]]
            assert arrays.values(total).tolist() == [1, 1]


@pytest.mark.parametrize("framework", PRESENT)
@pytest.mark.parametrize("lead", [(2, 0), (0, 2), (2, 0, 3)])
def test_sums_over_no_items_are_zeros(framework: str, lead: tuple[int, ...]) -> None:
    arrays = arrays_of(framework, "cpu")
    mean, d_total = (arrays.place(np.zeros(lead), "float32").array for _ in range(2))
    x, d_out = (arrays.place(np.zeros((*lead, 4)), "float32").array for _ in range(2))
    found = sums.centred_grad(mean, x, d_out, d_total).d_scale
    assert arrays.values(found).tolist() == [0, 0, 0, 0]


def test_vmap_calls_an_op_without_leading_axes_for_each_item() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 7, 2)
    found = torch.func.vmap(windows.pieces)(x)
    assert torch.equal(found, torch.stack([windows.pieces(item) for item in x]))
    least, largest = torch.func.vmap(results.extremes)(x)
    assert torch.equal(least, x.amin(-1))
    assert torch.equal(largest, x.amax(-1))
    only = results.extremes.only(["largest"])
    alone = torch.func.vmap(lambda x: only(x).largest, in_dims=1)(x)
    assert torch.equal(alone, x.movedim(1, 0).amax(-1))


def test_vmap_of_the_gradient_is_the_gradient_of_each_item() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 7, 2, dtype=torch.float64)

    def loss(item):
        return (windows.pieces(item, step=1) ** 2).sum()

    found = torch.func.vmap(torch.func.grad(loss))(x)
    expected = torch.stack([torch.func.grad(loss)(item) for item in x])
    assert torch.allclose(found, expected)


def test_second_derivatives_of_ops_whose_gradients_have_gradients() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: windows.moving_sum(x, k=3) ** 2, x)
    a, b = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(results.dot, (a, b))


def test_integers_and_masks_get_no_gradient() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 2, requires_grad=True)
    index = torch.tensor([3, 0, 3])
    choices.take(x, index).sum().backward()
    assert x.grad.tolist() == [[1, 1], [0, 0], [0, 0], [2, 2]]


def test_op_survives_pickle_and_copy() -> None:
    import copy
    import pickle

    assert pickle.loads(pickle.dumps(windows.moving_sum)) is windows.moving_sum
    assert copy.deepcopy(windows.moving_sum) is windows.moving_sum


@pytest.mark.parametrize("want", [None, ("largest",)])
def test_rule_gets_zeros_for_a_result_that_nobody_uses_or_that_was_not_made(
    monkeypatch: pytest.MonkeyPatch, want: Any
) -> None:
    """Of the shape that it would have, though an empty tensor may stand for it."""
    torch = pytest.importorskip("torch")
    from nativeops.frameworks.torch import connect
    from nativeops.frameworks.torch_gradient import Function

    extremes: Any = results.extremes
    handle: Any = connect(extremes)
    asked: list[Any] = []

    def rule(x: Any, d_least: Any, d_largest: Any) -> Any:
        asked.extend([d_least, d_largest])
        return d_largest[:, None].expand_as(x)

    monkeypatch.setattr(extremes, "gradient_rule", rule)
    monkeypatch.setitem(vars(extremes), "gradient_names", ("x", "d_least", "d_largest"))
    values = handle.arrange((torch.randn(5, 7, requires_grad=True),), {"want": want})
    _, largest = Function(extremes, handle.outputs).apply(handle.compute, *values)
    largest.sum().backward()
    torch.testing.assert_close(asked, [torch.zeros(5), torch.ones(5)])
