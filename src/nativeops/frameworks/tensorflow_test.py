# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors: values, errors, memory and threads."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nativeops
from nativeops import pairwise_l1, pairwise_lp
from nativeops.errors import ArgumentError, DtypeError
from nativeops.ops.pairwise_l1 import pairwise_l1_grad
from nativeops.testing.threads import check_first_calls, check_others_run

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TF_NUM_INTRAOP_THREADS="2", TF_NUM_INTEROP_THREADS="2")
tf = pytest.importorskip("tensorflow")

from nativeops.frameworks import tensorflow_handle  # noqa: E402
from nativeops.testing.arrays_tensorflow import composed_l1, random  # noqa: E402


def assert_close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    found, expected = (tf.cast(a, tf.float64).numpy() for a in (found, expected))
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(tf.float32, 1e-5), (tf.float64, 1e-12), (tf.bfloat16, 1e-2), (tf.float16, 2e-3)],
)
def test_value_is_that_of_composed_tensorflow(dtype, tolerance):
    x, y = random(3, 1, 5, 7, dtype=dtype), random(2, 6, 7, dtype=dtype)
    out = pairwise_l1(x, y)
    assert out.dtype == dtype
    assert out.device.endswith("CPU:0")
    assert_close(out, composed_l1(tf.cast(x, tf.float64), tf.cast(y, tf.float64)), tolerance)


@pytest.mark.parametrize("shapes", [((0, 7), (6, 7)), ((5, 0), (6, 0)), ((0, 5, 7), (1, 6, 7))])
def test_empty_arrays_give_what_numpy_gives(shapes):
    x, y = (random(*shape) for shape in shapes)
    out = pairwise_l1(x, y)
    assert out.shape == pairwise_l1(x.numpy(), y.numpy()).shape
    assert not out.numpy().any()


@pytest.mark.parametrize("p", [1, 1.0, 2.0, 3.5, 1 / 3 + 1, float("inf")])
def test_attributes_arrive_as_written(p):
    x, y = random(5, 7, dtype=tf.float64), random(6, 7, dtype=tf.float64)
    expected = tf.constant(pairwise_lp(x.numpy(), y.numpy(), p=p))
    assert_close(pairwise_lp(x, y, p=p), expected, 1e-15)
    assert_close(pairwise_lp(y=y, x=x, p=p), expected, 1e-15)
    assert_close(tf.function(lambda x: pairwise_lp(x, y, p=p))(x), expected, 1e-15)
    assert_close(pairwise_lp(x, y), tf.norm(x[:, None] - y[None], axis=-1), 1e-13)


def test_many_values_of_an_attribute_are_all_right():
    x, y = random(2, 3), random(2, 3)
    for p in np.linspace(1, 4, 300):
        found = pairwise_lp(x, y, p=float(p))
        assert_close(found, tf.constant(pairwise_lp(x.numpy(), y.numpy(), p=float(p))), 1e-6)


@pytest.mark.parametrize("kind", [float, np.float64], ids=["Python", "NumPy"])
@pytest.mark.parametrize("by_name", [False, True])
def test_kernels_of_old_attributes_are_given_up(monkeypatch, kind, by_name):
    pairwise_lp(x := random(2, 3), x)
    known = pairwise_lp.handles["tensorflow"].calls
    cleared, most, cache = [], 8, tensorflow_handle.context.context()
    monkeypatch.setattr(tensorflow_handle, "_MOST_CALLS", most)
    monkeypatch.setattr(cache, "clear_kernel_cache", lambda: cleared.append(1))
    for _ in range(2):
        known.clear()
        for i in range(3 * most):
            p = kind(2 + i / 8)
            pairwise_lp(x=x, y=x, p=p) if by_name else pairwise_lp(x, x, p=p)
            assert len(known) <= most
    assert len(cleared) == 4


def test_results_that_nobody_wants_are_not_made():
    x, y, d_out = random(5, 7), random(6, 7), random(5, 6)
    both = pairwise_l1_grad(x, y, d_out)
    for wanted in (["d_x"], ("d_x",)):
        one = pairwise_l1_grad(x, y, d_out, want=wanted)
        assert one.d_y is None
        assert_close(one.d_x, both.d_x, 0)
    assert_close(pairwise_l1_grad.only(["d_y"])(x, y, d_out=d_out).d_y, both.d_y, 0)


def test_variables_are_tensors():
    import keras

    x, y = random(5, 7), random(6, 7)
    expected = composed_l1(x, y)
    for made in (tf.Variable, keras.Variable):
        assert_close(pairwise_l1(made(x), y), expected)
        assert_close(pairwise_l1(x, made(y)), expected)


WRONG = {
    "dtype": lambda new: pairwise_l1(new(5, 7, "int64"), new(6, 7)),
    "two dtypes": lambda new: pairwise_l1(new(5, 7), new(6, 7, "float64")),
    "axis": lambda new: pairwise_l1(new(5, 7), new(6, 8)),
    "transposed": lambda new: pairwise_l1(new(5, 7), new(7, 6)),
    "rank": lambda new: pairwise_l1(new(5, 7), new(7)),
    "many axes": lambda new: pairwise_l1(new(*[1] * 17), new(6, 7)),
    "leading axes": lambda new: pairwise_l1(new(2, 5, 7), new(3, 6, 7)),
    "missing": lambda new: pairwise_l1(new(5, 7)),
    "too many": lambda new: pairwise_l1(new(5, 7), new(6, 7), 3),
    "no array": lambda new: pairwise_l1(new(5, 7), 3.0),
    "unknown": lambda new: pairwise_lp(new(5, 7), new(6, 7), q=1.0),
    "range": lambda new: pairwise_lp(new(5, 7), new(6, 7), p=0.5),
    "bool": lambda new: pairwise_lp(new(5, 7), new(6, 7), p=True),
    "word": lambda new: pairwise_lp(new(5, 7), new(6, 7), p="one"),
    "want": lambda new: pairwise_l1_grad(new(5, 7), new(6, 7), new(5, 6), want=["d_z"]),
}


def numpy_text(wrong):
    def array(*words):
        shape = [word for word in words if isinstance(word, int)]
        dtype = next((word for word in words if isinstance(word, str)), "float32")
        return np.broadcast_to(np.zeros(1, dtype), shape)

    with pytest.raises(nativeops.NativeOpsError) as ours:
        WRONG[wrong](array)
    return ours.value


def tensor(*words):
    shape = [word for word in words if isinstance(word, int)]
    return tf.zeros(shape, next((word for word in words if isinstance(word, str)), "float32"))


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "with a tape"])
@pytest.mark.parametrize("wrong", WRONG)
def test_errors_say_the_same_as_for_numpy(wrong, recorded):
    def watched(*words):
        made = tensor(*words)
        tape.watch(made)
        return made

    ours = numpy_text(wrong)
    with tf.GradientTape() as tape, pytest.raises(type(ours)) as error:
        WRONG[wrong](watched if recorded else tensor)
    assert type(error.value) is type(ours)
    assert str(error.value) == str(ours)


def test_first_call_after_an_error_is_right():
    pairwise_lp(random(2, 3), random(2, 3), p=1)
    with pytest.raises(DtypeError):  # True == 1, which was remembered
        pairwise_lp(random(2, 3), random(2, 3), p=True)
    assert_close(pairwise_l1(random(5, 7), random(6, 7)), composed_l1(random(5, 7), random(6, 7)))


def test_tensors_that_are_not_dense_are_refused():
    x, y = random(5, 7), random(6, 7)
    ragged = tf.RaggedTensor.from_tensor(x)
    with pytest.raises(ArgumentError, match=r"`x` must be a dense tensor, but is RaggedTensor"):
        pairwise_l1(ragged, y)
    with pytest.raises(ArgumentError, match=r"`y` must be a dense tensor, but is SparseTensor"):
        pairwise_l1(x, tf.sparse.from_dense(y))
    slices = tf.IndexedSlices(x, tf.range(5), tf.constant([9, 7]))
    with pytest.raises(ArgumentError, match=r"`x` must be a dense tensor, but is IndexedSlices"):
        tf.function(lambda: pairwise_l1(slices, y))()
    with pytest.raises(DtypeError, match=r"`y` must be float32, .*, but is complex64"):
        pairwise_l1(x, tf.cast(y, tf.complex64))
    with pytest.raises(DtypeError, match=r"`y` must be float32, .*, but is string"):
        pairwise_l1(x, tf.fill([6, 7], "word"))


def test_out_and_other_frameworks_are_refused():
    x, y = random(5, 7), random(6, 7)
    with pytest.raises(ArgumentError, match="`out` is for NumPy arrays"):
        pairwise_l1(x, y, out=tf.zeros((5, 6)))
    with pytest.raises(ArgumentError, match="`x` is a tensorflow array but `y` is a numpy array"):
        pairwise_l1(x, y.numpy())
    with pytest.raises(ArgumentError, match="`x` is a numpy array but `y` is a tensorflow array"):
        pairwise_l1(x.numpy(), y)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def peak_growth(run):
    """The most memory that a call holds beyond what was there before it."""
    seen, stop = [resident()], threading.Event()

    def watch():
        while not stop.wait(0.0005):
            seen.append(resident())

    thread = threading.Thread(target=watch)
    thread.start()
    result = run()
    stop.set()
    thread.join()
    return max(seen) - seen[0], result


def test_neither_arguments_nor_results_are_copied():
    x = tf.ones((1 << 24, 1))  # 64 MB
    y = tf.zeros((2, 1))
    pairwise_l1(x[:4], y)
    growth, out = peak_growth(lambda: pairwise_l1(x, y))
    assert growth < 160 << 20, "the result alone has 128 MB"
    assert out.numpy().all()
    growth, _ = peak_growth(lambda: pairwise_l1(x, y[:0]))
    assert growth < 32 << 20, "an argument was copied"


def test_threads_may_call_at_once():
    def work(seed):
        x = tf.constant(np.random.default_rng(seed).standard_normal((2, 17, 9)))
        y = random(13, 9, dtype=tf.float64)
        for _ in range(30):
            with tf.GradientTape() as tape:
                tape.watch(x)
                out = pairwise_l1(x, y)
                loss = tf.reduce_sum(tf.sin(out))
            gradient = tape.gradient(loss, x)
        return np.concatenate([out.numpy().ravel(), gradient.numpy().ravel()])

    alone = [work(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert np.array_equal(list(pool.map(work, range(8))), alone)


def test_first_calls_may_come_from_several_threads():
    check_first_calls("tensorflow")


def test_other_python_threads_run_during_an_op():
    x = tf.ones((3000, 400), tf.float64)
    check_others_run(lambda: pairwise_l1(x, x))


def test_import_of_the_package_imports_no_framework_and_the_adapter_starts_no_device():
    code = "import sys, nativeops; assert 'tensorflow' not in sys.modules\n"
    code += "nativeops.frameworks.load('tensorflow'); import tensorflow as tf\n"
    code += "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0],"
    code += " [tf.config.LogicalDeviceConfiguration()] * 2)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


SMALL = """
import numpy as np
import tensorflow as tf
from nativeops import pairwise_l1
x, y = np.full((4000, 8), 1e-40, np.float32), np.zeros((1000, 8), np.float32)
for call in (lambda: pairwise_l1(tf.constant(x), tf.constant(y)), lambda: pairwise_l1(x, y)):
    for _ in range(3):
        print(*np.unique(np.asarray(call())))
"""


def test_small_numbers_are_not_flushed_by_threads_that_tensorflow_started():
    command = [sys.executable, "-c", SMALL]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(np.float32(8) * np.float32(1e-40))] * 6
