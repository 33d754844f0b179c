// SPDX-License-Identifier: Apache-2.0
// Calls with plain tensors, from Python straight to the kernel.
#pragma once
#include "nativeops/bindings/entry.h"

namespace nativeops::torch {

// torch_state(path of libc10.so) -> the dispatch keys that this thread (includes, excludes) unlike
// a new thread; None if this PyTorch does not show them.
PyObject* state(PyObject* self, PyObject* path);

// connect_direct_torch(libtorch_cpu.so, libtorch_python.so, Tensor, Parameter, globals of
// forward_ad, samples, plain, inference): see frameworks/torch_direct.py. What is missing, or None.
PyObject* connect_direct(PyObject* self, PyObject* args);

// direct_torch(op, args, kwargs) -> the result; the list of the values in the order of the schema
// (None for absent inputs) where only a gradient has to be recorded; None where the dispatcher of
// PyTorch has to see the call, or something must be explained.
PyObject* direct(PyObject* self, PyObject* const* args, Py_ssize_t n);

// direct_torch_values(id, *values in the order of the schema, None for absent inputs) -> what the
// op's kernel gives the dispatcher; None as above.
PyObject* values(PyObject* self, PyObject* const* args, Py_ssize_t n);

}  // namespace nativeops::torch
