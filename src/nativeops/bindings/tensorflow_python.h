// SPDX-License-Identifier: Apache-2.0
// What Python sees of the bindings for TensorFlow.
#pragma once
#include "nativeops/bindings/numpy.h"

namespace nativeops::tensorflow {

// connect_tensorflow(path of libtensorflow_framework.so.2, explain), where explain(id, arrays,
// attributes) returns a text, and an array is (dtype, shape)
PyObject* connect_python(PyObject* self, PyObject* args);

// implement_tensorflow(id, name): registers an op
PyObject* implement_python(PyObject* self, PyObject* args);

// infer_tensorflow(id, shapes, attributes) -> the outputs' shapes, or None if they cannot fit; a
// shape is None where the number of axes is not known, and None stands for an unknown size
PyObject* infer_python(PyObject* self, PyObject* args);

}  // namespace nativeops::tensorflow
