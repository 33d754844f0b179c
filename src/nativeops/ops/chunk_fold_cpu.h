// SPDX-License-Identifier: Apache-2.0
// Chunks of narrow frames put together, tuned for the CPU. Included by chunk_cpu.h.
#pragma once
#include "nativeops/ops/chunk_narrow_cpu.h"

namespace nativeops::tuned {

// Sums are quicker so for frames of at most so many bytes; with a mask, where each frame asks, and
// for halves, which are converted few at a time, only for shorter ones, and not for single chunks
// (Zen 5 EPYC, 2026-11).
template <class T>
int64_t narrow_sum(const Cut& cut, bool masked) {
  if (!masked) return 48;
  return cut.n < 4 ? 0 : sizeof(T) == 2 ? 8 : 32;
}

struct EveryFrame {
  bool operator()(int64_t, int64_t) const { return true; }
};

// The frames t = step·i + u of one u and sequence are done together: what one chunk row adds to
// them lies one beside the other, however narrow a frame is.
template <class T>
struct FrameSums {
  using A = Accum<T>;
  static constexpr int64_t kNumbers = 512;
  static constexpr A kNothing = static_cast<A>(-0.0);

  const Cut& cut;
  View<const T, 4> parts;
  View<const bool, 3> taken;  // which frames of chunks take part; all if it has no memory
  alignas(64) A sum[kNumbers];
  int32_t count[kNumbers];

  FrameSums(const Cut& cut, View<const T, 4> parts, View<const bool, 3> taken)
      : cut(cut),
        parts(parts),
        taken(taken),
        whole_(cut.size / cut.step),
        rest_(cut.size % cut.step) {}

  // The frames first .. end - 1. Nothing is -0, to which a number is added as it is.
  void add_up(int64_t u0, int64_t b, int64_t first, int64_t end) {
    const int64_t width = parts.size(3), streams = streams_of(u0);
    std::fill_n(sum, (end - first) * width, kNothing);
    if (taken) {
      std::fill_n(count, end - first, 0);
    } else if (streams != streams_ || first != first_ || end != end_) {
      for (int64_t i = first; i < end; ++i) {
        const int64_t all = std::min(cut.n, i + 1) - std::max<int64_t>(0, i - streams + 1);
        count[i - first] = static_cast<int32_t>(std::max<int64_t>(all, 0));
      }
      streams_ = streams, first_ = first, end_ = end;
    }
    const int64_t last = std::max<int64_t>(0, first - cut.n + 1);
    for (int64_t j = std::min(streams, end) - 1; j >= last; --j) {
      const int64_t low = std::max(first, j), n = std::min(end, j + cut.n) - low;
      add_row(u0 + j * cut.step, b, low - j, n, low - first);
    }
  }

 private:
  const int64_t whole_, rest_;                  // of the size in steps
  int64_t streams_ = -1, first_ = 0, end_ = 0;  // of the counts, where they depend on nothing else

  // How many frames u0, u0 + step, .. a chunk has.
  int64_t streams_of(int64_t u0) const { return whole_ + (u0 < rest_); }

  // n frames of row u of the chunks of sequence b, from chunk k on, to the sums from `at` on.
  void add_row(int64_t u, int64_t b, int64_t k, int64_t n, int64_t at) {
    const T* __restrict from = &parts(u, b, k, 0);
    A* __restrict to = sum + at * parts.size(3);
    if (!taken) {
      for (int64_t j = 0; j < n * parts.size(3); ++j) to[j] += A(from[j]);
      return;
    }
    alignas(64) bool here[kNumbers];
    for (int64_t i = 0; i < n; ++i) here[i] = taken(u, b, k + i);
    for (int64_t i = 0; i < n; ++i) count[at + i] += here[i];
    with_constant(parts.size(3), [&](auto width) __attribute__((always_inline)) {
      for (int64_t i = 0; i < n; ++i) {
        if (is_variable(width) && !here[i]) continue;
        for (int64_t j = 0; j < width; ++j) {
          const A number = A(from[i * width + j]);  // read in any case: without a jump
          to[i * width + j] += is_variable(width) || here[i] ? number : kNothing;
        }
      }
    });
  }
};

// Frames of several rows, before they are moved to where they belong: those of one row lie far
// from each other there, those of several rows side by side.
template <class T>
struct FrameTile {
  static constexpr int64_t kNumbers = FrameSums<T>::kNumbers, kRows = 32 / sizeof(T);

  alignas(64) T x[kRows][kNumbers], factors[kRows][kNumbers];
  bool mask[kRows][kNumbers];
};

// The results of a fold; mask and factors have memory if means are asked for.
template <class T>
struct Folded {
  Out<T, 3> x;
  Out<bool, 2> mask;
  Out<T, 2> factors;
};

// A row of a tile from the sums and counts of its frames.
template <bool kMean, class T, class Valid>
void finish_row(const FrameSums<T>& sums, int64_t frames, int64_t d, Valid valid,
                FrameTile<T>& tile, int64_t row) {
  using A = Accum<T>;
  with_constant(d, [&](auto width) __attribute__((always_inline)) {
    T* __restrict to = tile.x[row];
    for (int64_t i = 0; i < frames; ++i) {
      const int32_t c = sums.count[i];
      const bool here = c > 0 && valid(i);
      const A divisor = kMean ? A(std::max(c, 1)) : A(1);
      for (int64_t j = 0; j < width; ++j)
        to[i * width + j] = here ? T(sums.sum[i * width + j] / divisor) : T(0.0f);
    }
  });
  for (int64_t i = 0; kMean && i < frames; ++i) {
    tile.mask[row][i] = sums.count[i] > 0;
    tile.factors[row][i] = T(A(1) / A(std::max(sums.count[i], 1)));
  }
}

// f(low, end, i, j) for the frames i .. j - 1 of the rows low .. end - 1: blocks of frames for as
// many rows as lie side by side elsewhere, spread over the pool. Long rows are cut rather than lent
// to several threads, which would write to the same lines.
template <class F>
void for_tiles(Device& dev, int64_t rows, int64_t frames, int64_t bytes, int64_t together,
               int64_t block, F f) {
  const int64_t each = std::max<int64_t>(1, bytes / std::max<int64_t>(1, rows));
  const int64_t some = std::max<int64_t>(1, kPartBytes / (each * together)) * together;
  const int64_t pieces = ceil_div(each * std::min(some, rows), kPartBytes);
  const int64_t length =
      round_up(std::max<int64_t>(1, ceil_div(frames, std::max<int64_t>(1, pieces))), block);
  const int64_t groups = ceil_div(rows, some);
  dev.parallel(groups * ceil_div(frames, length), [&](int64_t task) {
    const int64_t low = task % groups * some, i = task / groups * length;
    f(low, std::min(rows, low + some), i, std::min(frames, i + length));
  });
}

// x[t, b] = mean or sum of all chunks' rows for that frame that are taken; 0 unless valid(t, b).
template <bool kMean, class T, class Valid>
[[gnu::noinline]] void fold_narrow(Device& dev, const Cut& cut, In<T, 3> chunks,
                                   In<bool, 2> chunk_mask, const Folded<T>& out, Valid valid) {
  using Tile = FrameTile<T>;
  const Out<T, 3>& x = out.x;
  const int64_t batch = x.size(1), width = x.size(2), rows = std::min(cut.step, cut.time) * batch;
  const int64_t most = ceil_div(cut.time, cut.step);  // frames of one row
  const int64_t whole = cut.time - (most - 1) * cut.step, block = Tile::kNumbers / width;
  const bool merged = merges(x) && (!kMean || (merges(out.mask) && merges(out.factors)));
  const auto taken = chunk_mask ? cut.by_sequence(chunk_mask) : View<const bool, 3>{};
  const auto parts = cut.by_sequence(chunks);
  const auto fold = [&](int64_t low, int64_t end, int64_t first, int64_t last) {
    FrameSums<T> sums(cut, parts, taken);
    Tile tile;
    const auto fill_tile = [&](int64_t u, int64_t b, int64_t count, int64_t i0, int64_t i1) {
      for (int64_t r = 0, u0 = u, b0 = b; r < count; ++r) {
        sums.add_up(u0, b0, i0, i1);
        finish_row<kMean>(
            sums, i1 - i0, width, [&](int64_t i) { return valid(cut.step * (i0 + i) + u0, b0); },
            tile, r);
        if (++b0 == batch) b0 = 0, ++u0;
      }
      const int64_t t = cut.step * i0 + u, n = i1 - i0;
      move_items<T>(count, n, width, {tile.x[0], Tile::kNumbers, width},
                    {&x(t, b, 0), row_stride(x), cut.step * x.stride(0)});
      if constexpr (kMean) {
        const auto& [_, mask, factors] = out;
        move_items<bool>(count, n, 1, {tile.mask[0], Tile::kNumbers, 1},
                         {&mask(t, b), row_stride(mask), cut.step * mask.stride(0)});
        move_items<T>(count, n, 1, {tile.factors[0], Tile::kNumbers, 1},
                      {&factors(t, b), row_stride(factors), cut.step * factors.stride(0)});
      }
    };
    for_runs(low, end, batch, merged, whole, [&](int64_t u, int64_t b, int64_t count) {
      const int64_t frames = std::min(last, u < whole ? most : most - 1);
      for (int64_t r = 0; r < count; r += Tile::kRows) {
        const int64_t row = u * batch + b + r, some = std::min(count - r, Tile::kRows);
        for (int64_t i = first; i < frames; i += block)
          fill_tile(row / batch, row % batch, some, i, std::min(frames, i + block));
      }
    });
  };
  for_tiles(dev, rows, most, chunks.count() * sizeof(T), Tile::kRows, block, fold);
}

}  // namespace nativeops::tuned
