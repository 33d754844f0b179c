// SPDX-License-Identifier: Apache-2.0
// Writing long results that nobody reads soon, past the caches.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace nativeops::tuned {

// A result larger than this is written past the caches: a line that is written in a cache is read
// from memory first, which costs a third of the time of a copy (Zen4 EPYC with 1 MB of second and
// 32 MB of third cache, 2026-11).
constexpr int64_t kPastCaches = 8 << 20;

// A short row, copied where calling memcpy would take as long as the copy.
template <class T>
[[gnu::always_inline]] inline void copy_row(T* to, const T* from, int64_t count) {
  constexpr int64_t kBlock = 64;
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  if (bytes < kBlock || bytes > 32 * kBlock) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  auto block = [&](int64_t at) {
    const auto* source = reinterpret_cast<const char*>(from) + at;
    auto* target = reinterpret_cast<char*>(to) + at;
    for (int64_t half = 0; half < kBlock; half += kBlock / 2) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + half),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + half)));
    }
  };
  for (int64_t i = 0; i + kBlock <= bytes; i += kBlock) block(i);
  if (bytes % kBlock != 0) block(bytes - kBlock);
}

constexpr int64_t kLine = 64;  // bytes of a line of the caches

// Whole lines past the caches. Somebody must call _mm_sfence before others read them.
inline void stream_lines(void* to, const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLine / 2) {
    const auto* source = reinterpret_cast<const __m256i*>(static_cast<const char*>(from) + i);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(static_cast<char*>(to) + i),
                        _mm256_load_si256(source));
  }
}

// Whether rows of `count` numbers one after another are whole lines.
template <class T>
bool fills_lines(const T* first, int64_t count) {
  const auto bytes = static_cast<uintptr_t>(count) * sizeof(T);
  return (reinterpret_cast<uintptr_t>(first) | bytes) % kLine == 0;
}

// A row of `count` numbers: fill(place, i, n) writes those from i to i + n. Past the caches it must
// be whole lines, and somebody must call _mm_sfence before others read them.
template <class T, class F>
void write_row(T* to, int64_t count, bool past_caches, F fill) {
  if (!past_caches) return fill(to, int64_t{0}, count);
  constexpr int64_t kCount = 2048 / sizeof(T);
  alignas(kLine) T buffer[kCount];
  for (int64_t i = 0; i < count; i += kCount) {
    const int64_t n = std::min(kCount, count - i);
    fill(buffer, i, n);
    stream_lines(to + i, buffer, n * static_cast<int64_t>(sizeof(T)));
  }
}

// Numbers written one after another from `to` on. Past the caches they are collected in whole
// lines, and somebody must call _mm_sfence in the end: after every flush it would take half of the
// time.
template <class T>
class Stream {
 public:
  Stream(T* to, bool past_caches) : to_(to), past_(past_caches) {
    if (past_) first_ = used_ = reinterpret_cast<uintptr_t>(to) % kLine / sizeof(T);
  }
  ~Stream() {
    if (past_) flush();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The next `count` numbers: fill(place, i, n) writes those from i to i + n.
  template <class F>
  void put(int64_t count, F fill) {
    if (!past_) {
      fill(to_, int64_t{0}, count);
      to_ += count;
      return;
    }
    for (int64_t i = 0; i < count;) {
      const int64_t n = std::min(count - i, kCount - used_);
      fill(buffer_ + used_, i, n);
      i += n;
      used_ += n;
      if (used_ == kCount) flush();
    }
  }

  void zeros(int64_t count) {
    put(count, [](T* place, int64_t, int64_t n) { std::fill_n(place, n, T(0.0f)); });
  }

 private:
  static constexpr int64_t kCount = 2048 / sizeof(T), kInLine = kLine / sizeof(T);

  void flush() {
    int64_t i = first_;
    auto some = [&](int64_t end) {
      if (i < end) std::memcpy(to_ + (i - first_), buffer_ + i, (end - i) * sizeof(T));
      i = std::max(i, end);
    };
    if (i % kInLine != 0) some(std::min(used_, i - i % kInLine + kInLine));
    if (i + kInLine <= used_) {
      const int64_t whole = (used_ - i) / kInLine * kInLine;
      stream_lines(to_ + (i - first_), buffer_ + i, whole * static_cast<int64_t>(sizeof(T)));
      i += whole;
    }
    some(used_);
    to_ += used_ - first_;
    first_ = used_ = 0;
  }

  T* to_;
  const bool past_;
  int64_t first_ = 0, used_ = 0;
  alignas(kLine) T buffer_[kCount];
};

}  // namespace nativeops::tuned
