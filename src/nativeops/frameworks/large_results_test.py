# SPDX-License-Identifier: Apache-2.0
"""Large results of NumPy and PyTorch: memory that is ready, theirs alone, and gone with them."""

import gc
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from nativeops import pairwise_l1
from nativeops.testing import installed
from nativeops.testing.arrays import arrays_of

# More than 8 MB and, of bfloat16, than 4: both are taken from what is kept.
ROWS = 1449
FRAMEWORKS = ["numpy", *(["torch"] if installed("torch") else [])]

pytestmark = pytest.mark.parametrize("framework", FRAMEWORKS)


def random_rows(framework: str, seed: int, dtype: str = "float32") -> Any:
    x = np.random.default_rng(seed).standard_normal((ROWS, 3)).astype(np.float32)
    return arrays_of(framework, "cpu").place(x, dtype, "contiguous").array


def address(result: Any) -> int:
    return result.ctypes.data if isinstance(result, np.ndarray) else result.data_ptr()


def values(framework: str, result: Any) -> Any:
    return arrays_of(framework, "cpu").values(result)


def test_next_result_lies_where_the_last_one_was(framework: str) -> None:
    x = random_rows(framework, 0)
    places = set()
    for _ in range(4):
        result = pairwise_l1(x, x)
        places.add(address(result))
        del result
    assert len(places) == 1


def test_results_that_are_held_stay_as_they_are(framework: str) -> None:
    inputs = [random_rows(framework, seed) for seed in range(5)]
    results = [pairwise_l1(x, x) for x in inputs]
    assert len({address(result) for result in results}) == len(results)
    before = [values(framework, result).copy() for result in results]
    rows = [result[7:9] for result in results]  # they keep the whole alive
    del results
    gc.collect()
    others = [pairwise_l1(x + 1, x) for x in inputs]
    for row, whole in zip(rows, before, strict=True):
        assert np.array_equal(values(framework, row), whole[7:9])
    assert not {address(other) for other in others} & {address(row) for row in rows}


def test_results_are_like_small_ones(framework: str) -> None:
    if framework == "numpy" and not installed("ml_dtypes"):
        pytest.skip("NumPy has bfloat16 only with ml_dtypes")
    for dtype in ("float32", "bfloat16"):
        x = random_rows(framework, 0, dtype)
        large, small = pairwise_l1(x, x), pairwise_l1(x[:5], x[:5])
        assert type(large) is type(small)
        assert large.dtype == small.dtype == x.dtype
        large += 1  # they may be written to
        again = pickle.loads(pickle.dumps(large))
        assert np.array_equal(values(framework, again), values(framework, large))
        assert np.array_equal(values(framework, large)[:5, :5], values(framework, small + 1))
        if framework == "numpy":
            assert small.flags.owndata
            assert not large.flags.owndata
            assert large.flags.c_contiguous
            assert large.flags.writeable
            assert large.flags.aligned


def test_what_is_kept_can_be_given_back(framework: str) -> None:
    # By what the system says of a process in which nothing else comes and goes.
    code = f"""
import resource, numpy as np, {framework}
from nativeops import empty_cache, pairwise_l1
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
x = {framework}.ones(({ROWS}, 3), dtype={framework}.float32)
pairwise_l1(x, x)
empty_cache()
before = resident()
results = [pairwise_l1(x, x) for _ in range(8)]
size = results[0].nbytes
del results
assert resident() - before > 6 * size, "results were not kept"
empty_cache()
assert resident() - before < 2 * size, "they were not given back"
assert pairwise_l1(x, x)[5, 5] == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_results_from_256_kb_on_are_ready(framework: str) -> None:
    # Of other allocators two such arrays are fresh pages each time: 156 faults for each.
    code = f"""
import resource, numpy as np, {framework}
from nativeops import pairwise_l1
x = {framework}.ones((400, 3), dtype={framework}.float32)
def faults(calls):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        two = [pairwise_l1(x, x) for _ in range(2)]
        del two
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(10)
print(faults(50))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500


def test_too_large_a_result_is_an_error(framework: str) -> None:
    # 1 TB, with 2 GB of memory that may be reserved beyond what the imports have taken.
    code = f"""
import resource, numpy as np, {framework}
from nativeops import pairwise_l1
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), -1))
x = {framework}.zeros((2**19, 1), dtype={framework}.float32)
try:
    pairwise_l1(x, x)
except MemoryError as error:
    print(error)
print(pairwise_l1(x[:1500], x[:1500]).sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "there is no memory for the result: float32[524288, 524288]" in done.stdout
    assert str(2**40) in done.stdout
    assert done.stdout.strip().endswith(("0.0", "tensor(0.)"))
