// SPDX-License-Identifier: Apache-2.0
// Host memory for workspaces and for large results. What is given back is lent again: fresh memory
// is zeroed page by page while it is written for the first time, which took a tenth of the time of
// training a recurrent layer and two thirds of that of copying 60 MB.
#pragma once
#include <cstddef>

namespace nativeops::core {

// From here on what is given back is kept for the next call, and results of NumPy and PyTorch lie
// in it. Their allocators often give it back to the system: two gradients of 0.6 MB took 440 us, of
// which 35 to compute them.
constexpr size_t kWorthKeeping = size_t{256} << 10;
// From here on in huge pages.
constexpr size_t kLarge = size_t{4} << 20;

// Aligned to 64 bytes; null when there is none.
void* allocate(size_t bytes);
void release(void* memory);
// The same for a workspace, whose size is known when it is given back.
void* allocate_workspace(size_t bytes);
void release_workspace(void* memory, size_t bytes);
// Gives all that is kept back to the system, but for small workspaces.
void drop_kept();

// Whether a framework's allocator is asked for a workspace on the CPU. It gives large blocks back
// to the system each time, and little is not worth the call.
constexpr bool is_frameworks(size_t bytes) { return bytes >= 4096 && bytes < kLarge; }

// Asks for huge pages where much is about to be written for the first time: with pages of 4 KB
// zeroing took a fifth of the time of a result of 64 MB. XLA and TensorFlow do not ask.
void expect_writes(void* memory, size_t bytes);

}  // namespace nativeops::core
