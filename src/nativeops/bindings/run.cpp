// SPDX-License-Identifier: Apache-2.0
// One call: the leading axes that broadcast are folded into one, then the kernel runs.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>

#include "nativeops/bindings/copies.h"
#include "nativeops/bindings/core.h"
#include "nativeops/bindings/memory.h"
#include "nativeops/devices/cpu/floating.h"

namespace nativeops::core {
namespace {

constexpr char kNoMemory[] = "there is no memory for a workspace";
thread_local char message[2048];

Status fail(Status status, const char* text) {
  std::snprintf(message, sizeof message, "%s", text);
  return status;
}

// Strides of all arrays over the leading axes, merged into as few axes as memory allows.
struct Batch {
  int arrays = 0, rank = 0;
  int64_t size[NATIVEOPS_MAX_RANK];
  int64_t stride[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];

  bool joins(int axis, int64_t next_size, const int64_t (*next)[NATIVEOPS_MAX_RANK],
             int column) const {
    for (int i = 0; i < arrays; ++i)
      if (stride[i][axis] != next[i][column] * next_size) return false;
    return true;
  }
};

void fold(const Solution& solution, const int64_t (*strides)[NATIVEOPS_MAX_RANK], Batch& batch) {
  // No items at all, which may be summed up: one axis, whatever the strides.
  if (std::count(solution.batch, solution.batch + solution.batch_rank, 0) > 0) {
    batch.rank = 1;
    batch.size[0] = 0;
    for (int i = 0; i < batch.arrays; ++i) batch.stride[i][0] = 0;
    return;
  }
  for (int axis = 0; axis < solution.batch_rank; ++axis) {
    const int64_t size = solution.batch[axis];
    if (size == 1) continue;
    const int last = batch.rank - 1;
    if (last >= 0 && batch.joins(last, size, strides, axis)) {
      batch.size[last] *= size;
      for (int i = 0; i < batch.arrays; ++i) batch.stride[i][last] = strides[i][axis];
      continue;
    }
    batch.size[batch.rank] = size;
    for (int i = 0; i < batch.arrays; ++i) batch.stride[i][batch.rank] = strides[i][axis];
    ++batch.rank;
  }
}

// The arrays as the kernel sees them: one batch axis in front of the named ones.
struct Folded {
  NativeopsTensor tensor[NATIVEOPS_MAX_ARRAYS];
  int64_t shape[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK + 1];
  int64_t stride[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK + 1];

  void reshape(int i, const Array& spec, const Batch& batch) {
    const int named = static_cast<int>(spec.axes.size()), skip = tensor[i].ndim - named;
    const int inner = batch.rank - 1;
    std::copy_n(tensor[i].shape + skip, named, shape[i] + spec.batch);
    std::copy_n(tensor[i].strides + skip, named, stride[i] + spec.batch);
    if (spec.batch) {
      shape[i][0] = inner >= 0 ? batch.size[inner] : 1;
      stride[i][0] = inner >= 0 ? batch.stride[i][inner] : 0;
    }
    tensor[i].ndim = named + spec.batch;
    tensor[i].shape = shape[i];
    tensor[i].strides = stride[i];
  }
};

void expect_results(const Solution& solution, const NativeopsTensor* outputs, int count) {
  for (int i = 0; i < count; ++i) {
    if (outputs[i].data == nullptr) continue;
    char* first = static_cast<char*>(outputs[i].data) + outputs[i].byte_offset;
    expect_writes(first, static_cast<size_t>(solution.bytes[i]));
  }
}

double no_elements;  // where an array without any lies that has no place of its own

// A kernel names a value that it refuses by its place in the array it got, whose leading axes are
// folded into one, and may be a part that begins behind `before` others. Users know the place in
// the array that they gave.
void name_given_place(const Op& op, const Solution& solution, const NativeopsTensor* inputs,
                      int64_t before) {
  const std::string said = message;
  const size_t open = said.find('[');
  if (open > said.find('`', 1)) return;
  const std::string name = said.substr(1, open - 1);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (op.inputs[i].name != name || !op.inputs[i].batch) continue;
    int64_t place = before + std::strtoll(&said[open + 1], nullptr, 10);
    std::string where;
    int own = inputs[i].ndim - static_cast<int>(op.inputs[i].axes.size()) - 1;
    for (int axis = solution.batch_rank - 1; own >= 0; --axis, --own) {
      const int64_t index = inputs[i].shape[own] == 1 ? 0 : place % solution.batch[axis];
      place /= solution.batch[axis];
      where = std::to_string(index) + (where.empty() ? "" : ", ") + where;
    }
    std::string rest = said.substr(said.find_first_of(",]", open));  // of ", 3]` is" or "]` is"
    const bool more = rest[0] == ',';
    if (where.empty()) rest.erase(0, more ? 2 : 1);
    const char* const bracket = more || !where.empty() ? "[" : "";
    std::snprintf(message, sizeof message, "`%s%s%s%s", name.c_str(), bracket, where.c_str(),
                  rest.c_str());
    return;
  }
}

// The leading axes that do not fold into one are walked; `before` counts the items before the call
// that failed.
Status call_kernel(NativeopsKernel kernel, NativeopsCall& call, const Batch& batch, Folded& folded,
                   const uint64_t* item_bytes, int64_t& before) {
  const int outer = std::max(batch.rank - 1, 0);
  int64_t index[NATIVEOPS_MAX_RANK] = {};
  for (;;) {
    const int32_t status = kernel(&call);
    if (status != kNativeopsOk) {
      const auto failure = static_cast<Status>(status);
      if (failure == Status::no_memory) return fail(failure, kNoMemory);
      for (int axis = 0; axis < outer; ++axis) before = before * batch.size[axis] + index[axis];
      if (outer > 0) before *= batch.size[outer];
      return message[0] ? failure : fail(failure, "the kernel failed and does not say why");
    }
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      const bool carry = ++index[axis] == batch.size[axis];
      const int64_t steps = carry ? 1 - batch.size[axis] : 1;
      for (int i = 0; i < batch.arrays; ++i)
        if (folded.tensor[i].data)
          folded.tensor[i].byte_offset +=
              static_cast<uint64_t>(steps * batch.stride[i][axis]) * item_bytes[i];
      if (!carry) break;
      index[axis] = 0;
    }
    if (axis < 0) return Status::ok;
  }
}

// Whether some output lacks the leading axes that inputs have: then the kernel must see all of them
// in one call, and they must lie so that they fold into one.
bool sums_up_leading_axes(const Op& op, const NativeopsTensor* outputs) {
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (!op.outputs[i].batch && outputs[i].data) return true;
  return false;
}

Status run_on_copies(const Op& op, const Solution& solution, const NativeopsCall& call,
                     const NativeopsTensor* inputs, const NativeopsTensor* outputs, Place place) {
  const size_t n_inputs = op.inputs.size(), n_outputs = op.outputs.size();
  NativeopsTensor tensors[NATIVEOPS_MAX_ARRAYS];
  std::copy_n(inputs, n_inputs, tensors);
  std::copy_n(outputs, n_outputs, tensors + n_inputs);
  try {
    Copies copies(solution, call, n_inputs + n_outputs);
    for (size_t i = 0; i < n_inputs + n_outputs; ++i) {
      const bool is_result = i >= n_inputs;
      const Array& spec = is_result ? op.outputs[i - n_inputs] : op.inputs[i];
      const bool none = is_result ? tensors[i].data == nullptr : is_absent(spec, tensors[i]);
      if (!spec.batch || none) continue;
      const Status status = copies.take(tensors[i], spec.axes.size(), is_result);
      if (status != Status::ok) return status;
    }
    const Status status = run(op, solution, tensors, tensors + n_inputs, call.attributes, place);
    return status == Status::ok ? copies.put_back() : status;
  } catch (const std::bad_alloc&) {
    return fail(Status::no_memory, kNoMemory);
  }
}

}  // namespace

const char* last_message() { return message; }
bool refused_value() { return message[0] == '`'; }
std::string failure_text(const Op& op) { return op.called + ": " + message; }
std::string unfit_text(const Op& op) {
  return op.called + ": the arguments do not fit " + op.signature;
}

Status run(const Op& op, const Solution& solution, const NativeopsTensor* inputs,
           NativeopsTensor* outputs, const NativeopsAttribute* attributes, Place place) {
  message[0] = 0;
  const int device = place.device_type == kNativeopsCpu ? 0 : 1;
  const NativeopsKernel kernel = op.kernels[device][solution.combination];
  if (kernel == nullptr)
    return fail(Status::no_kernel, "there is no kernel for these dtypes on this device");
  const int n_inputs = static_cast<int>(op.inputs.size());
  const int n_outputs = static_cast<int>(op.outputs.size());
  bool empty = true;
  for (int i = 0; i < n_outputs; ++i) empty &= outputs[i].data == nullptr || solution.bytes[i] == 0;
  if (empty) return Status::ok;
  if (device == 0) expect_results(solution, outputs, n_outputs);

  Folded folded;
  Batch batch;
  batch.arrays = n_inputs + n_outputs;
  int64_t lead[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  uint64_t item_bytes[NATIVEOPS_MAX_ARRAYS];
  for (int i = 0; i < batch.arrays; ++i) {
    const Array& spec = i < n_inputs ? op.inputs[i] : op.outputs[i - n_inputs];
    folded.tensor[i] = i < n_inputs ? inputs[i] : outputs[i - n_inputs];
    // Without memory a kernel neither reads nor writes; some arrays without elements have some.
    if (i < n_inputs ? is_absent(spec, inputs[i]) : solution.bytes[i - n_inputs] == 0)
      folded.tensor[i].data = nullptr;
    else if (folded.tensor[i].data == nullptr && i < n_inputs)
      folded.tensor[i].data = &no_elements;  // it is given: null would say that it is absent
    item_bytes[i] = folded.tensor[i].dtype.bits / 8;
    if (spec.batch)
      own_batch_strides(solution, folded.tensor[i], spec.axes.size(), lead[i]);
    else
      std::fill_n(lead[i], solution.batch_rank, int64_t{0});
  }
  fold(solution, lead, batch);
  NativeopsCall call = {
      sizeof(NativeopsCall),
      place.device_id,
      place.stream,
      folded.tensor,
      folded.tensor + n_inputs,
      attributes,
      place.services ? place.services : (device == 0 ? services() : cuda_services()),
      place.frame,
      message,
      sizeof message};
  if (batch.rank > 1 && sums_up_leading_axes(op, outputs))
    return run_on_copies(op, solution, call, inputs, outputs, place);
  for (int i = 0; i < batch.arrays; ++i)
    folded.reshape(i, i < n_inputs ? op.inputs[i] : op.outputs[i - n_inputs], batch);
  std::optional<cpu::ExactSmallNumbers> exact;
  if (device == 0) exact.emplace();
  int64_t before = 0;
  const Status status = call_kernel(kernel, call, batch, folded, item_bytes, before);
  if (refused_value()) name_given_place(op, solution, inputs, before);
  return status;
}

}  // namespace nativeops::core
