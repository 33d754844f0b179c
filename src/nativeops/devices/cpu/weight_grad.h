// SPDX-License-Identifier: Apache-2.0
// The gradients of weight matrices: the products of the gates' gradients with what the weights were
// multiplied with, summed over all frames of all sequences. All are packed for a block of frames,
// the gates' gradients once for both matrices; then each thread computes its part of the results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "nativeops/devices/cpu/panels.h"
#include "nativeops/devices/cpu/phases.h"

namespace nativeops::tuned {

// Of: what the product is made of; parts are bf16 where they are pairs.
template <class T, class Of = Numbers>
class WeightGrad {
  using A = Accum<T>;
  using Part = std::conditional_t<Of::kPerWord == 2, T, A>;
  static constexpr int n = simd::kLanes<A>;
  static constexpr int64_t kFrames = 768, kRows = 240;

 public:
  // parts: the gates' gradients, one row of `row_size` numbers for each frame.
  WeightGrad(Device& dev, const Part* parts, int64_t row_size, int64_t frames)
      : dev_(dev),
        parts_(parts),
        row_size_(row_size),
        frames_(frames),
        depth_(ceil_div(std::min(frames, kFrames), Of::kPerWord)),
        stride_(round_up(depth_, n) + n),
        rows_(dev.workspace<A>(row_size * stride_)) {}

  // Adds a matrix to those that `run` computes:
  // to[gate·units + u][c] = Σ_frame parts[frame][part[gate]·units + u] · right[frame][c]
  void add(Out<T, 2> to, const int* part, int64_t units) {
    const bool direct = std::is_same_v<A, T> && to.stride(1) == 1;
    const Split split(ceil_div(to.size(1), n), kWidest, dev_.num_threads());
    auto memory = dev_.template workspace<A>(direct ? 0 : to.count());
    const View<A, 2> result = direct ? View<A, 2>{reinterpret_cast<A*>(to.data),
                                                  {to.size(0), to.size(1)},
                                                  {to.stride(0), to.stride(1)}}
                                     : dense(memory.data(), to.size(0), to.size(1));
    targets_.push_back({to, part, units, split, ceil_div(to.size(0), kRows), direct, result,
                        std::move(memory), dev_.template workspace<A>(split.vectors * n * depth_)});
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
    run_phases(dev_, 2 * blocks, items, steps, [&](int64_t, int64_t phase, int64_t item) {
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
      for (int64_t i = 0; i < (target.direct ? 0 : target.to.size(0)); ++i) {
        for (int64_t j = 0; j < target.to.size(1); ++j) target.to(i, j) = T(target.result(i, j));
      }
    }
  }

 private:
  struct Target {
    Out<T, 2> to;
    const int* part;
    int64_t units;
    Split split;
    int64_t chunks;  // of rows
    bool direct;     // result is `to` itself
    View<A, 2> result;
    Workspace<A> memory, right;
    int64_t items() const { return split.panels * chunks; }
  };

  // Transposed: a row for each gradient, with its frames side by side.
  void pack_left(int64_t item, int64_t items, int64_t start, int64_t count) {
    const int64_t vectors = ceil_div(row_size_, n);
    const int64_t first = item * vectors / items * n,
                  end = std::min((item + 1) * vectors / items * n, row_size_);
    if (first >= end) return;
    A* to = rows_.data() + first * stride_;
    const Part* from = parts_ + start * row_size_ + first;
    if constexpr (Of::kPerWord == 2) {
      for (int64_t r = 0; r < end - first; r += n) {
        pack_pairs(from + r, std::min<int64_t>(n, end - first - r), count, to + r * stride_);
      }
    } else {
      pack(View<const A, 2>{from, {end - first, count}, {1, row_size_}}, to, stride_);
    }
  }
  // A vector of gradients: frames by pairs, a row for each gradient.
  void pack_pairs(const Part* from, int64_t height, int64_t count, A* to) {
    for (int64_t k0 = 0; k0 < ceil_div(count, 2); k0 += n) {
      simd::Vec<A> tile[n];
      for (int64_t k = 0; k < n; ++k) {
        alignas(64) A word[n] = {};
        const int64_t frame = 2 * (k0 + k);
        const Part* one = from + frame * row_size_;
        const Part* other = frame + 1 < count ? one + row_size_ : nullptr;
        for (int64_t r = 0; frame < count && r < height; ++r) {
          word[r] = word_of(one[r], other ? other[r] : Part(0.0f));
        }
        tile[k] = simd::load(word);
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
    for (int64_t k = 0; k < count; k += Of::kPerWord, to += width) {
      copy(start + k, first, inside, to);
      if constexpr (Of::kPerWord == 2) {
        alignas(64) A other[kWidest * n] = {};
        if (k + 1 < count) copy(start + k + 1, first, inside, other);
        for (int64_t c = 0; c < inside; ++c) to[c] = word_of(T(to[c]), T(other[c]));
      }
      std::fill(to + inside, to + width, A(0));
    }
  }

  void multiply_part(const Target& target, int64_t item, int64_t count, bool fresh) {
    const Split& split = target.split;
    const int64_t panel = item / target.chunks, first = item % target.chunks * kRows,
                  first_column = split.first(panel) * n;
    const View<A, 2>& to = target.result;
    const int64_t height = std::min(kRows, to.size(0) - first), width = split.count(panel) * n;
    const int64_t inside = std::min(width, to.size(1) - first_column);
    const A* rows[kRows];
    for (int64_t i = 0; i < height; ++i) {
      const int64_t gate = (first + i) / target.units, unit = (first + i) % target.units;
      rows[i] = rows_.data() + (target.part[gate] * target.units + unit) * stride_;
    }
    alignas(64) A zeros[kWidest * n] = {};
    alignas(64) A sums[kTallest * kWidest * n];
    constexpr int64_t kStep = kBlockRows<kWidest>;
    for (int64_t i = 0; i < height; i += kStep) {
      const int64_t some = std::min(kStep, height - i);
      multiply<Of>(split.count(panel), rows + i, some, 0, ceil_div(count, Of::kPerWord),
                   target.right.data() + first_column * depth_, zeros, 0, sums, width);
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
  const int64_t row_size_, frames_, depth_, stride_;
  const Workspace<A> rows_;
  std::vector<Target> targets_;
};

}  // namespace nativeops::tuned
