// SPDX-License-Identifier: Apache-2.0
#include "nativeops/bindings/core.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace nativeops::core {

const NativeopsDtype kDtypes[kDtypeCount] = {{kNativeopsFloat, 32, 1},  {kNativeopsFloat, 64, 1},
                                             {kNativeopsBfloat, 16, 1}, {kNativeopsFloat, 16, 1},
                                             {kNativeopsInt, 32, 1},    {kNativeopsInt, 64, 1},
                                             {kNativeopsUInt, 8, 1},    {kNativeopsBool, 8, 1}};
const char* const kDtypeNames[kDtypeCount] = {"float32", "float64", "bfloat16", "float16",
                                              "int32",   "int64",   "uint8",    "bool"};

int dtype_index(NativeopsDtype dtype) {
  for (int i = 0; i < kDtypeCount; ++i)
    if (dtype.code == kDtypes[i].code && dtype.bits == kDtypes[i].bits && dtype.lanes == 1)
      return i;
  return -1;
}

namespace {

// Ops in blocks that never move nor go. They are found without a lock: a process may be forked, or
// end, while a thread without Python's lock makes a call.
constexpr int kBlockOps = 64, kBlocks = 1 << 14;
std::atomic<Op*> blocks[kBlocks];
std::atomic<int> count_of_ops{0};

// The dtype of an array of this kind, once all inputs are known.
int dtype_of(int kind, const Solution& solution) {
  if (kind >= 0) return kind;
  if (kind == kIntVariable) return kFirstInt + std::max(solution.int_index, 0);
  const int floats = std::max(solution.float_index, 0);
  return kind == kAccum && kDtypes[floats].bits < 32 ? kFloat32 : floats;
}

bool solve_dtype(int kind, int index, Solution& solution) {
  if (kind >= 0) return index == kind;
  if (kind == kAccum) return true;  // it follows from the floats', which may come later
  int& chosen = kind == kFloatVariable ? solution.float_index : solution.int_index;
  const int first = kind == kFloatVariable ? 0 : kFirstInt;
  const int count = kind == kFloatVariable ? kFloats : kInts;
  if (index < first || index >= first + count || (chosen >= 0 && chosen != index - first))
    return false;
  chosen = index - first;
  return true;
}

bool solve_outputs(const Op& op, Solution& solution) {
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const Array& spec = op.outputs[i];
    int64_t* shape = solution.shape[i];
    int rank = 0;
    if (spec.batch) {
      std::copy_n(solution.batch, solution.batch_rank, shape);
      rank = solution.batch_rank;
    }
    if (rank + spec.axes.size() > NATIVEOPS_MAX_RANK) return false;
    for (const Axis& axis : spec.axes) shape[rank++] = evaluate(axis, solution.sizes);
    solution.rank[i] = rank;
    solution.dtype[i] = dtype_of(spec.kind, solution);
    int64_t bytes = kDtypes[solution.dtype[i]].bits / 8;
    for (int axis = 0; axis < rank; ++axis)
      if (shape[axis] < 0 || __builtin_mul_overflow(bytes, shape[axis], &bytes)) return false;
    solution.bytes[i] = bytes;
  }
  return true;
}

}  // namespace

bool merge_batch(const int64_t* shape, int rank, int64_t* batch, int& batch_rank) {
  if (rank > batch_rank) {
    std::copy_backward(batch, batch + batch_rank, batch + rank);
    std::fill(batch, batch + rank - batch_rank, 1);
    batch_rank = rank;
  }
  for (int axis = 0; axis < rank; ++axis) {
    int64_t& size = batch[batch_rank - rank + axis];
    const int64_t own = shape[axis];
    if (own == size || own == 1) continue;
    if (own == kAnySize)
      size = size == 1 ? kAnySize : size;
    else if (size == 1 || size == kAnySize)
      size = own;
    else
      return false;
  }
  return true;
}

bool is_known(const Axis& axis, const int64_t* sizes) {
  if (axis.slot >= 0) return sizes[axis.slot] != kUntold;
  return std::none_of(axis.steps.begin(), axis.steps.end(), [&](const Step& step) {
    return step.op == kName && sizes[step.operand] == kUntold;
  });
}

int64_t evaluate(const Axis& axis, const int64_t* sizes) {
  if (axis.slot >= 0) return sizes[axis.slot];
  int64_t stack[16];
  int top = 0;
  for (const Step& step : axis.steps) {
    if (step.op == kNumber || step.op == kName) {
      stack[top++] = step.op == kNumber ? step.operand : sizes[step.operand];
      continue;
    }
    const int64_t b = stack[--top];
    int64_t& a = stack[top - 1];
    bool beyond = false;  // of 64 bits: no size
    switch (step.op) {
      case kAdd:
        beyond = __builtin_add_overflow(a, b, &a);
        break;
      case kSubtract:
        beyond = __builtin_sub_overflow(a, b, &a);
        break;
      case kMultiply:
        beyond = __builtin_mul_overflow(a, b, &a);
        break;
      case kMax:
        a = std::max(a, b);
        break;
      case kMin:
        a = std::min(a, b);
        break;
      default:  // floor division, as in Python; by zero there is no size
        if (b == 0 || (b == -1 && a == INT64_MIN)) return -1;
        a = a / b - (a % b != 0 && (a < 0) != (b < 0));
    }
    if (beyond) return -1;
  }
  return stack[0];
}

namespace {

bool solve_input(const Array& spec, const NativeopsTensor& array, Solution& solution) {
  const int lead = array.ndim - static_cast<int>(spec.axes.size());
  if (lead < 0 || (lead > 0 && !spec.batch) || array.ndim > NATIVEOPS_MAX_RANK) return false;
  if (lead > 0 && !merge_batch(array.shape, lead, solution.batch, solution.batch_rank))
    return false;
  for (size_t a = 0; a < spec.axes.size(); ++a) {
    const int slot = spec.axes[a].slot;
    if (slot < 0) continue;
    const int64_t size = array.shape[lead + a];
    if (solution.sizes[slot] != kUntold && solution.sizes[slot] != size) return false;
    solution.sizes[slot] = size;
  }
  return true;
}

// What the other inputs tell of an array: its dtype, and the axes that have no name.
bool fits_others(const Array& spec, const NativeopsTensor& array, const Solution& solution) {
  if (spec.kind == kAccum && dtype_index(array.dtype) != dtype_of(kAccum, solution)) return false;
  const int64_t* shape = array.shape + array.ndim - spec.axes.size();
  for (size_t a = 0; a < spec.axes.size(); ++a)
    if (spec.axes[a].slot < 0 && evaluate(spec.axes[a], solution.sizes) != shape[a]) return false;
  return true;
}

// JAX has none of 64 bits for an absent input while it has no such numbers.
bool fits_dtype(const Array& spec, const NativeopsTensor& array, Solution& solution) {
  if (array.dtype.bits == 0 || solve_dtype(spec.kind, dtype_index(array.dtype), solution))
    return true;
  return is_absent(spec, array) && spec.kind >= 0 && array.dtype.code == kDtypes[spec.kind].code &&
         array.dtype.bits == 32 && kDtypes[spec.kind].bits == 64;
}

// What only absent inputs could tell: a size is 0, unless a result that every call makes needs it.
bool solve_absent(const Op& op, Solution& solution) {
  for (size_t i = 0; i < op.outputs.size(); ++i)
    for (const Axis& axis : op.outputs[i].axes)
      if (op.certain >> i & 1 && !is_known(axis, solution.sizes)) return false;
  std::replace(std::begin(solution.sizes), std::end(solution.sizes), kUntold, int64_t{0});
  return true;
}

// The memory from the first to behind the last element of an array.
struct Span {
  uintptr_t first, end;
};

Span span_of(const NativeopsTensor& array) {
  const auto start = reinterpret_cast<uintptr_t>(array.data) + array.byte_offset;
  Span span = {start, start + array.dtype.bits / 8};
  for (int axis = 0; axis < array.ndim; ++axis) {
    if (array.shape[axis] == 0) return {start, start};
    const int64_t reach = (array.shape[axis] - 1) * array.strides[axis] * (array.dtype.bits / 8);
    (reach < 0 ? span.first : span.end) += static_cast<uintptr_t>(reach);
  }
  return span;
}

bool meet(const NativeopsTensor& a, const NativeopsTensor& b) {
  const Span one = span_of(a), other = span_of(b);
  return std::max(one.first, other.first) < std::min(one.end, other.end);
}

// As `check_apart` of frameworks/out.py: a step along an axis is beyond all shorter ones.
bool repeats_elements(const NativeopsTensor& array) {
  struct Steps {
    int64_t step, size;
  } steps[NATIVEOPS_MAX_RANK];
  int count = 0;
  for (int axis = 0; axis < array.ndim; ++axis) {
    if (array.shape[axis] == 0) return false;
    if (array.shape[axis] == 1) continue;
    const Steps own = {std::abs(array.strides[axis]), array.shape[axis]};
    int at = count++;
    for (; at > 0 && steps[at - 1].step > own.step; --at) steps[at] = steps[at - 1];
    steps[at] = own;
  }
  int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (steps[i].step <= reach) return true;
    reach += (steps[i].size - 1) * steps[i].step;
  }
  return false;
}

bool are_same(const NativeopsTensor& a, const NativeopsTensor& b) {
  const auto first = [](const NativeopsTensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
  };
  return first(a) == first(b) && a.ndim == b.ndim &&
         std::equal(a.shape, a.shape + a.ndim, b.shape) &&
         std::equal(a.strides, a.strides + a.ndim, b.strides);
}

}  // namespace

int add_op(Op op) {
  static std::mutex adding;  // Python's lock is held, too, so that nobody forks meanwhile
  const std::lock_guard<std::mutex> lock(adding);
  const int id = count_of_ops;
  if (id == kBlocks * kBlockOps) throw std::length_error("there are too many ops");
  if (id % kBlockOps == 0) blocks[id / kBlockOps] = new Op[kBlockOps];
  blocks[id / kBlockOps][id % kBlockOps] = std::move(op);
  count_of_ops = id + 1;
  return id;
}

Op& op_at(int id) { return blocks[id / kBlockOps][id % kBlockOps]; }

int find_op(const std::string& key) {
  for (int id = 0; id < op_count(); ++id)
    if (op_at(id).key == key) return id;
  return -1;
}
int op_count() { return count_of_ops; }

bool is_absent(const Array& spec, const NativeopsTensor& array) {
  if (!spec.optional || array.ndim != static_cast<int>(spec.axes.size())) return false;
  return std::all_of(array.shape, array.shape + array.ndim, [](int64_t size) { return size == 0; });
}

NativeopsTensor absent(const Array& spec) {
  static int64_t zeros[NATIVEOPS_MAX_RANK] = {};
  const auto rank = static_cast<int32_t>(spec.axes.size());
  return {nullptr, kNativeopsCpu, 0, rank, {}, zeros, zeros, 0};  // of no dtype
}

bool solve(const Op& op, const NativeopsTensor* inputs, const NativeopsAttribute* attributes,
           Solution& solution) {
  solution.batch_rank = 0;
  solution.float_index = solution.int_index = -1;
  std::fill(std::begin(solution.sizes), std::end(solution.sizes), kUntold);
  for (size_t i = 0; i < op.attributes.size(); ++i)
    if (op.attributes[i].slot >= 0) solution.sizes[op.attributes[i].slot] = attributes[i].integer;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (!fits_dtype(op.inputs[i], inputs[i], solution) ||
        (!is_absent(op.inputs[i], inputs[i]) && !solve_input(op.inputs[i], inputs[i], solution)))
      return false;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (!is_absent(op.inputs[i], inputs[i]) && !fits_others(op.inputs[i], inputs[i], solution))
      return false;
  if (op.required < op.inputs.size() && !solve_absent(op, solution)) return false;
  solution.combination =
      std::max(solution.float_index, 0) * kInts + std::max(solution.int_index, 0);
  return solve_outputs(op, solution);
}

bool are_apart(const Op& op, const NativeopsTensor* inputs, const NativeopsTensor* outputs,
               uint32_t given) {
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (!(given >> i & 1)) continue;
    if (repeats_elements(outputs[i])) return false;
    for (size_t j = 0; j < i; ++j)
      if (given >> j & 1 && meet(outputs[i], outputs[j])) return false;
    for (size_t j = 0; j < op.inputs.size(); ++j) {
      const bool takes_over =
          op.outputs[i].reuses == static_cast<int>(j) && are_same(outputs[i], inputs[j]);
      if (!takes_over && meet(outputs[i], inputs[j])) return false;
    }
  }
  return true;
}

void contiguous_strides(int rank, const int64_t* shape, int64_t* strides) {
  int64_t step = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= std::max<int64_t>(shape[axis], 1);
  }
}

NativeopsTensor output_of(const Solution& solution, size_t i, int64_t* strides, int32_t device_type,
                          int32_t device_id) {
  contiguous_strides(solution.rank[i], solution.shape[i], strides);
  return {nullptr,
          device_type,
          device_id,
          solution.rank[i],
          kDtypes[solution.dtype[i]],
          const_cast<int64_t*>(solution.shape[i]),
          strides,
          0};
}

bool fits_output(const Solution& solution, size_t i, const NativeopsTensor& array) {
  return array.ndim == solution.rank[i] && dtype_index(array.dtype) == solution.dtype[i] &&
         std::equal(array.shape, array.shape + array.ndim, solution.shape[i]);
}

}  // namespace nativeops::core
