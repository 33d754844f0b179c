// SPDX-License-Identifier: Apache-2.0
// PyTorch: one boxed kernel for all ops, through the C shims that PyTorch keeps stable. No header
// of PyTorch is used; its functions are looked up when the first tensor is seen.
#pragma once
#include <cstdint>

namespace nativeops::torch {

// Looks up the shims in the loaded libraries. Null, or the name of the one that is missing.
const char* connect(const char* libtorch_cpu, const char* libtorch_cuda);

// Registers the op's kernel for a dispatch key ("CPU", "CUDA"); with `into` the one that writes its
// result to a tensor behind the other arguments. Null, or what went wrong.
const char* implement(int id, const char* space, const char* name, const char* key, bool into);

}  // namespace nativeops::torch
