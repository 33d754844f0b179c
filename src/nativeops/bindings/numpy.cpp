// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/numpy.h"

#include <algorithm>

#include "nativeops/bindings/memory.h"

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

// The inputs of one call.
struct Inputs {
  NativeopsTensor tensors[NATIVEOPS_MAX_ARRAYS];
  Held held[NATIVEOPS_MAX_ARRAYS];
};

bool hold(const core::Op& op, const entry::Request& request, Inputs& inputs) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    PyObject* array = request.arrays[i];
    if (array == nullptr) {
      inputs.tensors[i] = core::absent(op.inputs[i]);
      continue;
    }
    if (reinterpret_cast<PyObject*>(Py_TYPE(array)) != numpy.array_type) return false;
    if (!inputs.held[i].hold(array, false, inputs.tensors[i])) return false;
  }
  return true;
}

// An object with memory of the core's as its buffer.
struct Memory {
  PyObject_HEAD void* data;
  Py_ssize_t bytes;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = reinterpret_cast<Memory*>(self);
  return PyBuffer_FillInfo(view, self, memory->data, memory->bytes, 0, flags);
}

void drop_memory(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  core::release(reinterpret_cast<Memory*>(self)->data);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyTypeObject* memory_type() {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(drop_memory)},
                                {0, nullptr}};
  static PyType_Spec spec = {"nativeops._nativeops.Memory", sizeof(Memory), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

// Null where there is none.
PyObject* new_memory(size_t bytes) {
  void* data = core::allocate(bytes);
  Memory* memory = data ? PyObject_New(Memory, memory_type()) : nullptr;
  if (memory == nullptr) {
    core::release(data);
    return nullptr;
  }
  memory->data = data;
  memory->bytes = static_cast<Py_ssize_t>(bytes);
  return reinterpret_cast<PyObject*>(memory);
}

PyObject* new_array(int dtype, int rank, const int64_t* shape, size_t bytes) {
  if (numpy.dtypes[dtype] == nullptr) return nullptr;
  PyObject* own = nullptr;
  if (bytes >= core::kWorthKeeping && !(own = new_memory(bytes))) return nullptr;
  PyObject* sizes = PyTuple_New(rank);
  for (int axis = 0; axis < rank; ++axis)
    PyTuple_SetItem(sizes, axis, PyLong_FromLongLong(shape[axis]));
  PyObject* make = own ? numpy.array_type : numpy.empty;
  PyObject* array = PyObject_CallFunctionObjArgs(make, sizes, numpy.dtypes[dtype], own, nullptr);
  Py_DECREF(sizes);
  Py_XDECREF(own);
  return array;
}

// What a call writes: new arrays, the caller's (`out=`), and None for what its caller does not get.
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

bool take(const core::Solution& solution, int i, PyObject* array, Made& made) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(array)) != numpy.array_type) return false;
  made.arrays[made.n++] = Py_NewRef(array);
  return made.held[i].hold(array, true, made.tensors[i]) &&
         core::fits_output(solution, i, made.tensors[i]);
}

bool make(core::Solution& solution, int i, bool wanted, Made& made) {
  NativeopsTensor& tensor = made.tensors[i];
  if (wanted) {
    PyObject* array = new_array(solution.dtype[i], solution.rank[i], solution.shape[i],
                                static_cast<size_t>(solution.bytes[i]));
    if (!array) return false;
    made.arrays[made.n++] = array;
    return made.held[i].hold(array, true, tensor);
  }
  made.arrays[made.n++] = Py_NewRef(Py_None);
  tensor = core::output_of(solution, i, made.strides[i]);
  return true;
}

// What the caller gets, or null where the slow path must take over, unless the kernel `ran`.
PyObject* compute(PyObject* owner, const core::Op& op, const entry::Request& request, bool& ran) {
  Inputs inputs;
  core::Solution solution;
  if (!hold(op, request, inputs)) return nullptr;
  if (!core::solve(op, inputs.tensors, request.attributes, solution)) return nullptr;
  if (!op.kernels[0][solution.combination]) return nullptr;
  Made made;
  uint32_t taken = 0;
  for (int i = 0; i < static_cast<int>(op.outputs.size()); ++i) {
    PyObject* out = request.outs[i];
    taken |= static_cast<uint32_t>(out != nullptr) << i;
    if (!(out ? take(solution, i, out, made) : make(solution, i, request.want >> i & 1, made)))
      return nullptr;
  }
  if (taken && !core::are_apart(op, inputs.tensors, made.tensors, taken)) return nullptr;
  PyThreadState* state = PyEval_SaveThread();
  const core::Status status = core::run(op, solution, inputs.tensors, made.tensors,
                                        request.attributes, {kNativeopsCpu, 0, nullptr});
  PyEval_RestoreThread(state);
  ran = status == core::Status::ok;
  return ran ? entry::collect(owner, made.arrays, made.n) : nullptr;
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

PyObject* memory(PyObject*, PyObject* bytes) {
  const size_t size = PyLong_AsSize_t(bytes);
  if (PyErr_Occurred()) return nullptr;
  if (size < core::kLarge) Py_RETURN_NONE;
  PyObject* memory = new_memory(size);
  return memory ? memory : PyErr_NoMemory();
}

PyObject* fast(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (!entry::is_call(args, n, "fast(op, args, kwargs)")) return nullptr;
  entry::Request request;
  const core::Op* op = entry::op_of(args[0]);
  bool ran = false;
  if (op && entry::read(*op, args[1], args[2], true, request))
    if (PyObject* result = compute(args[0], *op, request, ran)) return result;
  if (ran || !entry::forget_error()) return nullptr;
  return PyObject_CallFunctionObjArgs(numpy.slow, args[0], args[1], args[2], nullptr);
}

}  // namespace nativeops::numpy
