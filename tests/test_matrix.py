# SPDX-License-Identifier: Apache-2.0
"""Every built-in op x framework x device x dtype x layout x size, from the declarations alone."""

import pytest

import nativeops.ops  # noqa: F401  declares the built-in ops
from nativeops.errors import DeviceError
from nativeops.frameworks.base import FRAMEWORKS
from nativeops.registry import ops
from nativeops.testing import Case, Mistake, cases, installed, mistakes, modes
from nativeops.testing.guard import check_memory
from nativeops.testing.marks import missing
from nativeops.testing.probe import finds_gpu

OPS = [op for op in ops() if op.built_in]
# Those derived from another op have the checks of that one.
WRITTEN = [op for op in OPS if op.twice is None]
TAKES_LONG = ("torch", "compiled")
# By themselves; a derived gradient is compiled where its op is differentiated.
COMPILED = [op for op in OPS if op.twice is None or op.gradient_rule]
PRESENT = [framework for framework in FRAMEWORKS if installed(framework)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_framework_is_there(framework: str) -> None:
    if framework not in PRESENT:
        missing(framework, f"install it with `pip install {framework}`")


@pytest.mark.parametrize(
    "case",
    [
        # PyTorch's compiler takes seconds for each.
        pytest.param(case, marks=[pytest.mark.slow] if (framework, mode) == TAKES_LONG else [])
        for framework in PRESENT
        for mode in modes(framework)
        for op in (COMPILED if (framework, mode) == TAKES_LONG else OPS)
        for case in cases(op, framework, mode=mode)
    ],
    ids=str,
)
def test_case_is_right(case: Case) -> None:
    needed = case.framework == "numpy" and "bfloat16" in case.dtypes.values()
    if needed and not installed("ml_dtypes"):
        missing("ml_dtypes", "NumPy has bfloat16 only with it")
    case.run()


@pytest.mark.cuda
@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_cases_are_right_on_cuda(op, framework: str) -> None:
    if framework not in PRESENT:
        missing(framework, f"install it with `pip install {framework}`")
    if not finds_gpu(framework):
        what = "cuda" if framework == "torch" else "jax-cuda"
        missing(what, f"this machine has no NVIDIA GPU that {framework} can use")
    wrong = []
    for case in cases(op, framework, "cuda") if "cuda" in op.devices else ():
        try:
            case.run()
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
    assert not wrong, f"{len(wrong)} cases are wrong:\n" + "\n".join(wrong)


@pytest.mark.cuda
def test_op_of_the_cpu_says_so_on_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not finds_gpu("torch"):
        missing("cuda", "this machine has no NVIDIA GPU that PyTorch can use")
    (op,) = (op for op in OPS if op.name == "ctc_prefixes")
    with pytest.raises(DeviceError, match="it runs on the CPU only, but the arrays are on cuda:0"):
        op(torch.zeros(3, 1, 4, device="cuda"))


@pytest.mark.parametrize("mistake", [m for op in WRITTEN for m in mistakes(op)], ids=str)
def test_mistake_is_explained_alike_in_all_frameworks(mistake: Mistake) -> None:
    mistake.run(PRESENT)


@pytest.mark.parametrize(
    ("framework", "mistake"),
    [
        pytest.param(framework, mistake, id=f"{mistake}-{framework}")
        for framework in PRESENT
        for op in WRITTEN
        for mistake in mistakes(op)
        # PyTorch's compiler gives up in the code that binds arguments: it never comes to an error.
        if mistake.plain and (framework != "torch" or mistake.of_arrays)
        if "compiled" in modes(framework)
    ],
)
def test_mistake_is_explained_in_compiled_functions(framework: str, mistake: Mistake) -> None:
    mistake.run([framework], "compiled")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_kernels_stay_inside_their_arrays(op) -> None:
    assert check_memory(op) > 0
