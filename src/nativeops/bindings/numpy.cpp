// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/numpy.h"

#include <cstring>

namespace nativeops::numpy {

Numpy numpy;

namespace {

// The struct-module code of native-endian items; other byte orders carry a prefix and do not fit.
bool dtype_of(const char* format, Py_ssize_t size, NativeopsDtype& dtype) {
  if (format == nullptr || format[0] == 0 || format[1] != 0) return false;
  const auto bits = static_cast<uint8_t>(size * 8);
  switch (format[0]) {
    case 'e':
    case 'f':
    case 'd':
      dtype = {kNativeopsFloat, bits, 1};
      return true;
    case 'i':
    case 'l':
    case 'q':
      dtype = {kNativeopsInt, bits, 1};
      return true;
    case 'B':
      dtype = {kNativeopsUInt, bits, 1};
      return true;
    case '?':
      dtype = {kNativeopsBool, bits, 1};
      return true;
    default:
      return false;
  }
}

// Arguments of one call, read from Python; `fits` is false where the slow path must explain.
struct Arguments {
  NativeopsTensor inputs[NATIVEOPS_MAX_ARRAYS];
  Held held[NATIVEOPS_MAX_ARRAYS];
  NativeopsAttribute attributes[NATIVEOPS_MAX_ATTRIBUTES];
};

// `found` counts the keywords that are known.
bool read_attributes(const core::Op& op, PyObject* kwargs, Arguments& arguments,
                     Py_ssize_t& found) {
  for (size_t i = 0; i < op.attributes.size(); ++i) {
    const core::Attribute& spec = op.attributes[i];
    PyObject* value = kwargs ? PyDict_GetItemString(kwargs, spec.name.c_str()) : nullptr;
    if (value == nullptr) {
      if (spec.required) return false;
      arguments.attributes[i] = spec.fallback;
      continue;
    }
    ++found;
    if (!read_attribute(spec, value, arguments.attributes[i])) return false;
  }
  return true;
}

// An optional input behind the positional ones: by its name, or None.
PyObject* named(const core::Array& spec, PyObject* kwargs, Py_ssize_t& found) {
  PyObject* value = kwargs ? PyDict_GetItemString(kwargs, spec.name.c_str()) : nullptr;
  found += value != nullptr;
  return value ? value : Py_None;
}

bool read_arguments(const core::Op& op, PyObject* args, PyObject* kwargs, Arguments& arguments) {
  const auto n = static_cast<Py_ssize_t>(op.inputs.size()), given = PyTuple_Size(args);
  Py_ssize_t found = 0;
  if (given > n || given < static_cast<Py_ssize_t>(op.required)) return false;
  if (!read_attributes(op, kwargs, arguments, found)) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    const core::Array& spec = op.inputs[i];
    PyObject* array = i < given ? PyTuple_GetItem(args, i) : named(spec, kwargs, found);
    if (array == Py_None && spec.optional) {
      arguments.inputs[i] = core::absent(spec);
      continue;
    }
    if (reinterpret_cast<PyObject*>(Py_TYPE(array)) != numpy.array_type) return false;
    if (!arguments.held[i].hold(array, false, arguments.inputs[i])) return false;
  }
  return kwargs == nullptr || PyDict_Size(kwargs) == found;
}

PyObject* new_array(int dtype, int rank, const int64_t* shape) {
  if (numpy.dtypes[dtype] == nullptr) return nullptr;
  PyObject* sizes = PyTuple_New(rank);
  for (int axis = 0; axis < rank; ++axis)
    PyTuple_SetItem(sizes, axis, PyLong_FromLongLong(shape[axis]));
  PyObject* array = PyObject_CallFunctionObjArgs(numpy.empty, sizes, numpy.dtypes[dtype], nullptr);
  Py_DECREF(sizes);
  return array;
}

// What a call makes: new arrays, and None for what its caller does not get.
struct Made {
  PyObject* arrays[NATIVEOPS_MAX_ARRAYS];
  NativeopsTensor tensors[NATIVEOPS_MAX_ARRAYS];
  Held held[NATIVEOPS_MAX_ARRAYS];
  int64_t strides[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  int n = 0;

  ~Made() {
    for (int i = 0; i < n; ++i) Py_DECREF(arrays[i]);
  }
};

bool make(const core::Op& op, core::Solution& solution, int i, Made& made) {
  NativeopsTensor& tensor = made.tensors[i];
  if (op.always >> i & 1) {
    PyObject* array = new_array(solution.dtype[i], solution.rank[i], solution.shape[i]);
    if (!array) return false;
    made.arrays[made.n++] = array;
    return made.held[i].hold(array, true, tensor);
  }
  made.arrays[made.n++] = Py_NewRef(Py_None);
  core::contiguous_strides(solution.rank[i], solution.shape[i], made.strides[i]);
  tensor = {
      nullptr,           kNativeopsCpu,   0, solution.rank[i], core::kDtypes[solution.dtype[i]],
      solution.shape[i], made.strides[i], 0};
  return true;
}

// The array, or the NamedTuple that the op declares.
PyObject* collect(PyObject* op, const Made& made) {
  PyObject* type = PyObject_GetAttr(op, numpy.result);
  if (!type) return nullptr;
  PyObject* result = nullptr;
  if (type == Py_None) {
    result = Py_NewRef(made.arrays[0]);
  } else if (PyObject* fields = PyTuple_New(made.n)) {
    for (int i = 0; i < made.n; ++i) PyTuple_SetItem(fields, i, Py_NewRef(made.arrays[i]));
    result = PyObject_CallObject(type, fields);
    Py_DECREF(fields);
  }
  Py_DECREF(type);
  return result;
}

// What the caller gets, or null where the slow path must take over.
PyObject* compute(PyObject* owner, const core::Op& op, Arguments& arguments) {
  core::Solution solution;
  if (!core::solve(op, arguments.inputs, arguments.attributes, solution)) return nullptr;
  if (!op.kernels[0][solution.combination]) return nullptr;
  Made made;
  for (int i = 0; i < static_cast<int>(op.outputs.size()); ++i)
    if (!make(op, solution, i, made)) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  const core::Status status = core::run(op, solution, arguments.inputs, made.tensors,
                                        arguments.attributes, {kNativeopsCpu, 0, nullptr});
  PyEval_RestoreThread(state);
  return status == core::Status::ok ? collect(owner, made) : nullptr;
}

}  // namespace

bool Held::hold(PyObject* array, bool writable, NativeopsTensor& tensor) {
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(array, &buffer_, flags) != 0) return false;
  held_ = true;
  if (buffer_.ndim > NATIVEOPS_MAX_RANK) return false;
  if (!dtype_of(buffer_.format, buffer_.itemsize, tensor.dtype)) return false;
  for (int axis = 0; axis < buffer_.ndim; ++axis) {
    if (buffer_.strides[axis] % buffer_.itemsize != 0) return false;
    strides_[axis] = buffer_.strides[axis] / buffer_.itemsize;
  }
  if (reinterpret_cast<uintptr_t>(buffer_.buf) % static_cast<uintptr_t>(buffer_.itemsize) != 0)
    return false;
  tensor.data = buffer_.buf;
  tensor.device_type = kNativeopsCpu;
  tensor.device_id = 0;
  tensor.ndim = buffer_.ndim;
  tensor.shape = reinterpret_cast<int64_t*>(buffer_.shape);
  tensor.strides = strides_;
  tensor.byte_offset = 0;
  return true;
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

PyObject* fast(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 3 || !PyTuple_Check(args[1]) || !PyDict_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "fast(op, args, kwargs)");
    return nullptr;
  }
  PyObject* id = PyObject_GetAttr(args[0], numpy.id);
  if (!id) return nullptr;
  const long number = PyLong_AsLong(id);
  Py_DECREF(id);
  if (number >= 0) {
    Arguments arguments;
    const core::Op& op = core::op_at(static_cast<int>(number));
    PyObject* kwargs = PyDict_Size(args[2]) ? args[2] : nullptr;
    if (read_arguments(op, args[1], kwargs, arguments))
      if (PyObject* result = compute(args[0], op, arguments)) return result;
    PyErr_Clear();  // the slow path meets the same problem and explains it
  }
  return PyObject_CallFunctionObjArgs(numpy.slow, args[0], args[1], args[2], nullptr);
}

}  // namespace nativeops::numpy
