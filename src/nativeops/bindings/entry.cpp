// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/entry.h"

namespace nativeops::entry {
namespace {

// The names of attributes of `Op`, made once.
PyObject* interned(PyObject*& name, const char* text) {
  if (!name) name = PyUnicode_InternFromString(text);
  return name;
}

// The keywords of a call; each one that is asked for counts as known.
struct Keywords {
  PyObject* dict;  // null if there are none
  Py_ssize_t known = 0;

  PyObject* find(const char* name) {
    PyObject* value = dict ? PyDict_GetItemString(dict, name) : nullptr;
    known += value != nullptr;
    return value;
  }
  bool all_known() const { return dict == nullptr || PyDict_Size(dict) == known; }
};

bool read_attributes(const core::Op& op, Keywords& keywords, Request& request) {
  for (size_t i = 0; i < op.attributes.size(); ++i) {
    const core::Attribute& spec = op.attributes[i];
    PyObject* value = keywords.find(spec.name.c_str());
    if (value == nullptr) {
      if (spec.required) return false;
      request.attributes[i] = spec.fallback;
    } else if (!read_attribute(spec, value, request.attributes[i])) {
      return false;
    }
  }
  return true;
}

bool read_arrays(const core::Op& op, PyObject* args, Keywords& keywords, Request& request) {
  const auto n = static_cast<Py_ssize_t>(op.inputs.size()), given = PyTuple_Size(args);
  if (given > n) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    const core::Array& spec = op.inputs[i];
    PyObject* array = i < given ? PyTuple_GetItem(args, i) : keywords.find(spec.name.c_str());
    if (array == Py_None) array = nullptr;
    if (array == nullptr && !spec.optional) return false;
    request.arrays[i] = array;
  }
  return true;
}

// The bit of an output; 0 if there is none of that name.
uint32_t bit_of(const core::Op& op, PyObject* name) {
  if (!PyUnicode_Check(name)) return 0;
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (PyUnicode_CompareWithASCIIString(name, op.outputs[i].name.c_str()) == 0) return 1u << i;
  return 0;
}

// A keyword of every op, unless an input or an attribute has its name.
PyObject* find_common(const core::Op& op, Keywords& keywords, const char* name) {
  for (const core::Array& input : op.inputs)
    if (input.name == name) return nullptr;
  for (const core::Attribute& attribute : op.attributes)
    if (attribute.name == name) return nullptr;
  PyObject* value = keywords.find(name);
  return value == Py_None ? nullptr : value;
}

bool read_want(const core::Op& op, PyObject* names, bool kept, Request& request) {
  if (!PyTuple_Check(names)) return false;
  uint32_t named = 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(names); ++i) {
    const uint32_t bit = bit_of(op, PyTuple_GetItem(names, i));
    if (!bit || (!kept && !(op.always & bit))) return false;
    named |= bit;
  }
  // Where no result may be left out, all that every call makes are named.
  if (named && op.always == op.certain && (op.certain & ~named)) return false;
  request.want = op.certain | named;
  return true;
}

// One array, or a tuple of those of all outputs that callers get.
bool read_out(const core::Op& op, PyObject* given, Request& request) {
  Py_ssize_t shown = 0, next = 0;
  for (size_t i = 0; i < op.outputs.size(); ++i) shown += op.always >> i & 1;
  if (shown > 1 && (!PyTuple_Check(given) || PyTuple_Size(given) != shown)) return false;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (!(op.always >> i & 1)) continue;
    PyObject* array = shown > 1 ? PyTuple_GetItem(given, next++) : given;
    if (array == Py_None) continue;
    if (!(request.want >> i & 1)) return false;
    request.outs[i] = array;
  }
  return true;
}

bool read_results(const core::Op& op, Keywords& keywords, bool kept, Request& request) {
  request.want = op.always;
  for (size_t i = 0; i < op.outputs.size(); ++i) request.outs[i] = nullptr;
  if (keywords.all_known()) return true;
  PyObject* names = find_common(op, keywords, "want");
  if (names && !read_want(op, names, kept, request)) return false;
  PyObject* given = find_common(op, keywords, "out");
  if (given && !read_out(op, given, request)) return false;
  return keywords.all_known();
}

}  // namespace

bool is_call(PyObject* const* args, Py_ssize_t n, const char* usage) {
  if (n == 3 && PyTuple_Check(args[1]) && PyDict_Check(args[2])) return true;
  PyErr_SetString(PyExc_TypeError, usage);
  return false;
}

const core::Op* op_of(PyObject* owner) {
  static PyObject* name = nullptr;
  PyObject* id = PyObject_GetAttr(owner, interned(name, "id"));
  if (!id) return nullptr;
  const long number = PyLong_AsLong(id);
  Py_DECREF(id);
  return number >= 0 ? &core::op_at(static_cast<int>(number)) : nullptr;
}

bool read(const core::Op& op, PyObject* args, PyObject* kwargs, bool kept, Request& request) {
  Keywords keywords = {PyDict_Size(kwargs) ? kwargs : nullptr};
  return read_attributes(op, keywords, request) && read_arrays(op, args, keywords, request) &&
         read_results(op, keywords, kept, request);
}

bool forget_error() {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyErr_Clear();
  return true;
}

PyObject* collect(PyObject* owner, PyObject* const* arrays, int n) {
  static PyObject* name = nullptr;
  PyObject* type = PyObject_GetAttr(owner, interned(name, "result"));
  if (!type) return nullptr;
  PyObject* result = nullptr;
  if (type == Py_None) {
    result = Py_NewRef(arrays[0]);
  } else if (PyObject* fields = PyTuple_New(n)) {
    for (int i = 0; i < n; ++i) PyTuple_SetItem(fields, i, Py_NewRef(arrays[i]));
    result = PyObject_CallObject(type, fields);
    Py_DECREF(fields);
  }
  Py_DECREF(type);
  return result;
}

bool read_attribute(const core::Attribute& spec, PyObject* value, NativeopsAttribute& out) {
  switch (spec.type) {
    case core::AttributeType::integer:
      if (!PyLong_CheckExact(value)) return false;
      out.integer = PyLong_AsLongLong(value);
      break;
    case core::AttributeType::boolean:
      if (value != Py_True && value != Py_False) return false;
      out.integer = value == Py_True;
      return true;
    case core::AttributeType::real:
      if (!PyFloat_CheckExact(value) && !PyLong_CheckExact(value)) return false;
      out.real = PyFloat_AsDouble(value);
      break;
    case core::AttributeType::choice: {
      const char* word = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, nullptr) : nullptr;
      for (size_t i = 0; word && i < spec.choices.size(); ++i)
        if (spec.choices[i] == word) return out.integer = static_cast<int64_t>(i), true;
      return false;
    }
  }
  if (PyErr_Occurred()) return false;
  const double number =
      spec.type == core::AttributeType::real ? out.real : static_cast<double>(out.integer);
  return number >= spec.low && number <= spec.high;
}

PyObject* number_of(const core::Attribute& spec, NativeopsAttribute value) {
  if (spec.type == core::AttributeType::real) return PyFloat_FromDouble(value.real);
  if (spec.type == core::AttributeType::boolean) return PyBool_FromLong(value.integer != 0);
  return PyLong_FromLongLong(value.integer);
}

}  // namespace nativeops::entry
