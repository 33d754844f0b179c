# SPDX-License-Identifier: Apache-2.0
"""Kernels run on PyTorch's own threads, and on ours where it has none."""

import subprocess
import sys
import time

import pytest
import torch

START = """
import os
import threading
import torch
from nativeops import get_num_threads, pairwise_l1, set_num_threads

set_num_threads(2)
torch.set_num_threads(2)
x, y = torch.randn(600, 64), torch.randn(500, 64)
expected = torch.cdist(x, y, p=1)

def n_threads():
    return len(os.listdir("/proc/self/task"))

def check():
    torch.testing.assert_close(pairwise_l1(x, y), expected, rtol=1e-4, atol=1e-3)
"""


def run(program: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", START + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_no_second_pool_is_started():
    # PyTorch's threads exist after cdist; a kernel on them needs no more.
    before, after = run("before = n_threads(); check(); print(before, n_threads())").split()
    assert int(before) >= 2
    assert before == after


def test_number_of_threads_is_also_pytorchs():
    program = "torch.set_num_threads(1); check(); print(torch.get_num_threads(), get_num_threads())"
    assert run(program).split() == ["1", "2"]


def test_forked_child_uses_threads_of_its_own():
    # PyTorch's pool would wait forever for threads that only the parent has.
    out = run(
        "check()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    torch.set_num_threads(2)\n"
        "    result = pairwise_l1(x, y)\n"
        "    os._exit(0 if abs(float(result[3, 5] - expected[3, 5])) < 1e-3 else 1)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    assert out.split() == ["0"]


@pytest.mark.parametrize("order", ["torch, nativeops", "nativeops, torch"])
def test_forked_child_of_a_parent_that_made_no_call(order: str):
    program = f"""
import {order}
import os
torch.set_num_threads(2)
x, y = torch.randn(600, 64), torch.randn(500, 64)
expected = torch.cdist(x, y, p=1)
child = os.fork()
if child == 0:
    torch.set_num_threads(2)
    result = nativeops.pairwise_l1(x, y)
    os._exit(0 if abs(float(result[3, 5] - expected[3, 5])) < 1e-3 else 1)
print(os.waitpid(child, 0)[1])
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["0"]


def test_forked_child_takes_as_many_threads_as_pytorch():
    # A worker of a DataLoader sets one: with many workers the CPUs would be shared many times.
    out = run(
        "set_num_threads(8); check()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    made = []\n"
        "    for threads in (1, 3):\n"
        "        torch.set_num_threads(threads)\n"
        "        before = n_threads()\n"
        "        pairwise_l1(x, y)\n"
        "        made.append(n_threads() - before)\n"
        "    os._exit(0 if made == [0, 2] else 1)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    assert out.split() == ["0"]


def test_many_threads_may_call_at_once():
    out = run(
        "threads = [threading.Thread(target=lambda: [check() for _ in range(20)])"
        " for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; print('done')\n"
    )
    assert out.split() == ["done"]


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_results_do_not_depend_on_pytorchs_threads(n_threads: int):
    from nativeops import pairwise_l1

    x, y = torch.randn(301, 70), torch.randn(203, 70)
    expected = pairwise_l1(x, y)
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        assert torch.equal(pairwise_l1(x, y), expected)
    finally:
        torch.set_num_threads(before)


def test_results_do_not_depend_on_other_processes():
    # A thread that loses its CPU makes the caller do small work alone for some time.
    from nativeops.bench.neighbour import Neighbour
    from nativeops.layers.torch import LSTM

    neighbour = Neighbour()
    layer, x = LSTM(64, 256), torch.randn(40, 1, 64)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = layer(x)[0]
    torch.set_num_threads(2)
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert torch.equal(layer(x)[0], expected)
        assert neighbour.process.poll() is None, "the neighbour has ended"
    finally:
        torch.set_num_threads(before)
