// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/jax.h"

namespace nativeops::jax {
namespace {

// What this file needs of JAX and of `frameworks/jax.py`, handed over once.
struct Jax {
  PyObject* array_type = nullptr;
  PyObject *slow = nullptr, *explain = nullptr;
  PyObject* handles = nullptr;  // names of attributes and keys
  PyObject* name = nullptr;
  PyObject* direct = nullptr;
  PyObject* aval = nullptr;
  PyObject* shape = nullptr;
} jax;

// (number of arrays, function) of an op; null without an error if there is none yet.
PyObject* direct_of(PyObject* op) {
  PyObject* handles = PyObject_GetAttr(op, jax.handles);
  if (!handles) return nullptr;
  PyObject* handle = PyDict_GetItemWithError(handles, jax.name);  // borrowed: the op keeps it
  PyObject* direct = handle ? PyObject_GetAttr(handle, jax.direct) : nullptr;
  Py_DECREF(handles);
  return direct;
}

// With fewer elements in all inputs a result is hardly large.
constexpr Py_ssize_t kFew = 1024;

// The number of elements; below 0 with an error.
Py_ssize_t elements_of(PyObject* array) {
  PyObject* type = PyObject_GetAttr(array, jax.aval);
  PyObject* shape = type ? PyObject_GetAttr(type, jax.shape) : nullptr;
  const Py_ssize_t rank = shape ? PyTuple_Size(shape) : -1;
  Py_ssize_t count = 1;
  for (Py_ssize_t axis = 0; axis < rank; ++axis)
    count *= PyLong_AsSsize_t(PyTuple_GetItem(shape, axis));
  Py_XDECREF(shape);
  Py_XDECREF(type);
  return PyErr_Occurred() ? -1 : count;
}
bool are_few(PyObject* arrays) {
  Py_ssize_t count = 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(arrays); ++i) {
    const Py_ssize_t elements = elements_of(PyTuple_GetItem(arrays, i));
    if (elements < 0 || (count += elements) >= kFew) return false;
  }
  return true;
}

bool are_plain(PyObject* arrays, Py_ssize_t n) {
  if (PyTuple_Size(arrays) != n) return false;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (reinterpret_cast<PyObject*>(Py_TYPE(PyTuple_GetItem(arrays, i))) != jax.array_type)
      return false;
  return true;
}

// Null where the slow path must take over: it finds memory for large results. Once JAX has been
// `called`, an error is what it said, or comes from a handler of signals.
PyObject* call(PyObject* op, PyObject* arrays, bool& called) {
  const core::Op* known = entry::op_of(op);
  PyObject* direct = known ? direct_of(op) : nullptr;
  if (!direct) return nullptr;
  PyObject* result = nullptr;
  if (direct != Py_None && are_plain(arrays, PyLong_AsSsize_t(PyTuple_GetItem(direct, 0))) &&
      (!known->has_made_large() || are_few(arrays))) {
    called = true;
    result = PyObject_Call(PyTuple_GetItem(direct, 1), arrays, nullptr);
  }
  Py_DECREF(direct);
  return result;
}

// Raises the error that says in the op's own words what the present one tells.
PyObject* explain(PyObject* op, PyObject* arrays) {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace) PyException_SetTraceback(error, trace);
  PyObject* result = PyObject_CallFunctionObjArgs(jax.explain, op, arrays, error, nullptr);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(trace);
  return result;
}

}  // namespace

PyObject* connect(PyObject*, PyObject* args) {
  PyObject *array_type, *slow, *explain;
  if (!PyArg_ParseTuple(args, "OOO", &array_type, &slow, &explain)) return nullptr;
  jax = {Py_NewRef(array_type),
         Py_NewRef(slow),
         Py_NewRef(explain),
         PyUnicode_InternFromString("handles"),
         PyUnicode_InternFromString("jax"),
         PyUnicode_InternFromString("direct"),
         PyUnicode_InternFromString("aval"),
         PyUnicode_InternFromString("shape")};
  Py_RETURN_NONE;
}

PyObject* eager(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (!entry::is_call(args, n, "eager_jax(op, args, kwargs)")) return nullptr;
  bool called = false;
  PyObject* result = PyDict_Size(args[2]) ? nullptr : call(args[0], args[1], called);
  if (result) return result;
  if (called) return PyErr_ExceptionMatches(PyExc_Exception) ? explain(args[0], args[1]) : nullptr;
  if (!entry::forget_error()) return nullptr;
  return PyObject_CallFunctionObjArgs(jax.slow, args[0], args[1], args[2], nullptr);
}

PyObject* made_large(PyObject*, PyObject* op) {
  const core::Op* known = entry::op_of(op);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(known && known->has_made_large());
}

}  // namespace nativeops::jax
