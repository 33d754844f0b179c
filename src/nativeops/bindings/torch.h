// SPDX-License-Identifier: Apache-2.0
// PyTorch: one boxed kernel for all ops, through the C shims that PyTorch keeps stable. No header
// of PyTorch is used; its functions are looked up when the first tensor is seen.
#pragma once
#include <cstdint>

#include "nativeops/bindings/core.h"

namespace nativeops::torch {

using Tensor = struct AtenTensorOpaque*;

void delete_tensor(Tensor tensor);
bool grad_mode();

// Tensors that are deleted unless handed back.
struct Owned {
  Tensor tensors[NATIVEOPS_MAX_ARRAYS];
  int n = 0;
  void add(Tensor tensor) { tensors[n++] = tensor; }
  ~Owned() {
    for (int i = 0; i < n; ++i)
      if (tensors[i]) delete_tensor(tensors[i]);
  }
};

// One call of an op: what it is given, and what `compute` makes of it.
struct Call {
  Tensor inputs[NATIVEOPS_MAX_ARRAYS];  // the caller's; null where one is absent
  NativeopsAttribute attributes[NATIVEOPS_MAX_ATTRIBUTES];
  uint32_t want;
  const Tensor* into;  // the caller's, one for each output, or null to make a new one; or none
  bool fill;           // outputs that nobody wants are tensors without elements, instead of null
  Owned outputs;
};

// Throws what went wrong.
void compute(const core::Op& op, Call& call);

// Looks up the shims in the loaded libraries. Null, or the name of the one that is missing.
const char* connect(const char* libtorch_cpu, const char* libtorch_cuda);

// Registers the op's kernel for a dispatch key ("CPU", "CUDA"); with `into` the one that writes its
// results to tensors behind the other arguments. Null, or what went wrong.
const char* implement(int id, const char* space, const char* name, const char* key, bool into);

}  // namespace nativeops::torch
