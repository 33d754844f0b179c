// SPDX-License-Identifier: Apache-2.0
// JAX: one handler for all ops behind XLA's foreign function interface. XLA's C header comes from
// jaxlib and is needed at build time only; nothing of XLA is linked.
#pragma once

namespace nativeops::xla {

// The handler of a platform ("cpu", "CUDA"), as XLA registers it; null if the build had no header.
void* handler(const char* platform);

}  // namespace nativeops::xla
