// SPDX-License-Identifier: Apache-2.0
// One call: the leading axes that broadcast are folded into one, then the kernel runs.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "nativeops/bindings/core.h"

namespace nativeops::core {
namespace {

thread_local char message[2048];

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
};

void own_batch_strides(const Solution& solution, const NativeopsTensor& array, size_t named,
                       int64_t* strides) {
  const int lead = array.ndim - static_cast<int>(named);
  for (int axis = 0; axis < solution.batch_rank; ++axis) {
    const int own = axis - (solution.batch_rank - lead);
    const bool repeats = own < 0 || array.shape[own] == 1;
    strides[axis] = repeats ? 0 : array.strides[own];
  }
}

// Asks for huge pages where a large result lies. Fresh memory is zeroed page by page when it is
// first written: with pages of 4 KB that took a fifth of the time of a result of 64 MB. NumPy asks
// for its own arrays; PyTorch, XLA and TensorFlow do not.
void expect_writes(const NativeopsTensor& out, int64_t bytes) {
  constexpr int64_t kLarge = int64_t{4} << 20;
  constexpr uintptr_t kPage = 4096;
  if (out.data == nullptr || bytes < kLarge) return;
  const auto first = reinterpret_cast<uintptr_t>(out.data) + out.byte_offset;
  const uintptr_t start = (first + kPage - 1) / kPage * kPage;
  const uintptr_t end = (first + static_cast<uintptr_t>(bytes)) / kPage * kPage;
  madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);  // advice: may be refused
}

Status call_kernel(NativeopsKernel kernel, NativeopsCall& call, const Batch& batch, Folded& folded,
                   const uint64_t* item_bytes) {
  const int outer = std::max(batch.rank - 1, 0);
  int64_t index[NATIVEOPS_MAX_RANK] = {};
  for (;;) {
    const int32_t status = kernel(&call);
    if (status != kNativeopsOk) return static_cast<Status>(status);
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

}  // namespace

const char* last_message() { return message; }

Status run(const Op& op, const Solution& solution, const NativeopsTensor* inputs,
           NativeopsTensor* outputs, const NativeopsAttribute* attributes, Place place) {
  message[0] = 0;
  const int device = place.device_type == kNativeopsCpu ? 0 : 1;
  const NativeopsKernel kernel = op.kernels[device][solution.combination];
  if (kernel == nullptr) return Status::no_kernel;
  const int n_inputs = static_cast<int>(op.inputs.size());
  const int n_outputs = static_cast<int>(op.outputs.size());
  bool empty = true;
  for (int i = 0; i < n_outputs; ++i) empty &= outputs[i].data == nullptr || solution.bytes[i] == 0;
  if (empty) return Status::ok;
  if (device == 0)
    for (int i = 0; i < n_outputs; ++i) expect_writes(outputs[i], solution.bytes[i]);

  Folded folded;
  Batch batch;
  batch.arrays = n_inputs + n_outputs;
  int64_t lead[NATIVEOPS_MAX_ARRAYS][NATIVEOPS_MAX_RANK];
  uint64_t item_bytes[NATIVEOPS_MAX_ARRAYS];
  for (int i = 0; i < batch.arrays; ++i) {
    const Array& spec = i < n_inputs ? op.inputs[i] : op.outputs[i - n_inputs];
    folded.tensor[i] = i < n_inputs ? inputs[i] : outputs[i - n_inputs];
    item_bytes[i] = folded.tensor[i].dtype.bits / 8;
    if (spec.batch)
      own_batch_strides(solution, folded.tensor[i], spec.axes.size(), lead[i]);
    else
      std::fill_n(lead[i], solution.batch_rank, int64_t{0});
  }
  fold(solution, lead, batch);
  const int inner = batch.rank - 1;
  for (int i = 0; i < batch.arrays; ++i) {
    const Array& spec = i < n_inputs ? op.inputs[i] : op.outputs[i - n_inputs];
    NativeopsTensor& tensor = folded.tensor[i];
    const int named = static_cast<int>(spec.axes.size()), skip = tensor.ndim - named;
    std::copy_n(tensor.shape + skip, named, folded.shape[i] + spec.batch);
    std::copy_n(tensor.strides + skip, named, folded.stride[i] + spec.batch);
    if (spec.batch) {
      folded.shape[i][0] = inner >= 0 ? batch.size[inner] : 1;
      folded.stride[i][0] = inner >= 0 ? batch.stride[i][inner] : 0;
    }
    tensor.ndim = named + spec.batch;
    tensor.shape = folded.shape[i];
    tensor.strides = folded.stride[i];
  }
  NativeopsCall call = {sizeof(NativeopsCall),
                        place.device_id,
                        place.stream,
                        folded.tensor,
                        folded.tensor + n_inputs,
                        attributes,
                        place.services ? place.services : services(),
                        message,
                        sizeof message};
  return call_kernel(kernel, call, batch, folded, item_bytes);
}

}  // namespace nativeops::core
