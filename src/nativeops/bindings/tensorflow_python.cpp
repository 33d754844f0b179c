// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/tensorflow_python.h"

#include "nativeops/bindings/entry.h"
#include "nativeops/bindings/tensorflow.h"

namespace nativeops::tensorflow {
namespace {

PyObject* explain_in_python = nullptr;

PyObject* new_shape(int rank, const int64_t* sizes) {
  PyObject* shape = PyTuple_New(rank);
  for (int axis = 0; axis < rank; ++axis)
    PyTuple_SetItem(
        shape, axis,
        sizes[axis] == core::kAnySize ? Py_NewRef(Py_None) : PyLong_FromLongLong(sizes[axis]));
  return shape;
}

PyObject* new_value(const core::Attribute& spec, NativeopsAttribute value) {
  if (spec.type != core::AttributeType::choice) return entry::number_of(spec, value);
  return PyUnicode_FromString(spec.choices[value.integer].c_str());
}

std::string ask_python(int id, const NativeopsTensor* inputs,
                       const NativeopsAttribute* attributes) {
  const core::Op& op = core::op_at(id);
  PyObject* arrays = PyTuple_New(static_cast<Py_ssize_t>(op.inputs.size()));
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const int dtype = core::dtype_index(inputs[i].dtype);
    const int rank = inputs[i].ndim <= NATIVEOPS_MAX_RANK ? inputs[i].ndim : 0;
    PyObject* array = Py_BuildValue("sN", dtype < 0 ? "unknown" : core::kDtypeNames[dtype],
                                    new_shape(rank, inputs[i].shape));
    PyTuple_SetItem(arrays, static_cast<Py_ssize_t>(i), array);
  }
  PyObject* values = PyTuple_New(static_cast<Py_ssize_t>(op.attributes.size()));
  for (size_t i = 0; i < op.attributes.size(); ++i)
    PyTuple_SetItem(values, static_cast<Py_ssize_t>(i), new_value(op.attributes[i], attributes[i]));
  PyObject* text = PyObject_CallFunction(explain_in_python, "iNN", id, arrays, values);
  const char* words = text ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
  std::string found = words ? words : "";
  Py_XDECREF(text);
  PyErr_Clear();
  return found;
}

// Called in a thread of TensorFlow, and only when a call fails anyway. A program that is ending has
// no Python to ask.
std::string explain_call(int id, const NativeopsTensor* inputs,
                         const NativeopsAttribute* attributes) {
  if (!Py_IsInitialized()) return "";
  const PyGILState_STATE state = PyGILState_Ensure();
  std::string text = ask_python(id, inputs, attributes);
  PyGILState_Release(state);
  return text;
}

bool read_shape(PyObject* given, Shape& shape) {
  if (given == Py_None) return true;
  const Py_ssize_t rank = PyTuple_Size(given);
  if (rank < 0 || rank > NATIVEOPS_MAX_RANK) return false;
  shape.rank = static_cast<int>(rank);
  for (int axis = 0; axis < shape.rank; ++axis) {
    PyObject* size = PyTuple_GetItem(given, axis);
    shape.size[axis] = size == Py_None ? core::kAnySize : PyLong_AsLongLong(size);
  }
  return true;
}

}  // namespace

PyObject* connect_python(PyObject*, PyObject* args) {
  const char* library;
  PyObject* function;
  if (!PyArg_ParseTuple(args, "sO", &library, &function)) return nullptr;
  if (const char* missing = connect(library, explain_call))
    return PyErr_Format(PyExc_RuntimeError, "this TensorFlow has no `%s`", missing);
  explain_in_python = Py_NewRef(function);
  Py_RETURN_NONE;
}

PyObject* implement_python(PyObject*, PyObject* args) {
  int id;
  const char* name;
  if (!PyArg_ParseTuple(args, "is", &id, &name)) return nullptr;
  const std::string error = implement(id, name);
  if (!error.empty())
    return PyErr_Format(PyExc_RuntimeError, "TensorFlow refused `%s`: %s", name, error.c_str());
  Py_RETURN_NONE;
}

PyObject* infer_python(PyObject*, PyObject* args) {
  int id;
  PyObject *shapes, *values;
  if (!PyArg_ParseTuple(args, "iOO", &id, &shapes, &values)) return nullptr;
  const core::Op& op = core::op_at(id);
  Shape inputs[NATIVEOPS_MAX_ARRAYS], outputs[NATIVEOPS_MAX_ARRAYS];
  NativeopsAttribute attributes[NATIVEOPS_MAX_ATTRIBUTES];
  bool fits = true;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    fits &= read_shape(PyTuple_GetItem(shapes, static_cast<Py_ssize_t>(i)), inputs[i]);
  for (size_t i = 0; i < op.attributes.size(); ++i)
    fits &= entry::read_attribute(
        op.attributes[i], PyTuple_GetItem(values, static_cast<Py_ssize_t>(i)), attributes[i]);
  if (PyErr_Occurred()) return nullptr;
  if (!fits || !infer(op, inputs, attributes, outputs)) Py_RETURN_NONE;
  PyObject* found = PyTuple_New(static_cast<Py_ssize_t>(op.outputs.size()));
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const Shape& shape = outputs[i];
    PyTuple_SetItem(found, static_cast<Py_ssize_t>(i),
                    shape.rank < 0 ? Py_NewRef(Py_None) : new_shape(shape.rank, shape.size));
  }
  return found;
}

}  // namespace nativeops::tensorflow
