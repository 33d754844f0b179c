// SPDX-License-Identifier: Apache-2.0
// What the direct ways from Python to a kernel share: reading a call, and returning its results.
#pragma once
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "nativeops/bindings/core.h"

namespace nativeops::entry {

// A call as it was written; the arrays are borrowed.
struct Request {
  PyObject* arrays[NATIVEOPS_MAX_ARRAYS];  // the inputs; null for one that is absent
  NativeopsAttribute attributes[NATIVEOPS_MAX_ATTRIBUTES];
  uint32_t want;                         // the outputs to make
  PyObject* outs[NATIVEOPS_MAX_ARRAYS];  // `out=`: where to write them; null for a new one
};

// Whether a function got an op, a tuple and a dict; else an error that tells how it is called.
bool is_call(PyObject* const* args, Py_ssize_t n, const char* usage);

// The op behind an `Op`; null if the core does not know it yet.
const core::Op* op_of(PyObject* owner);

// False, perhaps with a Python error, where the slow path must explain. Types of arrays are not
// looked at. kept: whether `want` may name what is kept for a gradient.
bool read(const core::Op& op, PyObject* args, PyObject* kwargs, bool kept, Request& request);

// Forgets an error that the slow path will meet again; false for one that must be raised now, such
// as KeyboardInterrupt. Not to be called once a kernel ran: a handler of signals may have raised
// any exception, and the kernel must not run twice.
bool forget_error();

// An attribute as the core wants it; false if it does not fit.
bool read_attribute(const core::Attribute& spec, PyObject* value, NativeopsAttribute& out);

// The same the other way; of a choice its place.
PyObject* number_of(const core::Attribute& spec, NativeopsAttribute value);

// The array, or the NamedTuple that the op declares; the arrays are borrowed.
PyObject* collect(PyObject* owner, PyObject* const* arrays, int n);

}  // namespace nativeops::entry
