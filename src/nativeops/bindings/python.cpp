// SPDX-License-Identifier: Apache-2.0
// The extension module `nativeops._nativeops`: what Python sees of the core.
#include <cmath>
#include <cstring>

#include "nativeops/bindings/jax.h"
#include "nativeops/bindings/memory.h"
#include "nativeops/bindings/numpy.h"
#include "nativeops/bindings/tensorflow_python.h"
#include "nativeops/bindings/torch.h"
#include "nativeops/bindings/torch_python.h"
#include "nativeops/bindings/xla.h"
#include "nativeops/devices/cpu/pool.h"

namespace nativeops {
namespace {

using core::AttributeType;

core::Axis read_axis(PyObject* axis) {
  core::Axis out;
  if (PyLong_Check(axis)) {
    out.slot = static_cast<int>(PyLong_AsLong(axis));
    return out;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(axis); ++i) {
    PyObject* step = PyTuple_GetItem(axis, i);
    out.steps.push_back({static_cast<core::Operator>(PyLong_AsLong(PyTuple_GetItem(step, 0))),
                         PyLong_AsLongLong(PyTuple_GetItem(step, 1))});
  }
  return out;
}

// (kind, batch, axes, optional, name, reuse) per array; `reuse` names one of the inputs
std::vector<core::Array> read_arrays(PyObject* list, const std::vector<core::Array>& inputs) {
  std::vector<core::Array> out;
  for (Py_ssize_t i = 0; i < PyTuple_Size(list); ++i) {
    PyObject* item = PyTuple_GetItem(list, i);
    core::Array array;
    array.kind = static_cast<int>(PyLong_AsLong(PyTuple_GetItem(item, 0)));
    array.batch = PyObject_IsTrue(PyTuple_GetItem(item, 1));
    PyObject* axes = PyTuple_GetItem(item, 2);
    for (Py_ssize_t a = 0; a < PyTuple_Size(axes); ++a)
      array.axes.push_back(read_axis(PyTuple_GetItem(axes, a)));
    array.optional = PyObject_IsTrue(PyTuple_GetItem(item, 3));
    array.name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(item, 4), nullptr);
    const char* reuse = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(item, 5), nullptr);
    for (size_t input = 0; *reuse && input < inputs.size(); ++input)
      if (inputs[input].name == reuse) array.reuses = static_cast<int>(input);
    out.push_back(std::move(array));
  }
  return out;
}

// (name, type, required, default, low, high, choices, slot) per attribute
core::Attribute read_attribute_spec(PyObject* item) {
  core::Attribute out;
  const auto field = [item](Py_ssize_t i) { return PyTuple_GetItem(item, i); };
  out.name = PyUnicode_AsUTF8AndSize(field(0), nullptr);
  out.type = static_cast<AttributeType>(PyLong_AsLong(field(1)));
  out.required = PyObject_IsTrue(field(2));
  out.low = PyFloat_AsDouble(field(4));
  out.high = PyFloat_AsDouble(field(5));
  for (Py_ssize_t i = 0; i < PyTuple_Size(field(6)); ++i)
    out.choices.emplace_back(PyUnicode_AsUTF8AndSize(PyTuple_GetItem(field(6), i), nullptr));
  out.slot = static_cast<int>(PyLong_AsLong(field(7)));
  if (!out.required && !entry::read_attribute(out, field(3), out.fallback) && !PyErr_Occurred())
    PyErr_Format(PyExc_TypeError, "the default of `%s` is none", out.name.c_str());
  return out;
}

// define(name, called, key, signature, inputs, outputs, attributes, always, certain) -> id
PyObject* define(PyObject*, PyObject* args) {
  core::Op op;
  const char *name, *called, *key, *signature;
  PyObject *inputs, *outputs, *attributes;
  unsigned always, certain;
  if (!PyArg_ParseTuple(args, "ssssOOOII", &name, &called, &key, &signature, &inputs, &outputs,
                        &attributes, &always, &certain))
    return nullptr;
  op.name = name;
  op.called = called;
  op.key = key;
  op.signature = signature;
  op.inputs = read_arrays(inputs, {});
  op.outputs = read_arrays(outputs, op.inputs);
  for (Py_ssize_t i = 0; i < PyTuple_Size(attributes); ++i)
    op.attributes.push_back(read_attribute_spec(PyTuple_GetItem(attributes, i)));
  for (const core::Array& input : op.inputs) op.required += !input.optional;
  op.always = always;
  op.certain = certain;
  op.selective = certain != (uint64_t{1} << op.outputs.size()) - 1;
  if (PyErr_Occurred()) return nullptr;
  return PyLong_FromLong(core::add_op(std::move(op)));
}

// connect_numpy(ndarray, empty, dtypes, slow)
PyObject* connect_numpy(PyObject*, PyObject* args) {
  PyObject *type, *empty, *dtypes, *slow;
  if (!PyArg_ParseTuple(args, "OOOO", &type, &empty, &dtypes, &slow)) return nullptr;
  auto& numpy = numpy::numpy;
  numpy.array_type = Py_NewRef(type);
  numpy.empty = Py_NewRef(empty);
  numpy.slow = Py_NewRef(slow);
  for (int i = 0; i < core::kDtypeCount; ++i) {
    PyObject* dtype = PyTuple_GetItem(dtypes, i);
    numpy.dtypes[i] = dtype == Py_None ? nullptr : Py_NewRef(dtype);
  }
  Py_RETURN_NONE;
}

// One array of `run`: (array, dtype position), where the position tells what the bits mean.
bool hold(PyObject* item, bool writable, numpy::Held& held, NativeopsTensor& tensor) {
  if (!held.hold(PyTuple_GetItem(item, 0), writable, tensor)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "an array that no kernel can read");
    return false;
  }
  tensor.dtype = core::kDtypes[PyLong_AsLong(PyTuple_GetItem(item, 1))];
  return true;
}

// run(id, inputs, outputs, attributes) -> why it did not run, or ""; None stands for an absent
// input and for an output not made
PyObject* run(PyObject*, PyObject* args) {
  int id;
  PyObject *inputs, *outputs, *attributes;
  if (!PyArg_ParseTuple(args, "iOOO", &id, &inputs, &outputs, &attributes)) return nullptr;
  const core::Op& op = core::op_at(id);
  NativeopsTensor tensors[NATIVEOPS_MAX_ARRAYS] = {};
  numpy::Held held[NATIVEOPS_MAX_ARRAYS];
  NativeopsAttribute values[NATIVEOPS_MAX_ATTRIBUTES];
  const Py_ssize_t n_in = PyTuple_Size(inputs), n_out = PyTuple_Size(outputs);
  for (Py_ssize_t i = 0; i < n_in; ++i) {
    PyObject* item = PyTuple_GetItem(inputs, i);
    if (item == Py_None)
      tensors[i] = core::absent(op.inputs[i]);
    else if (!hold(item, false, held[i], tensors[i]))
      return nullptr;
  }
  for (size_t i = 0; i < op.attributes.size(); ++i)
    if (!entry::read_attribute(op.attributes[i], PyTuple_GetItem(attributes, i), values[i]))
      return PyErr_Format(PyExc_TypeError, "attribute %zu does not fit", i);
  core::Solution solution;
  if (!core::solve(op, tensors, values, solution))
    return PyErr_Format(PyExc_ValueError, "the arguments do not fit %s", op.signature.c_str());
  int64_t strides[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  for (Py_ssize_t i = 0; i < n_out; ++i) {
    PyObject* item = PyTuple_GetItem(outputs, i);
    NativeopsTensor& out = tensors[n_in + i];
    if (item == Py_None) {
      out = core::output_of(solution, i, strides[i]);
    } else if (!hold(item, true, held[n_in + i], out)) {
      return nullptr;
    }
  }
  core::Status status;
  Py_BEGIN_ALLOW_THREADS status =
      core::run(op, solution, tensors, tensors + n_in, values, {kNativeopsCpu, 0, nullptr});
  Py_END_ALLOW_THREADS return PyUnicode_FromString(
      status == core::Status::ok ? "" : core::last_message());
}

// load(path) -> (device, level, [(op, signature, dtypes, tuned), ...]); "" only chooses anew
PyObject* load(PyObject*, PyObject* args) {
  const char* path;
  if (!PyArg_ParseTuple(args, "s", &path)) return nullptr;
  std::string error;
  const NativeopsLibrary* library = core::load_library(path, error);
  if (!library && *path) return PyErr_Format(PyExc_OSError, "%s: %s", path, error.c_str());
  if (!library) Py_RETURN_NONE;
  PyObject* entries = PyList_New(0);
  for (int i = 0; i < library->n_entries; ++i) {
    const NativeopsEntry& e = library->entries[i];
    PyObject* entry = Py_BuildValue("sssi", e.op, e.signature, e.dtypes, e.tuned);
    PyList_Append(entries, entry);
    Py_DECREF(entry);
  }
  return Py_BuildValue("ssN", library->device, library->level, entries);
}

PyObject* levels(PyObject*, PyObject*) {
  return Py_BuildValue("ii", core::machine_level(), core::selected_level());
}

PyObject* select_level(PyObject*, PyObject* level) {
  const long number = PyLong_AsLong(level);
  if (PyErr_Occurred()) return nullptr;
  core::select_level(static_cast<int>(number));
  Py_RETURN_NONE;
}

// vector_rate(mix) -> (vector operations per second, float32 numbers in a vector)
PyObject* vector_rate(PyObject*, PyObject* mix) {
  const long number = PyLong_AsLong(mix);
  if (PyErr_Occurred()) return nullptr;
  const NativeopsLibrary* library = core::selected_library();
  if (!library || !library->vector_rate) return Py_BuildValue("di", 0.0, 0);
  double rate;
  Py_BEGIN_ALLOW_THREADS rate =
      library->vector_rate(core::services(), static_cast<int32_t>(number));
  Py_END_ALLOW_THREADS return Py_BuildValue("di", rate, library->lanes);
}

PyObject* set_num_threads(PyObject*, PyObject* n) {
  const long number = PyLong_AsLong(n);
  if (PyErr_Occurred()) return nullptr;
  cpu::set_num_threads(static_cast<int32_t>(number));
  Py_RETURN_NONE;
}

PyObject* get_num_threads(PyObject*, PyObject*) { return PyLong_FromLong(cpu::num_threads()); }

PyObject* empty_cache(PyObject*, PyObject*) {
  core::drop_kept();
  Py_RETURN_NONE;
}

// connect_torch(path of libtorch_cpu.so, path of libtorch_cuda.so or "", in a forked child)
PyObject* connect_torch(PyObject*, PyObject* args) {
  const char *cpu, *cuda;
  int is_child;
  if (!PyArg_ParseTuple(args, "ssp", &cpu, &cuda, &is_child)) return nullptr;
  if (is_child) cpu::note_fork();
  if (const char* missing = torch::connect(cpu, cuda))
    return PyErr_Format(PyExc_RuntimeError, "this PyTorch has no `%s`", missing);
  Py_RETURN_NONE;
}

// implement_torch(id, namespace, name, dispatch key, into): registers a boxed kernel of an op
PyObject* implement_torch(PyObject*, PyObject* args) {
  int id, into;
  const char *space, *name, *key;
  if (!PyArg_ParseTuple(args, "isssp", &id, &space, &name, &key, &into)) return nullptr;
  if (const char* error = torch::implement(id, space, name, key, into != 0))
    return PyErr_Format(PyExc_RuntimeError, "%s", error);
  Py_RETURN_NONE;
}

// xla_handler(platform) -> a capsule for `jax.ffi.register_ffi_target`; None if it was not built
PyObject* xla_handler(PyObject*, PyObject* platform) {
  const char* name = PyUnicode_AsUTF8AndSize(platform, nullptr);
  if (!name) return nullptr;
  void* handler = xla::handler(name);
  if (!handler) Py_RETURN_NONE;
  return PyCapsule_New(handler, nullptr, nullptr);
}

template <class F>
PyCFunction function(F* f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef methods[] = {
    {"define", define, METH_VARARGS, nullptr},
    {"connect_numpy", connect_numpy, METH_VARARGS, nullptr},
    {"memory", numpy::memory, METH_O, nullptr},
    {"fast", function(numpy::fast), METH_FASTCALL, nullptr},
    {"run", run, METH_VARARGS, nullptr},
    {"load", load, METH_VARARGS, nullptr},
    {"levels", levels, METH_NOARGS, nullptr},
    {"select_level", select_level, METH_O, nullptr},
    {"vector_rate", vector_rate, METH_O, nullptr},
    {"set_num_threads", set_num_threads, METH_O, nullptr},
    {"get_num_threads", get_num_threads, METH_NOARGS, nullptr},
    {"empty_cache", empty_cache, METH_NOARGS, nullptr},
    {"connect_torch", connect_torch, METH_VARARGS, nullptr},
    {"implement_torch", implement_torch, METH_VARARGS, nullptr},
    {"torch_state", torch::state, METH_O, nullptr},
    {"connect_direct_torch", torch::connect_direct, METH_VARARGS, nullptr},
    {"direct_torch", function(torch::direct), METH_FASTCALL, nullptr},
    {"direct_torch_values", function(torch::values), METH_FASTCALL, nullptr},
    {"xla_handler", xla_handler, METH_O, nullptr},
    {"connect_jax", jax::connect, METH_VARARGS, nullptr},
    {"eager_jax", function(jax::eager), METH_FASTCALL, nullptr},
    {"made_large_in_jax", jax::made_large, METH_O, nullptr},
    {"connect_tensorflow", tensorflow::connect_python, METH_VARARGS, nullptr},
    {"implement_tensorflow", tensorflow::implement_python, METH_VARARGS, nullptr},
    {"infer_tensorflow", tensorflow::infer_python, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_nativeops", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace nativeops

PyMODINIT_FUNC PyInit__nativeops() {
  PyObject* made = PyModule_Create(&nativeops::module);
  if (made) PyModule_AddIntConstant(made, "large", nativeops::core::kLarge);
  return made;
}
