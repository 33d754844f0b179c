// SPDX-License-Identifier: Apache-2.0
// Edit distances up to a small limit, of pairs of any length: the cells of a column that a way
// within the limit can pass fit into one word, which moves down by one row with each column (Hyyrö
// 2003, A bit-vector algorithm for computing Levenshtein and Damerau edit distances). One pair in
// every word of a vector.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/edit_tables.h"

namespace nativeops::tuned::edits {

constexpr int64_t kStripLimit = kBits - 1;  // of which a strip has one diagonal more

// The pairs of one group, of which none has more labels than the other by more than the limit.
// Patterns are in codes, as far as they are needed, between codes that no way passes.
template <class I, class Code>
class Strips {
 public:
  static constexpr int64_t kPad = kBits;

  static int64_t codes_of(const Task<I>* tasks, int count) {
    int64_t codes = 0;
    for (int k = 0; k < count; ++k) codes += tasks[k].pattern.n + 2 * kPad;
    return codes;
  }

  Strips(const Task<I>* tasks, int count, I low, Code* memory) : count_(count), low_(low) {
    for (int k = 0; k < count; ++k) {
      Pair& pair = pair_[k];
      const int64_t n = tasks[k].pattern.n, m = tasks[k].text.n, longer = n - m;
      limit_ = tasks[k].limit;
      pair = {tasks[k].pattern,      tasks[k].text,
              memory + kPad,         0,
              (limit_ - longer) / 2, std::max<int64_t>(longer, 0)};
      std::fill_n(memory, kPad, Code{});
      std::fill_n(memory + kPad + n, kPad, Code{});
      memory += n + 2 * kPad;
      plus_[k] = ~uint64_t{0} << pair.above;
      last_[k] = static_cast<uint64_t>(pair.above + longer);
    }
  }

  // done(k, distance) for every pair, above the limit for one that is.
  template <class F>
  void run(F&& done) {
    alignas(64) uint64_t equal[kColumns * kWords] = {};
    unsigned open = (1u << count_) - 1;
    for (int64_t column = 0;;) {
      int64_t stop = (column / kColumns + 1) * kColumns;
      for (int k = 0; k < count_; ++k) {
        if ((open >> k & 1) == 0) continue;
        const int64_t columns = pair_[k].text.n, so_far = distance(k, column);
        if (column < columns && so_far <= limit_) {
          stop = std::min(stop, columns);
        } else {
          done(k, so_far);
          open &= ~(1u << k);
        }
      }
      if (open == 0) return;
      if (column % kColumns == 0) find_matches(open, column, equal);
      for (; column < stop; ++column) step(simd::load_words(equal + column % kColumns * kWords));
    }
  }

 private:
  struct Pair {
    Sequence<I> pattern, text;
    Code* codes;
    int64_t coded;  // labels of the pattern
    int64_t above;  // diagonals of the strip above that of the first cell
    int64_t first;  // the distance where the last cell's diagonal begins
  };

  // On the last cell's diagonal, where it never falls.
  int64_t distance(int k, int64_t column) const {
    return pair_[k].first + column - static_cast<int64_t>(stayed_[k]);
  }
  Code code_of(I label) const {
    using U = std::make_unsigned_t<I>;
    return static_cast<Code>(static_cast<U>(label) - static_cast<U>(low_));
  }

  // equal[j, k]: which rows of the strip match column first + j of a text. Rows above the first
  // label match nothing; what rows below the last one hold never goes upwards.
  void find_matches(unsigned open, int64_t first, uint64_t* equal) {
    for (int k = 0; k < count_; ++k, ++equal) {
      if ((open >> k & 1) == 0) continue;
      Pair& pair = pair_[k];
      const int64_t end = std::min(pair.text.n, first + kColumns);
      const int64_t needed = std::min(pair.pattern.n, end - pair.above + kBits);
      if (needed > pair.coded) {
        const I* labels = pair.pattern.data + pair.coded * pair.pattern.stride;
        write_codes<Code, I>({labels, pair.pattern.stride, needed - pair.coded}, low_,
                             pair.codes + pair.coded);
        pair.coded = needed;
      }
      for (int64_t j = first; j < end; ++j) {
        equal[(j - first) * kWords] =
            simd::matches(pair.codes + j - pair.above, code_of(pair.text[j]));
      }
      for (int64_t j = first; j < std::min(end, pair.above); ++j)
        equal[(j - first) * kWords] &= ~uint64_t{0} << (pair.above - j);
    }
  }

  // One column further and one row down; `Rows::step` says what the words are.
  [[gnu::always_inline]] void step(Words equal) {
    const Words zero = simd::xor_or((equal & plus_) + plus_, plus_, equal) | minus_;
    const Words stays = simd::or_and_not(zero, plus_, minus_), below = zero >> 1;
    plus_ = simd::and_not_or(stays, below, plus_ & zero);
    minus_ = below & ~stays;
    stayed_ += zero >> last_ & simd::words(1);
  }

  int count_;
  I low_;
  int64_t limit_ = 0;
  Pair pair_[kWords];
  Words plus_{}, minus_{}, stayed_{};  // stayed: how often the last diagonal's distance has
  Words last_{};                       // that diagonal's bit
};

// put(task, distance) for tasks with limits of at most kStripLimit.
template <class I, class F>
void run_strips(Device& dev, std::vector<Task<I>>& tasks, F&& put) {
  order_by_columns(tasks);
  int64_t cycles = 0;
  for (const auto& task : tasks) cycles += 200 + 5 * task.text.n;
  const auto count = static_cast<int64_t>(tasks.size());
  const int64_t most =
      std::max(ceil_div(count, kWords), std::min<int64_t>(count, dev.num_threads()));
  const int64_t parts = std::clamp<int64_t>(cycles / 12000, std::min<int64_t>(1, count), most);
  dev.parallel(parts, [&](int64_t part) {
    const int64_t end = (part + 1) * count / parts;
    for (int64_t i = part * count / parts; i < end; i += kWords) {
      const int many = static_cast<int>(std::min<int64_t>(kWords, end - i));
      with_codes(&tasks[i], many, [&](const auto* coded, auto low, auto code) {
        using Of = Strips<decltype(low), decltype(code)>;
        const int64_t bytes = Of::codes_of(coded, many) * static_cast<int64_t>(sizeof code);
        with_memory(dev, bytes, [&](uint8_t* memory) {
          Of strips(coded, many, low, reinterpret_cast<decltype(code)*>(memory));
          strips.run([&](int k, int64_t distance) { put(tasks[i + k], distance); });
        });
      });
    }
  });
}

}  // namespace nativeops::tuned::edits
