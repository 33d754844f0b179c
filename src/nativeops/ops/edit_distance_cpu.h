// SPDX-License-Identifier: Apache-2.0
// Edit distance on the CPU: 64 rows of a table in a word, 8 words in a vector. Declared in
// edit_distance.py.
#pragma once
#include "nativeops/devices/cpu/edit_all.h"
#include "nativeops/devices/cpu/edit_banded.h"
#include "nativeops/devices/cpu/edit_strip.h"
#include "nativeops/devices/cpu/edit_tables.h"
#include "nativeops/ops/edit_distance.h"

namespace nativeops::tuned {
namespace edits {

template <class I>
using Sets = nativeops::edits::Sets<I>;

// The distance is the same both ways. Short patterns have many excess rows, long ones few; and a
// word that has all rows of a short one goes through the longer text.
template <class I>
Task<I> oriented(const Sequence<I>& a, const Sequence<I>& b, int64_t item) {
  const bool short_pair = std::min(a.n, b.n) <= kShort;
  return (a.n <= b.n) == short_pair ? Task<I>{a, b, item} : Task<I>{b, a, item};
}

inline int32_t capped(int64_t distance, int64_t limit) {
  return static_cast<int32_t>(limit < 0 ? distance : std::min(distance, limit + 1));
}

// put(item, distance), each capped, for pairs that pair(item) has. If all are short and as large as
// each other, `alike` tells what one costs, and there is nothing to plan.
template <class I, class Pairs, class F>
void run_pairs(Device& dev, int64_t items, int64_t limit, int64_t alike, Pairs&& pair, F&& put) {
  const auto finish = [&](const Task<I>& task, const uint64_t* plus, const uint64_t* minus,
                          int64_t stride) {
    const int64_t down = sum_down(plus, minus, stride, task.pattern.n);
    put(task.item, capped(task.text.n + down, limit));
  };
  if (alike > 0) return run_groups<I>(dev, items, items * alike, pair, finish);
  std::vector<Task<I>> tasks, strips, banded;
  tasks.reserve(items);
  for (int64_t item = 0; item < items; ++item) {
    Task<I> task = pair(item);
    task.limit = limit;
    const int64_t n = task.pattern.n, m = task.text.n, apart = n < m ? m - n : n - m;
    if (limit >= 0 && apart > limit) {
      put(item, capped(apart, limit));
    } else if (limit >= 0 && limit <= kStripLimit && n > kBits) {
      strips.push_back(task);
    } else {
      const bool in_bands = limit >= 0 && n > (items < kWords ? kShort : kMiddle) &&
                            worth_bands({n, m, limit}, items > 1 ? 1 : dev.num_threads());
      (in_bands ? banded : tasks).push_back(task);
    }
  }
  run_tables(dev, tasks, finish);
  run_strips(dev, strips, [&](const Task<I>& task, int64_t distance) {
    put(task.item, capped(distance, limit));
  });
  dev.parallel(static_cast<int64_t>(banded.size()), [&](int64_t i) {
    const Task<I>& task = banded[i];
    put(task.item, capped(Banded<I>(task.pattern, task.text, limit).run(), limit));
  });
}

// What a pair costs if all are short and as large as each other, else 0.
template <class I>
int64_t cycles_of_each(const Sets<I>& of, int64_t limit) {
  const int64_t n = of.a.size(1), m = of.b.size(1), rows = std::min(n, m);
  const bool alike = !of.a_len && !of.b_len && limit < 0 && rows <= kShort;
  return alike ? cycles_of(rows, std::max(n, m)) : 0;
}

// put(item, distance) for the pairs of a batch.
template <class I, class F>
void run_batch(Device& dev, const Sets<I>& of, int64_t limit, F&& put) {
  of.check();
  auto pair = [&](int64_t i) {
    return oriented(sequence(at(of.a, i), of.n(i)), sequence(at(of.b, i), of.m(i)), i);
  };
  run_pairs<I>(dev, of.a.size(0), limit, cycles_of_each(of, limit), pair, put);
}

// All sequences of one set, and how many labels and words they have.
template <class I>
struct Set {
  std::vector<Sequence<I>> sequences;
  int64_t labels = 0, words = 0, longest = 0;

  void add(const Sequence<I>& s) {
    sequences.push_back(s);
    labels += s.n, words += words_for(s.n);
    longest = std::max(longest, s.n);
  }
};

}  // namespace edits

template <class I>
void edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len, In<int32_t, 1> b_len,
                   Out<int32_t, 1> out, int64_t max_distance) {
  edits::run_batch(dev, edits::Sets<I>{a, b, a_len, b_len}, max_distance,
                   [&](int64_t i, int32_t d) { out(i) = d; });
}

template <class I>
void normalized_edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len,
                              In<int32_t, 1> b_len, Out<float, 1> out, int64_t max_distance) {
  const edits::Sets<I> of{a, b, a_len, b_len};
  edits::run_batch(dev, of, max_distance,
                   [&](int64_t i, int32_t d) { out(i) = nativeops::edits::per_label(d, of.m(i)); });
}

// Short patterns that fill a vector are all in vectors at once; the set with fewer words for the
// other's labels has them. Long ones go pair by pair, and so do few ones.
template <class I>
void pairwise_edit_distance(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len,
                            In<int32_t, 1> b_len, Out<int32_t, 2> out, int64_t max_distance) {
  const edits::Sets<I> of{a, b, a_len, b_len};
  of.check();
  edits::Set<I> first, second;
  for (int64_t i = 0; i < a.size(0); ++i) first.add(edits::sequence(at(a, i), of.n(i)));
  for (int64_t j = 0; j < b.size(0); ++j) second.add(edits::sequence(at(b, j), of.m(j)));
  if (first.sequences.empty() || second.sequences.empty()) return;
  const bool rows = a.size(0) >= simd::kWords && first.longest <= edits::kShort;
  const bool columns = b.size(0) >= simd::kWords && second.longest <= edits::kShort;
  const int32_t most = edits::capped(INT32_MAX, max_distance);
  if (rows && (!columns || first.words * second.labels <= second.words * first.labels)) {
    edits::run_all(dev, first.sequences, second.sequences, most, out);
  } else if (columns) {
    edits::run_all(dev, second.sequences, first.sequences, most, transpose(out));
  } else {
    const int64_t alike = edits::cycles_of_each(of, max_distance);
    auto run = [&](const auto& one, const auto& others, View<int32_t, 2> to) {
      for (int64_t i = 0; i < to.size(0); ++i) {
        auto pair = [&](int64_t j) { return edits::oriented(one[i], others[j], j); };
        auto put = [&](int64_t j, int32_t d) { to(i, j) = d; };
        edits::run_pairs<I>(dev, to.size(1), max_distance, alike, pair, put);
      }
    };
    a.size(0) <= b.size(0) ? run(first.sequences, second.sequences, out)
                           : run(second.sequences, first.sequences, transpose(out));
  }
}

}  // namespace nativeops::tuned
