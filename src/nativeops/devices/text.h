// SPDX-License-Identifier: Apache-2.0
// Texts that cross the border to the core.
#pragma once
#include <cstddef>

namespace nativeops {

// The bytes of the character that a text begins with; 0 if that is no UTF-8.
inline size_t character_size(const char* text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool too_long = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool unassigned = (first == 0xED && byte(1) > 0x9F) || (first == 0xF4 && byte(1) > 0x8F);
  return too_long || unassigned ? 0 : size;
}

// Copies as much of a text as there is room for. Python takes nothing but UTF-8: other bytes become
// `?`, and no character is cut in two.
inline void copy_text(const char* text, char* to, size_t room) {
  while (*text) {
    const size_t known = character_size(text), size = known ? known : 1;
    if (size >= room) break;
    for (size_t i = 0; i < size; ++i) *to++ = known ? text[i] : '?';
    text += size;
    room -= size;
  }
  *to = 0;
}

}  // namespace nativeops
