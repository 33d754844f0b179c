// SPDX-License-Identifier: Apache-2.0
// Eager calls with JAX arrays: straight to the compiled function of an op that was called before.
#pragma once
#include "nativeops/bindings/entry.h"

namespace nativeops::jax {

// connect_jax(array_type, slow, explain)
PyObject* connect(PyObject* self, PyObject* args);

// eager_jax(op, args, kwargs): `op.handles["jax"].direct` is (number of arrays, function), or None.
// The function is called if there are that many arrays, all of them plain, and nothing else, and of
// few elements if the op has made a large result; where it fails, and for all other calls,
// `slow(op, args, kwargs)`.
PyObject* eager(PyObject* self, PyObject* const* args, Py_ssize_t n);

// made_large_in_jax(op): whether XLA has made a large result of it on the CPU
PyObject* made_large(PyObject* self, PyObject* op);

}  // namespace nativeops::jax
