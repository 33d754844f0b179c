// SPDX-License-Identifier: Apache-2.0
// Copies of arrays, on the CPU by a loop and on CUDA by a kernel of a loaded library.
#include "nativeops/bindings/copies.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

namespace nativeops::core {
namespace {

int64_t count_of(const NativeopsTensor& array) {
  int64_t count = 1;
  for (int axis = 0; axis < array.ndim; ++axis) count *= array.shape[axis];
  return count;
}

void copy_here(const NativeopsTensor& from, const NativeopsTensor& to) {
  const size_t item = from.dtype.bits / 8;
  const char* read = static_cast<const char*>(from.data) + from.byte_offset;
  char* written = static_cast<char*>(to.data) + to.byte_offset;
  int64_t index[NATIVEOPS_MAX_RANK] = {}, at = 0, place = 0;
  for (int64_t left = count_of(from); left > 0; --left) {
    std::memcpy(written + place * static_cast<int64_t>(item),
                read + at * static_cast<int64_t>(item), item);
    for (int axis = from.ndim - 1; axis >= 0; --axis) {
      at += from.strides[axis];
      place += to.strides[axis];
      if (++index[axis] < from.shape[axis]) break;
      at -= from.strides[axis] * from.shape[axis];
      place -= to.strides[axis] * to.shape[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace

void own_batch_strides(const Solution& solution, const NativeopsTensor& array, size_t named,
                       int64_t* strides) {
  const int lead = array.ndim - static_cast<int>(named);
  for (int axis = 0; axis < solution.batch_rank; ++axis) {
    const int own = axis - (solution.batch_rank - lead);
    const bool repeats = own < 0 || array.shape[own] == 1;
    strides[axis] = repeats ? 0 : array.strides[own];
  }
}

Copies::~Copies() {
  for (const Copy& copy : copies_)
    if (copy.memory.data) call_.services->release(&call_, copy.memory);
}

Status Copies::take(NativeopsTensor& array, size_t named, bool is_result) {
  if (call_.services->allocate == nullptr) {
    std::snprintf(call_.message, call_.message_size,
                  "its arrays' leading axes must lie one after the other; make them contiguous");
    return Status::failed;
  }
  Copy& own = copies_.emplace_back();
  const int lead = solution_.batch_rank, rank = lead + static_cast<int>(named);
  own_batch_strides(solution_, array, named, own.steps);
  std::copy_n(solution_.batch, lead, own.shape);
  std::copy_n(array.shape + array.ndim - named, named, own.shape + lead);
  std::copy_n(array.strides + array.ndim - named, named, own.steps + lead);
  contiguous_strides(rank, own.shape, own.strides);
  own.there = own.here = array;
  own.there.ndim = own.here.ndim = rank;
  own.there.shape = own.here.shape = own.shape;
  own.there.strides = own.steps;
  own.here.strides = own.strides;
  own.here.byte_offset = 0;
  own.is_result = is_result;
  const size_t bytes = static_cast<size_t>(count_of(own.here)) * (array.dtype.bits / 8);
  own.memory = call_.services->allocate(&call_, std::max<size_t>(bytes, 1));
  own.here.data = own.memory.data;
  if (own.memory.data == nullptr) throw std::bad_alloc();
  array = own.here;
  return is_result ? Status::ok : copy(own.there, own.here);
}

Status Copies::put_back() {
  for (Copy& own : copies_) {
    if (!own.is_result) continue;
    if (const Status status = copy(own.here, own.there); status != Status::ok) return status;
  }
  return Status::ok;
}

Status Copies::copy(const NativeopsTensor& from, NativeopsTensor& to) const {
  if (from.device_type == kNativeopsCpu) return copy_here(from, to), Status::ok;
  NativeopsCall call = call_;
  call.inputs = &from;
  call.outputs = &to;
  return static_cast<Status>(cuda_copy()(&call));
}

}  // namespace nativeops::core
