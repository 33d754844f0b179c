// SPDX-License-Identifier: Apache-2.0
// NumPy arrays as the core's tensors, through the buffer protocol.
#pragma once
#include "nativeops/bindings/entry.h"

namespace nativeops::numpy {

// What this file needs of NumPy, handed over once by frameworks/numpy.py.
struct Numpy {
  PyObject* array_type = nullptr;
  PyObject* empty = nullptr;
  PyObject* dtypes[core::kDtypeCount] = {};  // null for those that NumPy itself lacks
  PyObject* slow = nullptr;                  // called for whatever the fast path does not take
};
extern Numpy numpy;

// A buffer, held while the tensor is in use.
class Held {
 public:
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (held_) PyBuffer_Release(&buffer_);
  }

  // False without a Python error if the array is of no dtype that ops take.
  bool hold(PyObject* array, bool writable, NativeopsTensor& tensor);

 private:
  Py_buffer buffer_;
  bool held_ = false;
  int64_t strides_[NATIVEOPS_MAX_RANK];
};

// memory(bytes): what `numpy.ndarray` takes as the buffer of a large result, whose memory goes back
// with it; None for a small one.
PyObject* memory(PyObject* self, PyObject* bytes);

// fast(op, args, kwargs): arrays that fit are computed at once; else `slow(op, args, kwargs)`.
PyObject* fast(PyObject* self, PyObject* const* args, Py_ssize_t n);

}  // namespace nativeops::numpy
