// SPDX-License-Identifier: Apache-2.0
// What the recurrent layers on the CPU share: rows between two steps, and weights of single units.
#pragma once
#include <cstdint>
#include <type_traits>

#include "nativeops/devices/cpu/halves.h"
#include "nativeops/devices/cpu/panels.h"
#include "nativeops/devices/recurrent.h"

namespace nativeops::tuned {

// What GateProducts asks of a cell.
template <int kCount>
struct Gates {
  static constexpr int kGates = kCount;
};

// A row of numbers for each sequence, which weights are multiplied with: as bf16, also in words.
template <class T, class Of>
class Rows {
  using A = Accum<T>;
  using V = simd::Vec<A>;
  static constexpr int n = simd::kLanes<A>;
  static constexpr bool kWords = !std::is_same_v<Of, Numbers>;

 public:
  Rows(Device& dev, int64_t rows, int64_t width)
      : width_(width),
        stride_(round_up(width, n) + n),  // not a power of two, which would crowd the caches' sets
        row_words_(Of::words(stride_ - n)),
        word_stride_(row_words_ + n),
        numbers_(dev.workspace<A>(rows * stride_)),
        words_(dev.workspace<A>(kWords ? rows * word_stride_ : 0)) {}

  A* numbers(int64_t r) const { return numbers_.data() + r * stride_; }
  // As the weights are multiplied with it.
  A* words(int64_t r) const { return kWords ? words_.data() + r * word_stride_ : numbers(r); }
  void set(int64_t r, int64_t unit, V value) const {
    simd::store(numbers(r) + unit, value);
    if constexpr (Of::kAreTiles) {
      Of::write(words(r), row_words_, unit, value, width_ - unit);
    } else if constexpr (kWords) {
      simd::store_halves(reinterpret_cast<T*>(words(r)) + unit, simd::to_bf16(value));
    }
  }
  // A given state, or zeros.
  void fill(int64_t r, In<T, 2> from, int64_t b) const {
    for (int64_t j = 0; j < width_; j += n) {
      alignas(64) A lane[n] = {};
      for (int64_t i = 0; from && i < n && j + i < width_; ++i) lane[i] = A(from(b, j + i));
      set(r, j, simd::load(lane));
    }
  }

 private:
  int64_t width_, stride_, row_words_, word_stride_;
  Workspace<A> numbers_, words_;
};

// Rows that other threads have just written, if they fit in the first cache beside weights: fetched
// at once, since their lines would otherwise come two at a time, as a product gets to them. Between
// processors without a common cache each takes 280 ns (Zen4 EPYC, 2026-11). Inlined by force: g++
// takes a function that only fetches for one without effect, and leaves out the calls.
template <class A>
[[gnu::always_inline]] inline void fetch_rows(const A* const* rows, int64_t count, int64_t words) {
  constexpr int64_t kLine = 64 / sizeof(A), kMost = 4096;
  if (count * words > kMost) return;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = 0; i < words; i += kLine) __builtin_prefetch(rows[r] + i);
  }
}

// A vector of each of two rows. The formula of a cell for both is the one for a vector.
template <class A>
struct Both {
  simd::Vec<A> first, second;

  friend Both operator+(Both a, Both b) { return {a.first + b.first, a.second + b.second}; }
  friend Both operator-(Both a, Both b) { return {a.first - b.first, a.second - b.second}; }
  friend Both operator*(Both a, Both b) { return {a.first * b.first, a.second * b.second}; }
  friend Both operator*(simd::Vec<A> a, Both b) { return {a * b.first, a * b.second}; }
  friend Both sigmoid(Both a) { return {sigmoid(a.first), sigmoid(a.second)}; }
  friend Both tanh(Both a) { return {tanh(a.first), tanh(a.second)}; }
  friend Both relu(Both a) { return {relu(a.first), relu(a.second)}; }
};

// How many vectors, of different rows or units, are computed side by side: from(f) has f(i).
struct One {
  static constexpr int kCount = 1;
  template <class A>
  using Of = simd::Vec<A>;

  template <class A, class F>
  static Of<A> from(F f) {
    return f(0);
  }
  template <class V>
  static V of(V rows, int) {
    return rows;
  }
  template <class F>
  static void each(F f) {
    f(std::integral_constant<int, 0>());
  }
};
struct Two {
  static constexpr int kCount = 2;
  template <class A>
  using Of = Both<A>;

  template <class A, class F>
  static Of<A> from(F f) {
    return {f(0), f(1)};
  }
  template <class A>
  static simd::Vec<A> of(Both<A> rows, int i) {
    return i == 0 ? rows.first : rows.second;
  }
  template <class F>
  static void each(F f) {
    f(std::integral_constant<int, 0>());
    f(std::integral_constant<int, 1>());
  }
};

// The weights of single units, of which a layer may have none, at one place or at two (`Place` of
// recurrent.h) side by side.
template <class T, class Places>
struct OwnVectors {
  const In<T, 1>& all;
  int64_t units;
  int64_t unit[2];

  explicit operator bool() const { return bool(all); }
  typename Places::template Of<Accum<T>> operator[](int q) const {
    return Places::template from<Accum<T>>(
        [&](int i) { return load_along(all, &all(q * units + unit[i]), units - unit[i]); });
  }
};

}  // namespace nativeops::tuned
