// SPDX-License-Identifier: Apache-2.0
// Arrays of a call in one piece each: for a kernel that must see all leading axes at once, where
// they do not fold into one.
#pragma once
#include <vector>

#include "nativeops/bindings/core.h"

namespace nativeops::core {

// The steps from one element to the next along the leading axes of a call, 0 along those that the
// array lacks.
void own_batch_strides(const Solution& solution, const NativeopsTensor& array, size_t named,
                       int64_t* strides);

// Row-major copies, repeated along the leading axes that an array lacks, in workspaces of the call.
class Copies {
 public:
  Copies(const Solution& solution, const NativeopsCall& call, size_t most)
      : solution_(solution), call_(call) {
    copies_.reserve(most);  // they are pointed to
  }
  ~Copies();
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Puts a copy in the place of an array with so many named axes: with its numbers, or for results.
  Status take(NativeopsTensor& array, size_t named, bool is_result);
  // Writes the results to where the arrays are.
  Status put_back();

 private:
  struct Copy {
    NativeopsTensor there, here;
    bool is_result;
    NativeopsMemory memory;
    int64_t shape[NATIVEOPS_MAX_RANK], steps[NATIVEOPS_MAX_RANK], strides[NATIVEOPS_MAX_RANK];
  };

  Status copy(const NativeopsTensor& from, NativeopsTensor& to) const;

  const Solution& solution_;
  const NativeopsCall& call_;
  std::vector<Copy> copies_;
};

}  // namespace nativeops::core
