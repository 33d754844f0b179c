// SPDX-License-Identifier: Apache-2.0
// What the tests of this folder do with what is not true.
#pragma once
#include <cstdio>
#include <cstdlib>

inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not true: %s\n", what);
  std::exit(1);
}
