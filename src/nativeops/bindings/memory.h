// SPDX-License-Identifier: Apache-2.0
// Host memory for workspaces and for results that are kept for the gradient. What is given back is
// lent again: fresh memory is zeroed page by page while it is written for the first time, which
// took a tenth of the time of training a recurrent layer.
#pragma once
#include <cstddef>

namespace nativeops::core {

// Aligned to 64 bytes; null when there is none.
void* allocate(size_t bytes);
void release(void* memory);

// Asks for huge pages where much is about to be written for the first time: with pages of 4 KB
// zeroing took a fifth of the time of a result of 64 MB. NumPy asks for its own arrays; PyTorch, XLA
// and TensorFlow do not.
void expect_writes(void* memory, size_t bytes);

}  // namespace nativeops::core
