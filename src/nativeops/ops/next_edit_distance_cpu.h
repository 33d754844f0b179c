// SPDX-License-Identifier: Apache-2.0
// The next entry of an edit distance table for many candidates, tuned for the CPU: all get what a
// label gets that occurs nowhere, and then those that occur one less. Declared in
// next_edit_distance.py.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "nativeops/ops/next_edit_distance.h"

namespace nativeops::tuned {

// The labels that a candidate must be to lower the distance, and a bit for the last digits of each.
template <class I>
class Better {
 public:
  explicit Better(I* labels) : labels_(labels) {}

  void add(I label) {
    labels_[count_++] = label;
    uint64_t& word = bits_[word_of(label)];
    word |= uint64_t{1} << (static_cast<uint64_t>(label) % 64);
  }
  bool has(I label) const {
    const bool maybe = bits_[word_of(label)] >> (static_cast<uint64_t>(label) % 64) & 1;
    return maybe && std::find(labels_, labels_ + count_, label) != labels_ + count_;
  }
  const I* begin() const { return labels_; }
  const I* end() const { return labels_ + count_; }

 private:
  static constexpr uint64_t kWords = 64;
  static uint64_t word_of(I label) { return static_cast<uint64_t>(label) / 64 % kWords; }

  I* labels_;
  int64_t count_ = 0;
  uint64_t bits_[kWords] = {};
};

// Whether the candidates are the labels a(0), a(0) + 1, ..: mostly these are all that there are.
template <class I>
bool are_consecutive(const In<I, 1>& a) {
  using U = std::make_unsigned_t<I>;
  if (a.stride(0) != 1 && a.size(0) > 1) return false;
  U other = 0;
  for (int64_t v = 0; v < a.size(0); ++v) {
    other |=
        static_cast<U>(static_cast<U>(a.data[v]) - static_cast<U>(a.data[0])) ^ static_cast<U>(v);
  }
  return other == 0;
}

// The distances of one sequence: `still` where no label is added, `miss` with one that occurs
// nowhere, and one less with those in `better`.
template <class I>
void write_distances(const In<I, 1>& a, int64_t blank, int32_t still, int32_t miss,
                     const Better<I>& better, const Out<int32_t, 1>& out) {
  using U = std::make_unsigned_t<I>;
  const int64_t n = a.size(0);
  const bool has_blank = blank >= 0 && blank <= std::numeric_limits<I>::max();
  if (!are_consecutive(a)) {
    for (int64_t v = 0; v < n; ++v) {
      const bool is_blank = has_blank && a(v) == static_cast<I>(blank);
      out(v) = is_blank ? still : miss - better.has(a(v));
    }
    return;
  }
  const auto set = [&](I label, int32_t value) {
    const U v = static_cast<U>(static_cast<U>(label) - static_cast<U>(a.data[0]));
    if (v < static_cast<uint64_t>(n)) out(static_cast<int64_t>(v)) = value;
  };
  for (int64_t v = 0; v < n; ++v) out(v) = miss;
  if (n == 0) return;
  for (const I label : better) set(label, miss - 1);
  if (has_blank) set(static_cast<I>(blank), still);
}

template <class I>
void next_edit_distance_reduce(Device& dev, In<int32_t, 2> last_row, In<I, 2> a, In<int32_t, 1> a_n,
                               In<int32_t, 1> a_ended, In<I, 2> b, In<int32_t, 1> b_len,
                               Out<int32_t, 2> out, bool optimal_completion, int64_t a_blank_idx) {
  edits::check_b_len(b_len, b.size(1));
  const int64_t tb = b.size(1), n = a.size(1), batch = b.size(0);
  const int64_t some = std::max<int64_t>(1, kGrain / (4 * tb + n + 1));
  const auto memory = dev.template workspace<I>(batch * tb);
  dev.parallel(ceil_div(batch, some), [&](int64_t task) {
    for (int64_t item = task * some; item < std::min(batch, (task + 1) * some); ++item) {
      const int64_t m = length_of(b_len, item, tb);
      const auto rest = [=](int64_t j) { return optimal_completion ? 0 : m - j; };
      const auto last = [=](int64_t j) { return static_cast<int64_t>(last_row(item, j)); };
      int64_t least = last(0), missed = static_cast<int64_t>(a_n(item)) + 1 + rest(0);
      for (int64_t j = 1; j <= m; ++j) {
        least = std::min(least, last(j));
        missed = std::min(missed, std::min(last(j), last(j - 1)) + 1 + rest(j));
      }
      const auto still = static_cast<int32_t>(optimal_completion ? least : last(m));
      const Out<int32_t, 1> row = at(out, item);
      if (a_ended(item) != 0) {
        for (int64_t v = 0; v < n; ++v) row(v) = still;
        continue;
      }
      Better<I> better(memory.data() + item * tb);
      for (int64_t j = 1; j <= m; ++j) {
        if (last(j - 1) + rest(j) < missed) better.add(b(item, j - 1));
      }
      write_distances(at(a, item), a_blank_idx, still, static_cast<int32_t>(missed), better, row);
    }
  });
}

}  // namespace nativeops::tuned
