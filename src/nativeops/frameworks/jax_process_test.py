# SPDX-License-Identifier: Apache-2.0
"""What needs a process of its own in JAX: first calls, memory, several devices."""

import os
import subprocess
import sys

import pytest

from nativeops.testing.threads import check_first_calls


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_first_calls_may_come_from_several_threads():
    check_first_calls("jax.numpy")


TRACED = """
import jax, jax.numpy as jnp
from nativeops import pairwise_l1
x = jnp.ones((5, 7))
jax.jit(pairwise_l1)(x, x)
from nativeops.frameworks.jax import _Array
assert type(x) is _Array, _Array
"""


def test_first_call_may_be_traced():
    run(TRACED)


LARGE = r"""
import re
import jax, jax.numpy as jnp
from nativeops import pairwise_l1
def memory(kind):
    return int(re.search(kind + r":\s*(\d+) kB", open("/proc/self/status").read())[1]) * 1024
y = jnp.ones((16, 16))
call = jax.jit(pairwise_l1) if {jit} else pairwise_l1
call(jnp.ones((4000, 16)), y).block_until_ready()
x = jnp.ones((2**21, 16)).block_until_ready()  # 128 MiB, as the result
open("/proc/self/clear_refs", "w").write("5")  # forgets the peak so far
before = memory("VmRSS")
out = call(x, y).block_until_ready()
print((memory("VmHWM") - before) / out.nbytes)
"""


@pytest.mark.parametrize("jit", [False, True])
def test_large_arrays_are_not_copied(jit):
    more = float(run(LARGE.format(jit=jit)))
    assert 0.9 < more < 1.4, f"the call took the memory of {more} results"


DEVICES = """
import jax, jax.numpy as jnp
from nativeops import pairwise_l1
from nativeops.errors import DeviceError
first, second, third, _ = jax.devices()
x, y = jnp.ones((5, 7)), jnp.zeros((6, 7))
assert pairwise_l1(jax.device_put(x, second), y).devices() == {second}
assert pairwise_l1(jax.device_put(x, third), jax.device_put(y, third)).devices() == {third}
large = jax.device_put(jnp.ones((1100, 3)), second)
for _ in range(2):
    assert pairwise_l1(large, large).devices() == {second}
with jax.default_device(second):
    assert pairwise_l1(jnp.ones((5, 7)), jnp.ones((6, 7))).devices() == {second}
for call in (pairwise_l1, lambda *a: pairwise_l1(x=a[0], y=a[1])):
    try:
        call(jax.device_put(x, second), jax.device_put(y, third))
    except DeviceError as error:
        assert "`x` is on cpu:1 but `y` is on cpu:2." in str(error), error
    else:
        raise AssertionError("no error")
"""


def test_calls_run_where_the_arrays_are():
    run(DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=4")


def test_import_of_the_package_imports_no_framework():
    run("import sys, nativeops; assert 'jax' not in sys.modules and nativeops.pairwise_l1")
