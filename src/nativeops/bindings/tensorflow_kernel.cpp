// SPDX-License-Identifier: Apache-2.0
// The kernel of any op in TensorFlow: its attributes are read once, then it only computes.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

#include "nativeops/bindings/memory.h"
#include "nativeops/bindings/tensorflow.h"

namespace nativeops::tensorflow {
namespace {

struct Kernel {
  int id;
  NativeopsAttribute attributes[NATIVEOPS_MAX_ATTRIBUTES];
  uint32_t want;
};

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return result.ec == std::errc() && result.ptr == end;
}

bool read_value(const core::Attribute& spec, std::string_view text, NativeopsAttribute& out) {
  if (spec.type == core::AttributeType::real) return read_number(text, out.real);
  if (spec.type != core::AttributeType::choice) return read_number(text, out.integer);
  for (size_t i = 0; i < spec.choices.size(); ++i)
    if (spec.choices[i] == text) return out.integer = static_cast<int64_t>(i), true;
  return false;
}

// The attribute named by "name=value"; others may be missing where the op has a default.
bool read_attributes(const core::Op& op, const std::vector<std::string_view>& texts,
                     NativeopsAttribute* out) {
  size_t found = 0;
  for (size_t i = 0; i < op.attributes.size(); ++i) {
    const core::Attribute& spec = op.attributes[i];
    bool given = false;
    for (const std::string_view text : texts) {
      if (text.substr(0, text.find('=')) != spec.name) continue;
      if (!read_value(spec, text.substr(spec.name.size() + 1), out[i])) return false;
      given = true;
    }
    if (!given && spec.required) return false;
    if (!given) out[i] = spec.fallback;
    found += given;
  }
  return found == texts.size();
}

bool read_node(const core::Op& op, TF_OpKernelConstruction* node, Kernel& kernel, Status& status) {
  int32_t count = 0, bytes = 0;
  api.OpKernelConstruction_GetAttrSize(node, "attributes", &count, &bytes, status);
  if (!status.ok()) return true;
  bytes = std::max(bytes, 0);  // of an empty list it is -1
  std::vector<char*> values(count);
  std::vector<size_t> lengths(count);
  std::vector<char> storage(bytes);
  api.OpKernelConstruction_GetAttrStringList(node, "attributes", values.data(), lengths.data(),
                                             count, storage.data(), storage.size(), status);
  if (!status.ok()) return true;
  std::vector<std::string_view> texts;
  for (int32_t i = 0; i < count; ++i) texts.emplace_back(values[i], lengths[i]);
  int64_t want = 0;
  api.OpKernelConstruction_GetAttrInt64(node, "want", &want, status);
  kernel.want = static_cast<uint32_t>(want);
  return read_attributes(op, texts, kernel.attributes);
}

// The tensors of one call; TensorFlow's handles of them are given back at the end.
class Tensors {
 public:
  ~Tensors() {
    for (int i = 0; i < n_; ++i)
      if (handles_[i]) api.DeleteTensor(handles_[i]);
  }
  void add(TF_Tensor* handle) { set(n_++, handle); }
  void set(int i, TF_Tensor* handle) {
    handles_[i] = handle;
    NativeopsTensor& tensor = tensors[i];
    tensor.data = api.TensorData(handle);
    tensor.device_type = kNativeopsCpu;
    tensor.device_id = 0;
    tensor.ndim = api.NumDims(handle);
    tensor.dtype = {};
    const int type = api.TensorType(handle);
    for (int d = 0; d < core::kDtypeCount; ++d)
      if (kTypes[d] == type) tensor.dtype = core::kDtypes[d];
    tensor.shape = shapes_[i];
    tensor.strides = strides_[i];
    tensor.byte_offset = 0;
    const int rank = tensor.ndim < NATIVEOPS_MAX_RANK ? tensor.ndim : NATIVEOPS_MAX_RANK;
    for (int axis = 0; axis < rank; ++axis) shapes_[i][axis] = api.Dim(handle, axis);
    core::contiguous_strides(rank, shapes_[i], strides_[i]);
  }

  // Gives an input's handle back. Until the next `set` its numbers must not be touched.
  void release(int i) {
    api.DeleteTensor(handles_[i]);
    handles_[i] = nullptr;
  }

  NativeopsTensor tensors[NATIVEOPS_MAX_ARRAYS];  // the inputs, then the outputs

 private:
  TF_Tensor* handles_[NATIVEOPS_MAX_ARRAYS];
  int64_t shapes_[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  int64_t strides_[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  int n_ = 0;
};

void fail(TF_OpKernelContext* context, Code code, const std::string& text) {
  const Status status;
  api.SetStatus(status, code, text.c_str());
  api.OpKernelContext_Failure(context, status);
}

bool take_inputs(const core::Op& op, TF_OpKernelContext* context, Tensors& tensors) {
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Status status;
    TF_Tensor* handle = nullptr;
    api.GetInput(context, static_cast<int>(i), &handle, status);
    if (!status.ok()) return api.OpKernelContext_Failure(context, status), false;
    tensors.add(handle);
  }
  return true;
}

// An input's memory for an output that may take it over, if nobody else holds the input; else new
// memory. Null if the output takes over none.
TF_Tensor* reuse(const core::Op& op, const core::Solution& solution, TF_OpKernelContext* context,
                 Tensors& tensors, size_t i) {
  const int input = op.outputs[i].reuses;
  if (input < 0) return nullptr;
  const NativeopsTensor& given = tensors.tensors[input];
  if (given.ndim != solution.rank[i] ||
      !std::equal(given.shape, given.shape + given.ndim, solution.shape[i]))
    return nullptr;  // it is repeated along leading axes
  const Status status;
  int forwarded = -1;
  tensors.release(input);  // TensorFlow counts our handle, too
  TF_Tensor* handle =
      api.ForwardInputOrAllocateOutput(context, &input, 1, static_cast<int>(i), solution.shape[i],
                                       solution.rank[i], &forwarded, status);
  TF_Tensor* again = nullptr;
  api.GetInput(context, input, &again, status);
  tensors.set(input, again);
  return handle;
}

// The outputs, in TensorFlow's own memory; one that nobody wants has no elements.
bool make_outputs(const core::Op& op, const Kernel& kernel, const core::Solution& solution,
                  TF_OpKernelContext* context, Tensors& tensors) {
  const int64_t nothing[1] = {0};
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const bool wanted = kernel.want >> i & 1;
    const Status status;
    TF_Tensor* handle = wanted ? reuse(op, solution, context, tensors, i) : nullptr;
    if (!handle)
      handle =
          api.AllocateOutput(context, static_cast<int>(i), kTypes[solution.dtype[i]],
                             wanted ? solution.shape[i] : nothing, wanted ? solution.rank[i] : 1,
                             wanted ? static_cast<size_t>(solution.bytes[i]) : 0, status);
    if (!status.ok() || !handle) {
      const std::string bytes = std::to_string(solution.bytes[i]);
      fail(context, kResourceExhausted,
           op.called + ": there is no memory for a result of " + bytes + " bytes");
      return false;
    }
    tensors.add(handle);
    if (!wanted) tensors.tensors[op.inputs.size() + i].data = nullptr;
  }
  return true;
}

// Workspaces are tensors of bytes, from TensorFlow's allocator, whose statistics then know them.
NativeopsMemory allocate(const NativeopsCall* call, size_t bytes) {
  if (!core::is_frameworks(bytes)) return core::lend(call, bytes);
  const AllocatorAttributes host = {sizeof(AllocatorAttributes), 1};
  const int64_t size = static_cast<int64_t>(bytes);
  const Status status;
  TF_Tensor* tensor = api.AllocateTemp(static_cast<TF_OpKernelContext*>(call->frame),
                                       kTypes[core::kUint8], &size, 1, &host, status);
  if (!status.ok() || !tensor) return {nullptr, nullptr, bytes};
  return {api.TensorData(tensor), tensor, bytes};
}
void release(const NativeopsCall* call, NativeopsMemory memory) {
  if (!memory.owner) return core::take_back(call, memory);
  api.DeleteTensor(static_cast<TF_Tensor*>(memory.owner));
}
const NativeopsServices* services() {
  static const NativeopsServices table = [] {
    NativeopsServices own = *core::services();
    own.allocate = allocate;
    own.release = release;
    return own;
  }();
  return &table;
}

}  // namespace

void* create_kernel(int id, TF_OpKernelConstruction* node) {
  const core::Op& op = core::op_at(id);
  auto kernel = std::make_unique<Kernel>();
  kernel->id = id;
  Status status;
  if (!read_node(op, node, *kernel, status))
    api.SetStatus(status, kInvalidArgument, core::unfit_text(op).c_str());
  if (status.ok()) return kernel.release();
  api.OpKernelConstruction_Failure(node, status);
  return nullptr;
}

void delete_kernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

void compute_kernel(void* pointer, TF_OpKernelContext* context) {
  const Kernel& kernel = *static_cast<Kernel*>(pointer);
  const core::Op& op = core::op_at(kernel.id);
  Tensors tensors;
  if (!take_inputs(op, context, tensors)) return;
  NativeopsTensor* inputs = tensors.tensors;
  core::Solution solution;
  if (!core::solve(op, inputs, kernel.attributes, solution)) {
    const std::string text = explain(kernel.id, inputs, kernel.attributes);
    return fail(context, kInvalidArgument, text.empty() ? core::unfit_text(op) : text);
  }
  if (!make_outputs(op, kernel, solution, context, tensors)) return;
  const core::Status status =
      core::run(op, solution, inputs, inputs + op.inputs.size(), kernel.attributes,
                {kNativeopsCpu, 0, nullptr, services(), context});
  if (status == core::Status::ok) return;
  const bool is_memory = status == core::Status::no_memory;
  fail(context,
       is_memory               ? kResourceExhausted
       : core::refused_value() ? kInvalidArgument
                               : kInternal,
       core::failure_text(op));
}

}  // namespace nativeops::tensorflow
