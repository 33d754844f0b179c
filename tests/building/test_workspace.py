# SPDX-License-Identifier: Apache-2.0
"""A user's kernel that multiplies matrices in a workspace: bits, errors, whose memory it is.

Its values are tested beside it, in examples/own_ops.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nativeops import get_num_threads, set_num_threads
from nativeops.declare import Array, Float, op
from nativeops.errors import KernelError
from nativeops.library import LEVELS, selected

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/own_ops/two_layers.py"
HEADER = """#pragma once
#include "nativeops/devices/gemm.h"
namespace nativeops {
template <class T>
void squared(Device& dev, In<T, 2> x, Out<T, 2> out) {
  gemm(dev, x, x, out);
}
}  // namespace nativeops
"""


@pytest.fixture
def shared(
    kept: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with one cache for all tests here."""
    folder = tmp_path_factory.getbasetemp().parent / "workspace"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("NATIVEOPS_CACHE", str(folder / "cache"))
    return folder


@pytest.fixture
def two_layers(shared: Path) -> Any:
    """The example op, declared here."""
    spec = importlib.util.spec_from_file_location("two_layers_of_a_test", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.two_layers


def arguments(n: int = 301) -> list[Any]:
    random = np.random.default_rng(5)
    shapes = ((n, 70), (129, 70), (129,), (33, 129), (33,))
    return [random.standard_normal(shape, dtype=np.float32) for shape in shapes]


def test_bits_of_products_do_not_depend_on_the_number_of_threads(two_layers) -> None:
    before, made = get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            set_num_threads(threads)
            made.append(two_layers(*arguments()).y.tobytes())
    finally:
        set_num_threads(before)
    assert made[0] == made[1] == made[2]


# In a process that has not loaded the package's own kernels, whose product it is.
ALONE = """
import numpy as np
from two_layers import two_layers
random = np.random.default_rng(5)
shapes = (301, 70), (129, 70), (129,), (33, 129), (33,)
given = [random.standard_normal(shape, dtype=np.float32) for shape in shapes]
wide = (array.astype(np.float64) for array in given)
expected = two_layers.reference(*wide).y
np.testing.assert_allclose(two_layers(*given).y, expected, rtol=1e-4, atol=1e-3)
"""


@pytest.mark.parametrize("level", LEVELS[: LEVELS.index(selected()) + 1])
def test_a_product_needs_nothing_but_the_op(shared: Path, level: str) -> None:
    environment = os.environ | {"NATIVEOPS_ISA": level, "PYTHONPATH": str(EXAMPLE.parent)}
    subprocess.run([sys.executable, "-c", ALONE], env=environment, check=True)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_sizes_that_do_not_fit_are_named_in_every_framework(shared: Path, framework: str) -> None:
    module = pytest.importorskip(framework)
    (shared / "squared.h").write_text(HEADER)

    @op(kernel=str(shared / "squared.h"))
    def squared(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return x @ x

    make = {"torch": "from_numpy", "tensorflow": "constant"}.get(framework, "asarray")
    array = getattr(module.numpy if framework == "jax" else module, make)
    said = r"squared: gemm: c\[2, 3\] is not the product of a\[2, 3\] and b\[2, 3\]\."
    with pytest.raises(KernelError, match=said):
        np.asarray(squared(array(np.ones((2, 3), np.float32))))


def test_pytorchs_profiler_counts_the_workspace(two_layers) -> None:
    torch = pytest.importorskip("torch")
    x, *layers = (torch.from_numpy(a) for a in arguments(4096))
    two_layers(x, *layers)
    with torch.profiler.profile(profile_memory=True) as profile:
        two_layers(x, *layers)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    taken = [event.nbytes() for event in events]
    for size in (4 * 4096 * 129, 4 * 4096 * 33):
        assert size in taken
        assert -size in taken, "it was not given back"


def test_tensorflow_counts_the_workspace_as_temporary_memory(two_layers) -> None:
    tf = pytest.importorskip("tensorflow")
    v1, given, metadata = tf.compat.v1, arguments(4096), tf.compat.v1.RunMetadata()
    traced = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    with tf.Graph().as_default(), v1.Session() as session:
        inputs = [v1.placeholder(array.dtype, array.shape) for array in given]
        out = two_layers(*inputs).y
        feed = dict(zip(inputs, given, strict=True))
        session.run(out, feed, options=traced, run_metadata=metadata)
    nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
    temporary = max(node.memory_stats.temp_memory_size for node in nodes)
    assert temporary >= 4 * 4096 * (129 + 33)
