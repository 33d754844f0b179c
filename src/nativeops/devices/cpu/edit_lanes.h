// SPDX-License-Identifier: Apache-2.0
// Edit distances of many short pairs: one pair in every word of a vector.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/device.h"
#include "nativeops/devices/cpu/edit_codes.h"
#include "nativeops/devices/cpu/edit_step.h"
#include "nativeops/devices/cpu/unroll.h"

namespace nativeops::tuned::edits {

using simd::kWords;
using simd::Words;

// The rows of the table are those of the pattern's labels, its columns those of the text's.
template <class I>
struct Task {
  Sequence<I> pattern, text;
  int64_t item;
  int64_t limit = -1;  // distances above it need not be told apart; -1 is none
};

constexpr int64_t kShort = 256;   // labels of a pattern that is always computed in this way
constexpr int64_t kMiddle = 512;  // and of one that is where the pairs are many
constexpr int64_t kColumns = 32;  // whose matches are found ahead of the steps

// Words from `first` to before `end`.
struct Reach {
  int64_t first, end;

  bool has(int64_t word) const { return word >= first && word < end; }
};

// The pairs of one group, in codes. Patterns are read in whole words, whose excess rows nobody
// looks at: what they hold never goes upwards.
template <class Code>
struct Group {
  int count = 0;
  const Code *pattern[kWords], *text[kWords];
  int64_t words[kWords], rows[kWords], columns[kWords];
  int64_t limit = -1;

  // The words in which ways within the limit can pass some columns from `column` on.
  Reach reach(int64_t column) const {
    Reach all{INT64_MAX, 0};
    for (int k = 0; k < count; ++k) {
      const int64_t apart = columns[k] - rows[k];
      const int64_t above = (limit + apart) / 2, below = (limit - apart) / 2;
      all.first = std::min(all.first, std::max<int64_t>(0, column - above) / kBits);
      all.end = std::max(all.end, std::min(words[k], (column + kColumns + below) / kBits + 1));
    }
    return all;
  }
};

// equal[j, w, lane]: where the word w of each pattern matches column first + j of its text. Labels
// are compared 64 at a time: no table has to be made, whatever they are.
template <class Code>
void find_matches(const Group<Code>& group, int64_t first, int64_t words, const Reach& reach,
                  uint64_t* equal) {
  for (int k = 0; k < group.count; ++k) {
    const int64_t last = std::min(group.columns[k], first + kColumns);
    for (int64_t w = reach.first; w < std::min(reach.end, group.words[k]); ++w) {
      const Code* pattern = group.pattern[k] + w * kBits;
      uint64_t* to = equal + w * kWords + k;
      for (int64_t j = first; j < last; ++j, to += words * kWords) {
        *to = simd::matches(pattern, group.text[k][j]);
      }
    }
  }
}

template <int kHeight>
struct Lanes {
  Rows<Words> rows[kHeight];

  Lanes() {
    simd::unroll<kHeight>([&](auto w) { rows[w] = {simd::words(~uint64_t{0}), Words{}}; });
  }
  // One column further, whose matches these are, kStride from word to word of a pair. Above the
  // first row the distance grows by one, and so it does in words out of reach.
  template <int kStride = kWords, bool kAll = true>
  [[gnu::always_inline]] void step(const uint64_t* equal, const Reach& reach = {}) {
    Words stays{}, minus{};
    simd::unroll<kHeight>([&](auto w) __attribute__((always_inline)) {
      if (!kAll && !reach.has(w)) return;
      rows[w].step(simd::load_words(equal + w * kStride), stays, minus, stays, minus);
      if (w + 1 < kHeight) stays = stays >> 63, minus = minus >> 63;
    });
  }
  // Whether a distance within the limit may stand in one of these words after so many columns, a
  // bit for each pair: rows differ by one at most, so half of what both ends of a word exceed its
  // 64 rows by is less than any of them.
  unsigned hopeful(int64_t columns, int64_t limit, const Reach& reach) const {
    Words top = simd::words(static_cast<uint64_t>(columns));
    unsigned found = 0;
    simd::unroll<kHeight>([&](auto w) {
      const Words end = top + sum_down(rows[w].plus, rows[w].minus, simd::words(~uint64_t{0}));
      for (int k = 0; reach.has(w) && k < kWords; ++k) {
        const auto both = static_cast<int64_t>(top[k] + end[k]);
        found |= unsigned{both - kBits <= 2 * limit} << k;
      }
      top = end;
    });
    return found;
  }
  void store(uint64_t* plus, uint64_t* minus) const {
    simd::unroll<kHeight>([&](auto w) {
      simd::store_words(plus + w * kWords, rows[w].plus);
      simd::store_words(minus + w * kWords, rows[w].minus);
    });
  }
};

// done(lane, plus, minus) for every pair of the group after its last column, with the differences
// down that column; the words of a pair are kWords apart.
template <int kHeight, bool kAll, class Code, class F>
void run_columns(const Group<Code>& group, F&& done) {
  alignas(64) uint64_t equal[kColumns * kHeight * kWords];
  alignas(64) uint64_t plus[kHeight * kWords], minus[kHeight * kWords];
  Lanes<kHeight> lanes;
  unsigned open = (1u << group.count) - 1;
  Reach reach{0, kHeight};
  for (int64_t column = 0; open != 0;) {
    int64_t next = INT64_MAX;  // the column behind which the next pair ends
    for (int k = 0; k < group.count; ++k) {
      if (open >> k & 1) next = std::min(next, group.columns[k]);
    }
    for (; column < next; ++column) {
      const int64_t ahead = column % kColumns;
      if (ahead == 0) {
        if (!kAll && (lanes.hopeful(column, group.limit, reach) & open) == 0) {
          next = INT64_MAX;  // what is known is above the limit
          break;
        }
        if (!kAll) reach = group.reach(column);
        find_matches(group, column, kHeight, reach, equal);
      }
      lanes.template step<kWords, kAll>(equal + ahead * kHeight * kWords, reach);
    }
    lanes.store(plus, minus);
    for (int k = 0; k < group.count; ++k) {
      if ((open >> k & 1) == 0 || group.columns[k] > next) continue;
      done(k, plus + k, minus + k);
      open &= ~(1u << k);
    }
  }
}

template <int kHeight, class Code, class F>
void run_group(const Group<Code>& group, F&& done) {
  if (kHeight == 1 || group.limit < 0) return run_columns<kHeight, true>(group, done);
  run_columns<kHeight, false>(group, done);
}

// f(labels) with the patterns or the texts of some tasks; those that lie side by side as one, which
// takes fewer and longer loops.
template <class I, class F>
void for_joined(const Task<I>* tasks, int count, Sequence<I> Task<I>::* which, F&& f) {
  for (int k = 0; k < count;) {
    Sequence<I> joined = tasks[k++].*which;
    while (k < count && joined.stride == 1 && (tasks[k].*which).stride == 1 &&
           (tasks[k].*which).data == joined.data + joined.n) {
      joined.n += (tasks[k++].*which).n;
    }
    f(joined);
  }
}

// A group in codes of one width, in memory for all labels and a word more: the last pattern may end
// within a word, whose other rows are not those of any pattern. done(place of a task, plus, minus)
template <class Code, class I, class F>
void run_coded(const Task<I>* tasks, int count, I low, uint8_t* memory, F&& done) {
  Group<Code> group;
  group.count = count;
  group.limit = tasks[0].limit;
  Code* codes = reinterpret_cast<Code*>(memory);
  const Code* next = codes;
  const auto write = [&](const Sequence<I>& labels) {
    write_codes(labels, low, codes);
    codes += labels.n;
  };
  for_joined(tasks, count, &Task<I>::pattern, write);
  for_joined(tasks, count, &Task<I>::text, write);
  int64_t height = 1;
  for (int k = 0; k < count; ++k) {
    group.rows[k] = tasks[k].pattern.n;
    group.words[k] = words_for(group.rows[k]);
    height = std::max(height, group.words[k]);
    group.pattern[k] = next;
    next += tasks[k].pattern.n;
  }
  for (int k = 0; k < count; ++k) {
    group.text[k] = next;
    next += group.columns[k] = tasks[k].text.n;
  }
  simd::with_one_of<1, 2, 3, 4, 6, 8>(height, [&](auto most) { run_group<most>(group, done); });
}

// run(tasks, low, code), where `code` is of the narrowest type that has label - low of all tasks;
// labels of too wide a range are numbered.
template <class I, class F>
void with_codes(const Task<I>* tasks, int count, F&& run) {
  UsedBits<I> bits;
  const auto look = [&](const Sequence<I>& labels) { bits.add(labels); };
  for_joined(tasks, count, &Task<I>::pattern, look);
  for_joined(tasks, count, &Task<I>::text, look);
  I low = 0;
  uint64_t span = bits.all();
  if (span > UINT16_MAX) {  // maybe they lie close together all the same
    Range<I> range;
    for (int k = 0; k < count; ++k) range.add(tasks[k].pattern), range.add(tasks[k].text);
    low = range.low, span = range.span();
  }
  if (span <= UINT8_MAX) return run(tasks, low, uint8_t{});
  if (span <= UINT16_MAX) return run(tasks, low, uint16_t{});
  if (span <= UINT32_MAX) return run(tasks, low, uint32_t{});
  std::vector<int32_t> numbers[kWords];
  Task<int32_t> coded[kWords];
  for (int k = 0; k < count; ++k) {
    const auto &pattern = tasks[k].pattern, &text = tasks[k].text;
    numbers[k].resize(static_cast<size_t>(pattern.n + text.n));
    int32_t *const rows = numbers[k].data(), *const columns = rows + pattern.n;
    number_pair(pattern, text, rows, columns);
    coded[k] = {{rows, 1, pattern.n}, {columns, 1, text.n}, tasks[k].item, tasks[k].limit};
  }
  run(coded, int32_t{0}, uint32_t{});
}

// f(memory) with so many bytes, on the stack if they are few.
template <class F>
void with_memory(Device& dev, int64_t bytes, F&& f) {
  constexpr int64_t kSmall = 8192;
  alignas(64) uint8_t small[kSmall];
  const Workspace<uint8_t> large = dev.workspace<uint8_t>(bytes > kSmall ? bytes : 0);
  f(bytes > kSmall ? large.data() : small);
}

// done(place of a task, plus, minus) for at most kWords tasks with patterns of at most kMiddle
// labels.
template <class I, class F>
void run_lanes(Device& dev, const Task<I>* tasks, int count, F&& done) {
  with_codes(tasks, count, [&](const auto* coded, auto low, auto code) {
    int64_t bytes = kBits * sizeof code;
    for (int k = 0; k < count; ++k)
      bytes += (tasks[k].pattern.n + tasks[k].text.n) * static_cast<int64_t>(sizeof code);
    with_memory(dev, bytes, [&](uint8_t* memory) {
      run_coded<decltype(code)>(coded, count, low, memory, done);
    });
  });
}

}  // namespace nativeops::tuned::edits
