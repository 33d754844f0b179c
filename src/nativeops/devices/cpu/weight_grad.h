// SPDX-License-Identifier: Apache-2.0
// The gradient of a weight matrix: the product of the gates' gradients with what the weights were
// multiplied with, summed over all frames of all sequences. Both are packed for a block of frames,
// then each thread computes its part of the result.
#pragma once
#include <algorithm>
#include <cstdint>

#include "nativeops/devices/cpu/panels.h"
#include "nativeops/devices/cpu/phases.h"
#if NATIVEOPS_LEVEL >= 3
#include "nativeops/devices/cpu/tile_products.h"
#endif

namespace nativeops::tuned {

// Of: what the product is made of.
template <class T, class Of = Numbers>
class WeightGrad {
  using A = Accum<T>;
  static constexpr bool kPairs = !std::is_same_v<Of, Numbers> && !Of::kAreTiles;
  using Part = std::conditional_t<kPairs, T, A>;
  static constexpr int n = simd::kLanes<A>;
  static constexpr int64_t kFrames = 768, kRows = Of::kAreTiles ? 256 : 240;

 public:
  // words: the gates' gradients, for each frame a row of `parts` with `gate` words each.
  WeightGrad(Device& dev, const A* words, int parts, int64_t gate, int64_t frames)
      : dev_(dev),
        parts_(reinterpret_cast<const Part*>(words)),
        gate_(gate),
        room_(Of::room(gate)),
        row_size_(parts * (kPairs ? room_ : gate)),
        rows_of_all_(parts * room_),
        frames_(frames),
        depth_(Of::words(std::min(frames, kFrames))),
        stride_(round_up(depth_, n) + n),
        rows_(dev.workspace<A>(rows_of_all_ * stride_)) {}

  // to[gate·units + u][c] = Σ_frame parts[frame][part[gate]·units + u] · right[frame][c], where
  // copy(frame, first, count, to) gives columns [first, first + count) of right[frame].
  template <class Copy>
  void run(Out<T, 2> to, const int* part, int64_t units, Copy&& copy) {
    const Split split(ceil_div(to.size(1), n), kWidest, dev_.num_threads());
    const int64_t chunks = ceil_div(to.size(0), kRows), items = split.panels * chunks;
    auto right = dev_.template workspace<A>(split.vectors * n * depth_);
    const bool direct = std::is_same_v<A, T> && to.stride(1) == 1;
    auto memory = dev_.template workspace<A>(direct ? 0 : to.count());
    const View<A, 2> result = direct ? View<A, 2>{reinterpret_cast<A*>(to.data),
                                                  {to.size(0), to.size(1)},
                                                  {to.stride(0), to.stride(1)}}
                                     : dense(memory.data(), to.size(0), to.size(1));
    const int64_t blocks = std::max<int64_t>(1, ceil_div(frames_, kFrames));
    run_phases<typename Of::Thread>(
        dev_, 2 * blocks, items, frames_ * split.vectors * to.size(0),
        [&](int64_t, int64_t phase, int64_t item) {
          const int64_t start = phase / 2 * kFrames, count = std::min(kFrames, frames_ - start);
          if (phase % 2 == 1)
            return multiply_part(split, chunks, item, part, units, count, start == 0, right.data(),
                                 result);
          pack_left(item, items, start, count);
          if (item < split.panels)
            pack_right(split, item, start, count, to.size(1), right.data(), copy);
        });
    if (direct) return;
    dev_.parallel(to.size(0), [&](int64_t i) {
      for (int64_t j = 0; j < to.size(1); j += n) {
        const int64_t left = to.size(1) - j;
        store_along(to, &to(i, j), simd::load(&result(i, j), left), left);
      }
    });
  }

 private:
  // Transposed: a row for each gradient, with its frames side by side.
  void pack_left(int64_t item, int64_t items, int64_t start, int64_t count) {
    const int64_t vectors = ceil_div(rows_of_all_, n);
    const int64_t first = item * vectors / items * n,
                  end = std::min((item + 1) * vectors / items * n, rows_of_all_);
    if (first >= end) return;
    const Part* from = parts_ + start * row_size_;
    if constexpr (Of::kAreTiles) {
      for (int64_t r = first; r < end; r += n) {
        for (int part = 0; part < Of::kParts; ++part) {
          const A* words = from + r / room_ * gate_ + part * gate_ / Of::kParts;
          pack_words(reinterpret_cast<const bf16*>(words) + r % room_, n, 2 * row_size_, count,
                     rows_.data() + r * stride_ + part * Of::words(count) / Of::kParts);
        }
      }
    } else if constexpr (kPairs) {
      for (int64_t r = first; r < end; r += n) {
        pack_words(from + r, std::min<int64_t>(n, end - r), row_size_, count,
                   rows_.data() + r * stride_);
      }
    } else {
      pack(View<const A, 2>{from + first, {end - first, count}, {1, row_size_}},
           rows_.data() + first * stride_, stride_);
    }
  }
  // A vector of gradients that are bf16, in each frame `stride` after those of the one before:
  // frames by pairs, a row of words for each gradient.
  void pack_words(const bf16* from, int64_t height, int64_t stride, int64_t count, A* to) {
    auto at = [&](int64_t k) {
      return k < count ? simd::load(from + k * stride, height) : simd::zero<float>();
    };
    for (int64_t k0 = 0; k0 < ceil_div(count, 2); k0 += n) {
      simd::Vec<float> tile[n];
      for (int64_t k = 0; k < n; ++k) {
        tile[k] = simd::words_of(at(2 * (k0 + k)), at(2 * (k0 + k) + 1));
      }
      simd::transpose(tile);
      for (int64_t r = 0; r < height; ++r) simd::store(to + r * stride_ + k0, tile[r]);
    }
  }

  template <class Copy>
  void pack_right(const Split& split, int64_t panel, int64_t start, int64_t count, int64_t columns,
                  A* right, Copy&& copy) {
    const int64_t width = split.count(panel) * n, first = split.first(panel) * n;
    const int64_t inside = std::min(width, columns - first);
    A* to = right + first * depth_;
    if constexpr (Of::kAreTiles) {
      alignas(64) A block[Of::kDepth * kWidest * n];
      for (int64_t b = 0; b * Of::kDepth < count; ++b) {
        std::fill_n(block, Of::kDepth * width, A(0));
        for (int64_t k = b * Of::kDepth; k < std::min(count, (b + 1) * Of::kDepth); ++k) {
          copy(start + k, first, inside, block + k % Of::kDepth * width);
        }
        for (int v = 0; v < split.count(panel); ++v) {
          Of::pack_block(block + v * n, width, to, split.count(panel), v, Of::words(count), b);
        }
      }
      return;
    }
    for (int64_t k = 0; k < count; k += Of::kPerWord, to += width) {
      copy(start + k, first, inside, to);
      if constexpr (kPairs) {
        alignas(64) A other[kWidest * n] = {};
        if (k + 1 < count) copy(start + k + 1, first, inside, other);
        for (int64_t c = 0; c < width; c += n) {
          simd::store(to + c, simd::words_of(simd::to_bf16(simd::load(to + c)),
                                             simd::to_bf16(simd::load(other + c))));
        }
      }
      std::fill(to + inside, to + width, A(0));
    }
  }

  void multiply_part(const Split& split, int64_t chunks, int64_t item, const int* part,
                     int64_t units, int64_t count, bool fresh, const A* right, View<A, 2> to) {
    const int64_t panel = item / chunks, first = item % chunks * kRows,
                  first_column = split.first(panel) * n;
    const int64_t height = std::min(kRows, to.size(0) - first), width = split.count(panel) * n;
    const int64_t inside = std::min(width, to.size(1) - first_column);
    const A* rows[kRows];
    for (int64_t i = 0; i < height; ++i) {
      const int64_t gate = (first + i) / units, unit = (first + i) % units;
      rows[i] = rows_.data() + (part[gate] * room_ + unit) * stride_;
    }
    alignas(64) A zeros[kWidest * n] = {};
    constexpr int64_t kStep = Of::template kRows<kWidest>;
    alignas(64) A sums[kStep * kWidest * n];
    int64_t some = 0;
    for (int64_t i = 0; i < height; i += some) {
      some = std::min(kStep, height - i);  // of tiles, those of one gate: at equal distances
      if (Of::kAreTiles) some = std::min(some, units - (first + i) % units);
      multiply<Of>(split.count(panel), rows + i, some, 0, Of::words(count),
                   right + first_column * depth_, zeros, 0, sums, width);
      for (int64_t r = 0; r < some; ++r) {
        A* row = &to(first + i + r, first_column);
        for (int64_t c = 0; c < inside; c += n) {
          const simd::Vec<A> sum = simd::load(sums + r * width + c);
          simd::store(row + c, fresh ? sum : simd::load(row + c, inside - c) + sum, inside - c);
        }
      }
    }
  }

  Device& dev_;
  const Part* parts_;
  const int64_t gate_, room_;  // words of a part; numbers that have room in them
  const int64_t row_size_, rows_of_all_, frames_, depth_, stride_;
  const Workspace<A> rows_;
};

}  // namespace nativeops::tuned
