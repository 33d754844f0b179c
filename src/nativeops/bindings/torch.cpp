// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/torch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "nativeops/bindings/memory.h"
#include "nativeops/bindings/symbols.h"
#include "nativeops/devices/cpu/crowding.h"
#include "nativeops/devices/cpu/floating.h"
#include "nativeops/devices/cpu/pool.h"

namespace nativeops::torch {
namespace {

using Library = struct TorchLibraryOpaque*;
using Error = int32_t;
using StackValue = uint64_t;  // a tensor handle that the kernel owns, or the bits of a number
using BoxedKernel = void (*)(StackValue*, uint64_t, uint64_t);

// The shims, by PyTorch's names behind the common prefix `aoti_torch_`.
struct Shims {
  Error (*library_init_impl)(const char*, const char*, const char*, uint32_t, Library*);
  Error (*library_impl)(Library, const char*, BoxedKernel);
  Error (*get_data_ptr)(Tensor, void**);
  Error (*get_dim)(Tensor, int64_t*);
  Error (*get_sizes)(Tensor, int64_t**);
  Error (*get_strides)(Tensor, int64_t**);
  Error (*get_dtype)(Tensor, int32_t*);
  Error (*get_device_type)(Tensor, int32_t*);
  Error (*get_device_index)(Tensor, int32_t*);
  Error (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                         Tensor*);
  Error (*delete_tensor_object)(Tensor);
  bool (*grad_mode_is_enabled)();
  uint64_t (*abi_version)();
  int32_t (*device_type_cpu)();
  int32_t (*device_type_cuda)();
  int32_t cpu, cuda;  // what these two return
  // Optional: newer PyTorch wants the ABI version with a registration, lends its threads and takes
  // memory of ours; streams need CUDA.
  Error (*library_impl_versioned)(Library, const char*, BoxedKernel, uint64_t);
  Error (*get_current_cuda_stream)(int32_t, void**);
  Error (*parallel_for)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*);
  Error (*get_num_threads)(uint32_t*);
  Error (*from_blob)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                     int32_t, Tensor*, int32_t, const uint8_t*, int64_t, void (*)(void*, void*),
                     void*);
  int32_t dtypes[core::kDtypeCount];
} shims;

void check(Error error) {
  if (error) throw std::runtime_error("nativeops: a PyTorch call failed");
}

int dtype_of(Tensor tensor) {
  int32_t code;
  check(shims.get_dtype(tensor, &code));
  for (int i = 0; i < core::kDtypeCount; ++i)
    if (shims.dtypes[i] == code) return i;
  return -1;
}

bool describe(Tensor tensor, NativeopsTensor& out) {
  int64_t rank;
  int32_t type, index = 0;
  check(shims.get_data_ptr(tensor, &out.data));
  check(shims.get_dim(tensor, &rank));
  check(shims.get_sizes(tensor, &out.shape));
  check(shims.get_strides(tensor, &out.strides));
  check(shims.get_device_type(tensor, &type));
  if (type != shims.cpu) check(shims.get_device_index(tensor, &index));
  const int dtype = dtype_of(tensor);
  if (dtype < 0) return false;
  out.dtype = core::kDtypes[dtype];
  out.ndim = static_cast<int32_t>(rank);
  out.byte_offset = 0;
  out.device_type = type == shims.cuda ? kNativeopsCuda : kNativeopsCpu;
  out.device_id = index < 0 ? 0 : index;
  return type == shims.cpu || type == shims.cuda;
}

int32_t num_threads() {
  uint32_t theirs = 1;
  check(shims.get_num_threads(&theirs));
  return std::min(cpu::num_threads(), static_cast<int32_t>(theirs));
}

cpu::Crowding crowding;

// The tasks of a kernel on PyTorch's own threads. These wait for their next work by spinning, for
// milliseconds: a second pool would have to share the CPUs with them, at half its speed. Each call
// waits for all of them, and as they spin, the system takes them for processes that compute, and
// stops them in the middle of a task when another one does.
void parallel(int64_t n, void (*body)(void*, int64_t), void* context) {
  const int32_t threads = num_threads();
  if (n == 1 || threads == 1) {
    const cpu::ExactSmallNumbers exact;
    return cpu::run_alone(n, body, context);
  }
  struct Shared {
    cpu::Job job;
    int64_t begin;
  } shared{{n, threads, body, context}, cpu::time_of(CLOCK_MONOTONIC)};
  const auto work = [](int64_t number, int64_t, void* pointer) {
    const cpu::ExactSmallNumbers exact;
    const cpu::Part part(crowding, static_cast<Shared*>(pointer)->begin);
    static_cast<Shared*>(pointer)->job.work(number);
  };
  check(shims.parallel_for(0, std::min<int64_t>(n, threads), 1, work, &shared));
}

int32_t crowded() { return crowding.at(cpu::time_of(CLOCK_MONOTONIC)); }

// Workspaces are tensors of bytes, from PyTorch's allocators: its profiler and its limits know
// them, and on CUDA its cache makes them cheap.
NativeopsMemory allocate(const NativeopsCall* call, size_t bytes) {
  const bool on_cpu = call->inputs[0].device_type == kNativeopsCpu;
  if (on_cpu && !core::is_frameworks(bytes)) return core::lend(call, bytes);
  const int64_t size = static_cast<int64_t>(bytes), stride = 1;
  Tensor tensor = nullptr;
  NativeopsMemory memory{nullptr, nullptr, bytes};
  if (shims.empty_strided(1, &size, &stride, shims.dtypes[core::kUint8],
                          on_cpu ? shims.cpu : shims.cuda, call->device_id, &tensor))
    return memory;
  memory.owner = tensor;
  if (shims.get_data_ptr(tensor, &memory.data)) shims.delete_tensor_object(tensor);
  return memory;
}
void release(const NativeopsCall* call, NativeopsMemory memory) {
  if (!memory.owner) return core::take_back(call, memory);
  shims.delete_tensor_object(static_cast<Tensor>(memory.owner));
}

// With PyTorch's threads; with as many of our own where it lends none, and in a forked child, where
// its pool would wait forever for threads that only the parent has.
const NativeopsServices* services() {
  static const NativeopsServices own = [] {
    NativeopsServices table = *core::services();
    table.allocate = allocate;
    table.release = release;
    return table;
  }();
  static const NativeopsServices with_threads = [] {
    NativeopsServices table = own;
    table.parallel = parallel;
    table.num_threads = num_threads;
    table.crowded = crowded;
    return table;
  }();
  static const NativeopsServices as_many = [] {
    NativeopsServices table = own;
    table.parallel = [](int64_t n, void (*body)(void*, int64_t), void* context) {
      cpu::parallel_on(num_threads(), n, body, context);
    };
    table.num_threads = num_threads;
    return table;
  }();
  if (!shims.get_num_threads) return &own;
  return shims.parallel_for && !cpu::forked() ? &with_threads : &as_many;
}

[[noreturn]] void fail_fit(const core::Op& op) { throw std::runtime_error(core::unfit_text(op)); }

// The tensors of a call as the core sees them.
struct Described {
  NativeopsTensor tensors[NATIVEOPS_MAX_ARRAYS];              // the inputs, then the outputs
  int64_t strides[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];  // of the outputs
};

void describe_inputs(const core::Op& op, const Call& call, Described& described) {
  const NativeopsTensor& first = described.tensors[0];
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    NativeopsTensor& tensor = described.tensors[i];
    if (!call.inputs[i]) {
      tensor = core::absent(op.inputs[i]);
      continue;
    }
    if (!describe(call.inputs[i], tensor)) fail_fit(op);
    if (tensor.device_type != first.device_type || tensor.device_id != first.device_id)
      fail_fit(op);
  }
}

// A large tensor in memory that the next call will find ready, where PyTorch's would be fresh and
// zeroed page by page: up to two thirds of the time of a copy. Null if PyTorch takes no memory of
// ours, or there is none.
Tensor make_large(const NativeopsTensor& out, size_t bytes, int dtype) {
  const bool large = out.device_type == kNativeopsCpu && bytes >= core::kWorthKeeping;
  if (!shims.from_blob || !large) return nullptr;
  void* memory = core::allocate(bytes);
  if (!memory) return nullptr;
  Tensor tensor;
  const auto release = [](void* data, void*) { core::release(data); };
  if (!shims.from_blob(memory, out.ndim, out.shape, out.strides, 0, shims.dtypes[dtype], shims.cpu,
                       -1, &tensor, 0, nullptr, 0, release, nullptr))
    return tensor;
  core::release(memory);
  return nullptr;
}

// A new tensor on the inputs' device.
void make_output(const core::Op& op, const core::Solution& solution, int i, Call& call,
                 Described& described) {
  const NativeopsTensor& first = described.tensors[0];
  NativeopsTensor& out = described.tensors[op.inputs.size() + i];
  int64_t* strides = described.strides[i];
  const bool wanted = call.want >> i & 1;
  out = core::output_of(solution, i, strides, first.device_type, first.device_id);
  if (!wanted && !call.fill) return call.outputs.add(nullptr);
  const int64_t nothing[1] = {0}, one[1] = {1};
  const int32_t device = first.device_type == kNativeopsCuda ? shims.cuda : shims.cpu;
  const auto bytes = static_cast<size_t>(solution.bytes[i]);
  Tensor tensor = wanted ? make_large(out, bytes, solution.dtype[i]) : nullptr;
  const Error error =
      tensor ? 0
             : shims.empty_strided(wanted ? out.ndim : 1, wanted ? out.shape : nothing,
                                   wanted ? strides : one, shims.dtypes[solution.dtype[i]], device,
                                   first.device_id, &tensor);
  if (error)
    throw std::runtime_error(op.called + ": there is no memory for a result of " +
                             std::to_string(solution.bytes[i]) + " bytes");
  call.outputs.add(tensor);
  if (wanted) check(shims.get_data_ptr(tensor, &out.data));
}

// The tensor that the caller gave for an output.
void take_output(const core::Op& op, const core::Solution& solution, int i, Call& call,
                 Described& described) {
  const NativeopsTensor& first = described.tensors[0];
  NativeopsTensor& out = described.tensors[op.inputs.size() + i];
  const bool fits = describe(call.into[i], out) && out.device_type == first.device_type &&
                    out.device_id == first.device_id && core::fits_output(solution, i, out);
  if (!fits) fail_fit(op);
  call.outputs.add(nullptr);
}

Tensor take(StackValue value, Owned& owned) {
  Tensor tensor;
  std::memcpy(&tensor, &value, sizeof tensor);
  owned.add(tensor);
  return tensor;
}

// The arguments of a boxed kernel, which owns its tensors.
void read_stack(const core::Op& op, bool into, const StackValue* stack, Call& call, Owned& owned) {
  const size_t n = op.inputs.size(), n_all = n + op.attributes.size() + op.selective;
  for (size_t i = 0; i < n; ++i) call.inputs[i] = take(stack[i], owned);
  call.into = into ? owned.tensors + owned.n : nullptr;
  for (size_t i = 0; into && i < op.outputs.size(); ++i) take(stack[n_all + i], owned);
  for (size_t i = 0; i < op.attributes.size(); ++i) {
    call.attributes[i].integer = 0;
    const bool flag = op.attributes[i].type == core::AttributeType::boolean;
    std::memcpy(&call.attributes[i], &stack[n + i], flag ? sizeof(bool) : sizeof(int64_t));
  }
  call.fill = true;
  call.want = op.always;
  if (op.selective) call.want = static_cast<uint32_t>(stack[n_all - 1]);
}

// With `into` the results are written to tensors of the caller's, and nothing is returned.
void run_boxed(int id, bool into, StackValue* stack) {
  const core::Op& op = core::op_at(id);
  Owned owned;
  Call call;
  read_stack(op, into, stack, call, owned);
  compute(op, call);
  if (into) return;
  std::memcpy(stack, call.outputs.tensors, call.outputs.n * sizeof(Tensor));
  call.outputs.n = 0;  // the caller owns them now
}

// A boxed kernel has no closure: each registration takes a function of its own.
constexpr int kSlots = 1024;
int slot_ids[kSlots];
bool slot_into[kSlots];
int slots_taken = 0;

template <int Slot>
void boxed(StackValue* stack, uint64_t, uint64_t) {
  run_boxed(slot_ids[Slot], slot_into[Slot], stack);
}

template <int... Slot>
constexpr std::array<BoxedKernel, sizeof...(Slot)> table(std::integer_sequence<int, Slot...>) {
  return {boxed<Slot>...};
}

}  // namespace

void delete_tensor(Tensor tensor) { shims.delete_tensor_object(tensor); }
bool grad_mode() { return shims.grad_mode_is_enabled(); }

void compute(const core::Op& op, Call& call) {
  Described described;
  NativeopsTensor *inputs = described.tensors, *outputs = inputs + op.inputs.size();
  describe_inputs(op, call, described);
  core::Solution solution;
  if (!core::solve(op, inputs, call.attributes, solution)) fail_fit(op);
  uint32_t taken = 0;
  for (int i = 0; i < static_cast<int>(op.outputs.size()); ++i) {
    const bool take = call.into && call.into[i] && call.want >> i & 1;
    taken |= static_cast<uint32_t>(take) << i;
    (take ? take_output : make_output)(op, solution, i, call, described);
  }
  if (taken && !core::are_apart(op, inputs, outputs, taken)) fail_fit(op);
  core::Place place = {inputs[0].device_type, inputs[0].device_id, nullptr, services()};
  if (place.device_type == kNativeopsCuda) {
    if (!shims.get_current_cuda_stream)  // AMD's GPUs call themselves cuda, too
      throw std::runtime_error(op.called + ": there is no kernel for these dtypes on this device");
    check(shims.get_current_cuda_stream(place.device_id, &place.stream));
  }
  const core::Status status = core::run(op, solution, inputs, outputs, call.attributes, place);
  if (status != core::Status::ok) throw std::runtime_error(core::failure_text(op));
}

const char* connect(const char* libtorch_cpu, const char* libtorch_cuda) {
  void* cpu = loaded(libtorch_cpu);
  if (!cpu) return "libtorch_cpu.so";
#define LOOK_UP(name) \
  if (!look_up(cpu, "aoti_torch_" #name, shims.name)) return "aoti_torch_" #name;
  LOOK_UP(library_init_impl)
  LOOK_UP(library_impl)
  LOOK_UP(get_data_ptr)
  LOOK_UP(get_dim)
  LOOK_UP(get_sizes)
  LOOK_UP(get_strides)
  LOOK_UP(get_dtype)
  LOOK_UP(get_device_type)
  LOOK_UP(get_device_index)
  LOOK_UP(empty_strided)
  LOOK_UP(delete_tensor_object)
  LOOK_UP(grad_mode_is_enabled)
  LOOK_UP(abi_version)
  LOOK_UP(device_type_cpu)
  LOOK_UP(device_type_cuda)
#undef LOOK_UP
  shims.cpu = shims.device_type_cpu();
  shims.cuda = shims.device_type_cuda();
  look_up(cpu, "torch_library_impl", shims.library_impl_versioned);
  look_up(cpu, "torch_parallel_for", shims.parallel_for);
  look_up(cpu, "torch_get_num_threads", shims.get_num_threads);
  look_up(cpu, "torch_from_blob", shims.from_blob);
  cpu::forked();  // from here on it is noticed
  if (void* cuda = *libtorch_cuda ? loaded(libtorch_cuda) : nullptr)
    look_up(cuda, "aoti_torch_get_current_cuda_stream", shims.get_current_cuda_stream);
  for (int i = 0; i < core::kDtypeCount; ++i) {
    int32_t (*code)();
    const std::string name = std::string("aoti_torch_dtype_") + core::kDtypeNames[i];
    shims.dtypes[i] = look_up(cpu, name.c_str(), code) ? code() : -1;
  }
  return nullptr;
}

const char* implement(int id, const char* space, const char* name, const char* key, bool into) {
  static constexpr auto kernels = table(std::make_integer_sequence<int, kSlots>{});
  int slot = 0;  // one for all devices
  while (slot < slots_taken && (slot_ids[slot] != id || slot_into[slot] != into)) ++slot;
  if (slot == kSlots) return "too many ops are registered with PyTorch";
  slots_taken = std::max(slots_taken, slot + 1);
  slot_ids[slot] = id;
  slot_into[slot] = into;
  Library library;  // never freed: it owns the registration
  if (shims.library_init_impl(space, key, "nativeops", 0, &library)) return "no library in PyTorch";
  const Error error =
      shims.library_impl_versioned
          ? shims.library_impl_versioned(library, name, kernels[slot], shims.abi_version())
          : shims.library_impl(library, name, kernels[slot]);
  return error ? "PyTorch refused a kernel" : nullptr;
}

}  // namespace nativeops::torch
