// SPDX-License-Identifier: Apache-2.0
// Edit alignments: the table, and the way back through it. Declared in edit_alignment.py.
#pragma once
#include "nativeops/devices/parts.h"
#include "nativeops/ops/edit_distance.h"

namespace nativeops {
namespace edits {

enum Step : uint8_t { kMatch, kSubstitution, kInsertion, kDeletion, kNoStep = 255 };

// The way back from the end of a table to its beginning, step by step, and what is wanted of it.
template <class I>
struct Way {
  Pair<I> pair;
  Out<uint8_t, 1> steps;  // written in the order in which it is walked
  int64_t i, j, many;
  int32_t count[4];

  KERNEL void take(int step) {
    if (steps) steps(many) = static_cast<uint8_t>(step);
    ++many;
    ++count[step];
    i -= step != kDeletion;
    j -= step != kInsertion;
  }
  // D[i, j], and whether D[i, j-1] is less by one; both are asked where there is such an entry.
  template <class Entry, class Below>
  KERNEL void back(Entry entry, Below below) {
    if (i > 0 && j > 0) {
      const int differ = pair.a(i - 1) != pair.b(j - 1);
      if (entry(i - 1, j - 1) + differ == entry(i, j)) return take(differ);
    }
    take(j > 0 && (i == 0 || below(i, j)) ? kDeletion : kInsertion);
  }
  // Afterwards one thread has all the rest to say.
  KERNEL void finish(Out<int32_t, 1> n_steps, Out<int32_t, 2> counts, int64_t item) const {
    if (n_steps) n_steps(item) = static_cast<int32_t>(many);
    for (int kind = 0; kind < 4; ++kind) {
      if (counts) counts(item, kind) = count[kind];
    }
    if (!steps) return;
    for (int64_t k = 0; k < many / 2; ++k) {
      const uint8_t step = steps(k);
      steps(k) = steps(many - 1 - k);
      steps(many - 1 - k) = step;
    }
    for (int64_t k = many; k < steps.size(0); ++k) steps(k) = kNoStep;
  }
};
template <class I>
HOST_DEVICE Way<I> way_of(const Pair<I>& pair, Out<uint8_t, 2> steps, int64_t item) {
  Out<uint8_t, 1> own{nullptr, {0}, {0}};
  if (steps) own = at(steps, item);
  return {pair, own, pair.n, pair.m, 0, {}};
}

// How many anti-diagonals are kept at once: as many as there are parts of so many, but two at
// least.
HOST_DEVICE inline int64_t part_size(int64_t diagonals) {
  return max2<int64_t>(2, root_of(diagonals));
}

}  // namespace edits

// The two anti-diagonals before each part are kept on the way there, and on the way back one part
// after the other is computed again as a whole.
template <class I>
void edit_alignment(Device& dev, In<I, 2> a, In<I, 2> b, In<int32_t, 1> a_len, In<int32_t, 1> b_len,
                    Out<uint8_t, 2> steps, Out<int32_t, 1> n_steps, Out<int32_t, 2> counts) {
  const edits::Sets<I> of{a, b, a_len, b_len};
  of.check();
  const int64_t width = a.size(1) + 1, size = edits::part_size(a.size(1) + b.size(1) + 1);
  const int64_t parts = (a.size(1) + b.size(1)) / size + 1, rows = 2 * parts + size + 2;
  for_each_item<int32_t>(
      dev, a.size(0), rows * width, [=] KERNEL(Team team, int64_t item, View<int32_t, 1> memory) {
        const edits::Pair<I> pair = edits::pair_of(of, item, item);
        const View<int32_t, 2> kept = dense(&memory(0), 2 * parts, width);
        const View<int32_t, 2> part = dense(&memory(2 * parts * width), size + 2, width);
        const int64_t all = pair.n + pair.m, last = all / size;
        // Anti-diagonal first - 2 + k of a part is its row k; `first` is its own first.
        const auto compute = [=](int64_t first, int64_t end) {
          for (int64_t s = first; s < end; ++s) {
            const int64_t k = s - first;
            edits::diagonal(team, pair, s, all, at(part, k), at(part, k + 1), at(part, k + 2),
                            [](int64_t, int64_t, int32_t) {});
          }
        };
        for (int64_t p = 0; p < last; ++p) {
          compute(p * size, (p + 1) * size);
          team.each(0, 2 * width, [=](int64_t c) {
            const int64_t row = c / width, i = c % width;
            const int32_t d = part(size + row, i);
            part(row, i) = d;
            kept(2 * (p + 1) + row, i) = d;
          });
          team.sync();
        }
        edits::Way<I> way = edits::way_of(pair, steps, item);
        for (int64_t p = last; p >= 0; --p) {
          const int64_t first = p * size;
          if (p < last && p > 0) {
            team.each(0, 2 * width, [=](int64_t c) {
              part(c / width, c % width) = kept(2 * p + c / width, c % width);
            });
            team.sync();
          }
          compute(first, min2(all + 1, first + size));
          const auto entry = [=](int64_t i, int64_t j) { return part(i + j - first + 2, i); };
          while (team.rank() == 0 && way.i + way.j > 0 && way.i + way.j >= first) {
            way.back(entry, [=](int64_t i, int64_t j) { return entry(i, j - 1) < entry(i, j); });
          }
          team.sync();
        }
        if (team.rank() == 0) way.finish(n_steps, counts, item);
      });
}

}  // namespace nativeops
