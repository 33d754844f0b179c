// SPDX-License-Identifier: Apache-2.0
// The gradients of weight matrices: the products of the gates' gradients with what the weights were
// multiplied with, summed over all frames of all sequences. All are packed for a block of frames,
// the gates' gradients once for both matrices; then each thread computes its part of the results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "nativeops/devices/cpu/dots.h"
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
  static constexpr int n = simd::kLanes<A>, kWide = Of::kWide;
  static constexpr int64_t kFrames = 768, kRows = Of::kAreTiles ? 256 : 240;
  // With few frames nearly all the time is that of writing results: a few rows are written from end
  // to end. Else a panel is read once for many rows.
  static constexpr int64_t kFewRows = 48;
  static constexpr int64_t kStep = Of::template kRows<kWide>;

 public:
  // words: the gates' gradients, for each frame a row of `parts` with `gate` words each, and one
  // more with `last` words.
  WeightGrad(Device& dev, const A* words, int parts, int64_t gate, int64_t last, int64_t frames)
      : dev_(dev),
        words_(words),
        parts_(parts),
        gate_(gate),
        last_(last),
        room_(Of::room(gate)),
        row_words_(parts * gate + last),
        rows_of_all_(parts * room_ + Of::room(last)),
        frames_(frames),
        depth_(Of::words(std::min(frames, kFrames))),
        stride_(round_up(depth_, n) + n),
        rows_(dev.workspace<A>(rows_of_all_ * stride_)) {}

  // Adds a matrix to those that `run` computes:
  // to[gate·units + u][c] = Σ_frame parts[frame][part[gate]][u] · right[frame][c]
  void add(Out<T, 2> to, const int* part, int64_t units) {
    const bool direct = std::is_same_v<A, T> && to.stride(1) == 1;
    const int64_t height = frames_ <= kFewForPacking ? kFewRows : kRows,
                  chunks = ceil_div(to.size(0), height);
    const Split split(ceil_div(to.size(1), n), kWide,
                      chunks < dev_.num_threads() ? dev_.num_threads() : 1);
    auto memory = dev_.template workspace<A>(direct ? 0 : to.count());
    const View<A, 2> result = direct ? View<A, 2>{reinterpret_cast<A*>(to.data),
                                                  {to.size(0), to.size(1)},
                                                  {to.stride(0), to.stride(1)}}
                                     : dense(memory.data(), to.size(0), to.size(1));
    targets_.push_back({to, part, units, split, height, chunks, direct, result, std::move(memory),
                        dev_.template workspace<A>(split.vectors * n * depth_)});
  }

  // copy(i, frame, first, count, to) gives columns [first, first + count) of right[frame] of the
  // i-th matrix.
  template <class Copy>
  void run(Copy&& copy) {
    int64_t items = 0, steps = 0;
    for (const Target& target : targets_) {
      items += target.items();
      steps += frames_ * target.split.vectors * target.to.size(0);
    }
    const int64_t blocks = std::max<int64_t>(1, ceil_div(frames_, kFrames));
    run_phases<typename Of::Thread>(
        dev_, 2 * blocks, items, steps, [&](int64_t, int64_t phase, int64_t item) {
          const int64_t start = phase / 2 * kFrames, count = std::min(kFrames, frames_ - start);
          const bool packs = phase % 2 == 0;
          if (packs) pack_left(item, items, start, count);
          for (size_t i = 0; i < targets_.size() && item >= 0; item -= targets_[i++].items()) {
            Target& target = targets_[i];
            if (packs && item < target.split.panels)
              pack_right(target, item, start, count,
                         [&](auto... place) { copy(static_cast<int>(i), place...); });
            if (!packs && item < target.items()) multiply_part(target, item, count, start == 0);
          }
        });
    for (const Target& target : targets_) {
      if (!target.direct) store(target);
    }
  }

 private:
  struct Target {
    Out<T, 2> to;
    const int* part;
    int64_t units;
    Split split;
    int64_t height, chunks;  // rows of a chunk
    bool direct;             // result is `to` itself
    View<A, 2> result;
    Workspace<A> memory, right;
    bool few() const { return height == kFewRows; }
    int64_t items() const { return few() ? std::max(split.panels, chunks) : split.panels * chunks; }
  };

  void store(const Target& target) {
    const Out<T, 2>& to = target.to;
    if constexpr (std::is_same_v<A, T>) {
      if (to.stride(0) == 1 && to.size(0) % n == 0) return store_transposed(target);
    }
    parallel_if_large(dev_, to.size(0), to.count() / n, [&](int64_t i) {
      for (int64_t j = 0; j < to.size(1); j += n) {
        const int64_t left = to.size(1) - j;
        store_along(to, &to(i, j), simd::load(&target.result(i, j), left), left);
      }
    });
  }

  // To where the columns are what lies contiguous: square tiles, transposed in registers.
  void store_transposed(const Target& target) {
    const View<A, 2>& result = target.result;
    parallel_if_large(dev_, ceil_div(result.size(1), n), result.count() / n, [&](int64_t i) {
      const int64_t column = i * n, columns = std::min<int64_t>(n, result.size(1) - column);
      pack(View<const A, 2>{&result(0, column), {columns, result.size(0)}, {1, result.stride(0)}},
           &target.to(0, column), target.to.stride(1));
    });
  }

  // Transposed: a row for each gradient, with its frames side by side.
  void pack_left(int64_t item, int64_t items, int64_t start, int64_t count) {
    const int64_t vectors = ceil_div(rows_of_all_, n);
    const int64_t first = item * vectors / items * n,
                  end = std::min((item + 1) * vectors / items * n, rows_of_all_);
    if (first >= end) return;
    const A* from = words_ + start * row_words_;
    if constexpr (Of::kAreTiles) {
      for (int64_t r = first; r < end; r += n) {
        const int64_t gate = room_ > 0 ? std::min(r / room_, parts_) : parts_,
                      size = gate < parts_ ? gate_ : last_;
        for (int part = 0; part < Of::kParts; ++part) {
          const A* words = from + gate * gate_ + part * size / Of::kParts;
          pack_words(reinterpret_cast<const bf16*>(words) + (r - gate * room_), n, count,
                     rows_.data() + r * stride_ + part * Of::words(count) / Of::kParts);
        }
      }
    } else if constexpr (kPairs) {
      for (int64_t r = first; r < end; r += n) {
        pack_words(reinterpret_cast<const bf16*>(from) + r, std::min<int64_t>(n, end - r), count,
                   rows_.data() + r * stride_);
      }
    } else {
      pack(View<const A, 2>{from + first, {end - first, count}, {1, row_words_}},
           rows_.data() + first * stride_, stride_);
    }
  }
  // A vector of gradients that are bf16: frames by pairs, a row of words for each gradient.
  void pack_words(const bf16* from, int64_t height, int64_t count, A* to) {
    auto at = [&](int64_t k) {
      return k < count ? simd::load(from + k * 2 * row_words_, height) : simd::zero<float>();
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
  void pack_right(const Target& target, int64_t panel, int64_t start, int64_t count, Copy&& copy) {
    const Split& split = target.split;
    const int64_t width = split.count(panel) * n, first = split.first(panel) * n;
    const int64_t inside = std::min(width, target.to.size(1) - first);
    A* to = target.right.data() + first * depth_;
    if constexpr (Of::kAreTiles) {
      alignas(64) A block[Of::kDepth * kWide * n];
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
        alignas(64) A other[kWide * n] = {};
        if (k + 1 < count) copy(start + k + 1, first, inside, other);
        for (int64_t c = 0; c < width; c += n) {
          simd::store(to + c, simd::words_of(simd::to_bf16(simd::load(to + c)),
                                             simd::to_bf16(simd::load(other + c))));
        }
      }
      std::fill(to + inside, to + width, A(0));
    }
  }

  // For some panels a chunk of rows: with few frames for all, else for one.
  void multiply_part(const Target& target, int64_t item, int64_t count, bool fresh) {
    const int64_t first = (target.few() ? item : item % target.chunks) * target.height,
                  height = std::min(target.height, target.to.size(0) - first);
    const int64_t begin = target.few() ? 0 : item / target.chunks,
                  end = target.few() ? target.split.panels : begin + 1;
    if (height <= 0) return;
    const A* rows[kRows];
    int64_t gate = first / target.units, unit = first % target.units;
    for (int64_t i = 0; i < height; ++i, ++unit) {
      if (unit == target.units) ++gate, unit = 0;
      rows[i] = rows_.data() + (target.part[gate] * room_ + unit) * stride_;
    }
    int64_t some = 0;
    for (int64_t i = 0; i < height; i += some) {
      some = std::min(kStep, height - i);  // of tiles, those of one gate: at equal distances
      if (Of::kAreTiles) some = std::min(some, target.units - (first + i) % target.units);
      for (int64_t panel = begin; panel < end; ++panel) {
        multiply_some(target, panel, first + i, rows + i, some, count, fresh);
      }
    }
  }
  void multiply_some(const Target& target, int64_t panel, int64_t row, const A* const* rows,
                     int64_t height, int64_t count, bool fresh) {
    const int vectors = target.split.count(panel);
    const int64_t column = target.split.first(panel) * n, width = vectors * n;
    const View<A, 2>& to = target.result;
    const int64_t inside = std::min(width, to.size(1) - column);
    A* result = &to(row, column);
    alignas(64) static constexpr A kZeros[kWide * n] = {};
    const auto multiply_to = [&](const A* init, int64_t init_stride, A* sums, int64_t stride) {
      multiply<Of>(vectors, rows, height, 0, Of::words(count),
                   target.right.data() + column * depth_, init, init_stride, sums, stride,
                   height == 1);
    };
    if (!Of::kAreTiles && inside == width) {  // tiles add to `init`, which rounds at each frame
      return fresh ? multiply_to(kZeros, 0, result, to.stride(0))
                   : multiply_to(result, to.stride(0), result, to.stride(0));
    }
    alignas(64) A sums[kStep * kWide * n];
    multiply_to(kZeros, 0, sums, width);
    for (int64_t r = 0; r < height; ++r, result += to.stride(0)) {
      for (int64_t c = 0; c < inside; c += n) {
        const simd::Vec<A> sum = simd::load(sums + r * width + c);
        simd::store(result + c, fresh ? sum : simd::load(result + c, inside - c) + sum, inside - c);
      }
    }
  }

  Device& dev_;
  const A* words_;
  const int64_t parts_, gate_, last_, room_;  // parts, words of one, numbers that have room in it
  const int64_t row_words_, rows_of_all_, frames_, depth_, stride_;
  const Workspace<A> rows_;
  std::vector<Target> targets_;
};

}  // namespace nativeops::tuned
