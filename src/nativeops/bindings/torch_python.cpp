// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/torch_python.h"

#include <cstring>
#include <exception>
#include <vector>

#include "nativeops/bindings/symbols.h"
#include "nativeops/bindings/torch.h"

namespace nativeops::torch {
namespace {

// Sets of dispatch keys, as this thread differs from the usual: c10's thread-local variable.
struct State {
  uint64_t included, excluded;
};

// What the stable shims do not offer: PyTorch's own functions in C++, whose arguments are pointers,
// and where a tensor lies in memory, which was found by experiment.
struct Internals {
  bool connected = false;
  void* c10;
  PyObject *tensor_type, *parameter_type, *forward_mode, *level;
  size_t tensor_at;  // in the Python object; there lies what the shims take as a tensor
  size_t keys_at;    // in the memory that this points to
  uint64_t plain;    // the dispatch keys of dense tensors that are nothing but their memory
  State inference;   // a thread's state in `torch.inference_mode`
  PyObject* count_write;
  bool (*requires_grad)(const void*);
  bool (*has_callbacks)();
  bool (*function_mode_enabled)();
  PyObject* (*wrap)(Tensor);
} torch;

// Where to look for a tensor in its Python object, and for its keys in its memory: no further than
// these objects reach.
constexpr size_t kObject = 16, kTensorWords = 2, kKeysBefore = 192;

constexpr char kState[] = "_ZN3c104impl26raw_local_dispatch_key_setE";

// Of this thread; null if PyTorch has no such variable.
const State* thread_state() {
  static thread_local const State* own = nullptr;
  if (!own) look_up(torch.c10, kState, own);
  return own;
}

bool operator==(const State& a, const State& b) {
  return a.included == b.included && a.excluded == b.excluded;
}

// Whether no mode, transform, profiler or tracer has to see what this thread calls.
bool unwatched() {
  const State& now = *thread_state();
  if (!(now == State{0, 0}) && !(now == torch.inference)) return false;
  if (torch.has_callbacks() || torch.function_mode_enabled()) return false;
  PyObject* level = PyDict_GetItem(torch.forward_mode, torch.level);
  return level && PyLong_AsLong(level) < 0;
}

// What a call of these arguments needs.
enum class Needs { kernel, gradient, dispatcher };

// The tensor in a Python object; null if it is more than memory.
Tensor unpack(PyObject* object, const char*& memory) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (type != torch.tensor_type && type != torch.parameter_type) return nullptr;
  char* tensor = reinterpret_cast<char*>(object) + torch.tensor_at;
  uint64_t keys;
  std::memcpy(&memory, tensor, sizeof memory);
  std::memcpy(&keys, memory + torch.keys_at, sizeof keys);
  return keys & ~torch.plain ? nullptr : reinterpret_cast<Tensor>(tensor);
}

Needs unpack(const core::Op& op, PyObject* const* arrays, Call& call) {
  const bool recording = grad_mode();
  Needs needs = Needs::kernel;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const char* memory;
    call.inputs[i] = nullptr;
    if (op.inputs[i].optional && (!arrays[i] || arrays[i] == Py_None)) continue;
    call.inputs[i] = unpack(arrays[i], memory);
    if (!call.inputs[i]) return Needs::dispatcher;
    if (recording && torch.requires_grad(memory)) needs = Needs::gradient;
  }
  return needs;
}

bool compute_unlocked(const core::Op& op, Call& call) {
  PyThreadState* state = PyEval_SaveThread();
  bool done = false;
  try {
    compute(op, call);
    done = true;
  } catch (const std::exception&) {  // the slow path meets the same and explains it
  }
  PyEval_RestoreThread(state);
  return done;
}

PyObject* wrap(Tensor tensor) {
  try {
    if (PyObject* object = torch.wrap(tensor)) return object;
  } catch (const std::exception& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// The caller's tensors for results (`out=`); false where autograd or the dispatcher has a say.
bool unpack_outs(const core::Op& op, PyObject* const* outs, Tensor* into) {
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const char* memory;
    into[i] = outs[i] ? unpack(outs[i], memory) : nullptr;
    if (outs[i] && (!into[i] || (grad_mode() && torch.requires_grad(memory)))) return false;
  }
  return true;
}

// So that autograd notices if it has kept a tensor that was written.
bool count_writes(const core::Op& op, PyObject* const* outs) {
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (!outs[i]) continue;
    PyObject* done = PyObject_CallFunctionObjArgs(torch.count_write, outs[i], nullptr);
    if (!done) return false;
    Py_DECREF(done);
  }
  return true;
}

// The results as Python's objects; None for one that was not made.
struct Made {
  PyObject* objects[NATIVEOPS_MAX_ARRAYS];
  int n = 0;
  bool complete;

  explicit Made(const Owned& outputs, PyObject* const* outs = nullptr) {
    for (; n < outputs.n; ++n) {
      if (outs && outs[n])
        objects[n] = Py_NewRef(outs[n]);
      else
        objects[n] = outputs.tensors[n] ? wrap(outputs.tensors[n]) : Py_NewRef(Py_None);
      if (!objects[n]) break;
    }
    complete = n == outputs.n;
  }
  ~Made() {
    for (int i = 0; i < n; ++i) Py_DECREF(objects[i]);
  }
};

// The values in the order of the op's schema, with None for inputs that are absent.
PyObject* schema_values(const core::Op& op, const entry::Request& request) {
  const size_t n_in = op.inputs.size(), n_all = n_in + op.attributes.size();
  PyObject* values = PyList_New(static_cast<Py_ssize_t>(n_all + op.selective));
  if (!values) return nullptr;
  bool complete = true;
  for (size_t i = 0; i < n_all + op.selective; ++i) {
    PyObject* value;
    if (i < n_in)
      value = Py_NewRef(request.arrays[i] ? request.arrays[i] : Py_None);
    else if (i < n_all)
      value = entry::number_of(op.attributes[i - n_in], request.attributes[i - n_in]);
    else
      value = PyLong_FromUnsignedLong(request.want);
    complete &= value != nullptr;
    PyList_SetItem(values, static_cast<Py_ssize_t>(i), value);
  }
  if (complete) return values;
  Py_DECREF(values);
  return nullptr;
}

bool has_outs(const core::Op& op, const entry::Request& request) {
  bool any = false;
  for (size_t i = 0; i < op.outputs.size(); ++i) any |= request.outs[i] != nullptr;
  return any;
}

// `ran`: the kernel did, so that an error is none that the slow path would explain.
PyObject* direct_call(const core::Op& op, PyObject* owner, PyObject* args, PyObject* kwargs,
                      bool& ran) {
  entry::Request request;
  if (!entry::read(op, args, kwargs, false, request)) return nullptr;
  Call call;
  const Needs needs = unpack(op, request.arrays, call);
  if (needs == Needs::gradient && !has_outs(op, request)) return schema_values(op, request);
  if (needs != Needs::kernel) return nullptr;
  std::memcpy(call.attributes, request.attributes, sizeof call.attributes);
  Tensor into[NATIVEOPS_MAX_ARRAYS];
  if (!unpack_outs(op, request.outs, into)) return nullptr;
  call.want = request.want;
  call.into = into;
  call.fill = false;
  ran = compute_unlocked(op, call);
  if (!ran || !count_writes(op, request.outs)) return nullptr;
  const Made made(call.outputs, request.outs);
  return made.complete ? entry::collect(owner, made.objects, made.n) : nullptr;
}

// A number of the op's schema.
bool read_number(const core::Attribute& spec, PyObject* value, NativeopsAttribute& out) {
  if (spec.type == core::AttributeType::real)
    out.real = PyFloat_AsDouble(value);
  else
    out.integer = PyLong_AsLongLong(value);
  return !PyErr_Occurred();
}

bool read_values(const core::Op& op, PyObject* const* values, Py_ssize_t n, Call& call) {
  const size_t n_in = op.inputs.size(), n_all = n_in + op.attributes.size();
  if (n != static_cast<Py_ssize_t>(n_all + op.selective)) return false;
  if (unpack(op, values, call) != Needs::kernel) return false;
  for (size_t i = 0; i < op.attributes.size(); ++i)
    if (!read_number(op.attributes[i], values[n_in + i], call.attributes[i])) return false;
  call.want =
      op.selective ? static_cast<uint32_t>(PyLong_AsUnsignedLong(values[n_all])) : op.always;
  call.into = nullptr;
  call.fill = true;
  return !PyErr_Occurred();
}

PyObject* direct_values(const core::Op& op, PyObject* const* values, Py_ssize_t n, bool& ran) {
  Call call;
  ran = read_values(op, values, n, call) && compute_unlocked(op, call);
  if (!ran) return nullptr;
  const Made made(call.outputs);
  if (!made.complete) return nullptr;
  if (made.n == 1) return Py_NewRef(made.objects[0]);
  PyObject* all = PyTuple_New(made.n);
  for (int i = 0; all && i < made.n; ++i) PyTuple_SetItem(all, i, Py_NewRef(made.objects[i]));
  return all;
}

// One tensor and what PyTorch says of it.
struct Sample {
  const char* object;
  uint64_t address, keys;
};

std::vector<Sample> read_samples(PyObject* list) {
  std::vector<Sample> samples;
  for (Py_ssize_t i = 0; i < PyTuple_Size(list); ++i) {
    PyObject* item = PyTuple_GetItem(list, i);
    samples.push_back({reinterpret_cast<const char*>(PyTuple_GetItem(item, 0)),
                       PyLong_AsUnsignedLongLong(PyTuple_GetItem(item, 1)),
                       PyLong_AsUnsignedLongLong(PyTuple_GetItem(item, 2))});
  }
  return samples;
}

// The only word of the memory from `from` to `to` that holds what it should, in all samples.
template <class Matches>
bool find(size_t from, size_t to, Matches matches, size_t& found) {
  int times = 0;
  for (size_t at = from; at < to; at += sizeof(uint64_t))
    if (matches(at)) found = at, ++times;
  return times == 1;
}

bool find_tensor(const std::vector<Sample>& samples, size_t& found) {
  const auto matches = [&](size_t at) {
    bool all = true;
    for (const Sample& s : samples) all &= !std::memcmp(s.object + at, &s.address, sizeof at);
    return all;
  };
  return find(kObject, kObject + kTensorWords * sizeof(uint64_t), matches, found);
}

bool find_keys(const std::vector<Sample>& samples, size_t& found) {
  const auto matches = [&](size_t at) {
    bool all = true;
    for (const Sample& s : samples)
      all &= !std::memcmp(reinterpret_cast<const char*>(s.address) + at, &s.keys, sizeof at);
    return all;
  };
  return find(0, kKeysBefore, matches, found);
}

// Null, or what is missing.
const char* look_up_all(const char* cpu_path, const char* python_path, Internals& found) {
  void* cpu = loaded(cpu_path);
  void* python = loaded(python_path);
  if (!look_up(found.c10, "_ZNK3c1010TensorImpl13requires_gradEv", found.requires_grad))
    return "TensorImpl::requires_grad";
  if (!look_up(cpu, "_ZN2at12hasCallbacksEv", found.has_callbacks)) return "hasCallbacks";
  if (!look_up(cpu, "_ZN2at4impl27torch_function_mode_enabledEv", found.function_mode_enabled))
    return "torch_function_mode_enabled";
  if (!look_up(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", found.wrap))
    return "THPVariable_Wrap";
  return nullptr;
}

}  // namespace

PyObject* state(PyObject*, PyObject* path) {
  const char* c10 = PyUnicode_AsUTF8AndSize(path, nullptr);
  if (!c10) return nullptr;
  torch.c10 = loaded(c10);
  const State* now = torch.c10 ? thread_state() : nullptr;
  if (!now) Py_RETURN_NONE;
  return Py_BuildValue("KK", now->included, now->excluded);
}

PyObject* connect_direct(PyObject*, PyObject* args) {
  const char *cpu, *python;
  PyObject* list;
  Internals found = torch;
  unsigned long long plain, included, excluded;
  if (!PyArg_ParseTuple(args, "ssOOOOOK(KK)", &cpu, &python, &found.tensor_type,
                        &found.parameter_type, &found.forward_mode, &found.count_write, &list,
                        &plain, &included, &excluded))
    return nullptr;
  const std::vector<Sample> samples = read_samples(list);
  if (PyErr_Occurred()) return nullptr;
  const char* missing = look_up_all(cpu, python, found);
  if (!missing && !find_tensor(samples, found.tensor_at)) missing = "a tensor in its Python object";
  if (!missing && !find_keys(samples, found.keys_at)) missing = "the dispatch keys of a tensor";
  if (missing) return PyUnicode_FromString(missing);
  Py_INCREF(found.tensor_type);
  Py_INCREF(found.parameter_type);
  Py_INCREF(found.forward_mode);
  Py_INCREF(found.count_write);
  found.level = PyUnicode_InternFromString("_current_level");
  found.plain = plain;
  found.inference = {included, excluded};
  found.connected = true;
  torch = found;
  Py_RETURN_NONE;
}

PyObject* direct(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (!entry::is_call(args, n, "direct_torch(op, args, kwargs)")) return nullptr;
  if (torch.connected && unwatched()) {
    const core::Op* op = entry::op_of(args[0]);
    bool ran = false;
    if (PyObject* result = op ? direct_call(*op, args[0], args[1], args[2], ran) : nullptr)
      return result;
    if (ran || !entry::forget_error()) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* values(PyObject*, PyObject* const* args, Py_ssize_t n) {
  const long id = n > 0 ? PyLong_AsLong(args[0]) : -1;
  if (id < 0) {
    PyErr_SetString(PyExc_TypeError, "direct_torch_values(id, *values)");
    return nullptr;
  }
  if (torch.connected && unwatched()) {
    const core::Op& op = core::op_at(static_cast<int>(id));
    bool ran = false;
    if (PyObject* result = direct_values(op, args + 1, n - 1, ran)) return result;
    if (ran || !entry::forget_error()) return nullptr;
  }
  Py_RETURN_NONE;
}

}  // namespace nativeops::torch
