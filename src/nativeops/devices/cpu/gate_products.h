// SPDX-License-Identifier: Apache-2.0
// The products of inputs and states with the weights of a recurrent cell.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "nativeops/devices/cpu/dots.h"
#include "nativeops/devices/cpu/kept_weights.h"
#include "nativeops/devices/cpu/pack.h"
#include "nativeops/devices/cpu/panels.h"

namespace nativeops::tuned {

// The products of one kind of rows with the weights of a cell, a panel of whole hidden units at a
// time: sums[row][unit][gate][lane]. The weights are packed so, or read as they lie.
template <class Cell, class T, class Of = Numbers>
class GateProducts {
  using A = Accum<T>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates;
  static constexpr bool kPairs = !Of::kAreTiles && Of::kPerWord == 2;

  // Up to so many rows in all, weights are read as they lie: to pack a panel just before it is used
  // takes the time of some 10 rows' products, to look for packed weights half of that. Where there
  // is only one step, it is the time that sums of dot products cost. (Zen5 EPYC, 2026-11)
  static constexpr int64_t kFewEnough = 2048;
  static int64_t few(int64_t depth, bool one_step) {
    return one_step ? std::clamp<int64_t>(depth / 8, 12, 48) : 12;
  }

  // Weights of so many bytes come from memory: fetched early, a single step of four rows takes 22 %
  // less, of 16 9 %. From the third cache they come soon enough: up to 8 % longer. (Zen5 EPYC)
  static constexpr int64_t kCaches = int64_t{12} << 20;

  // Its address stands for this class: how many gates, of which dtype, multiplied as what.
  inline static const char kWay = 0;

 public:
  static constexpr int kUnits = kWidest / kGates;  // vectors of units in a panel

  // rows: how many will be multiplied in all; one_step: at once. keeps: whether to look for weights
  // packed before.
  GateProducts(Device& dev, const Split& split, In<T, 2> weight, In<T, 1> bias, int64_t rows,
               bool keeps = false, bool one_step = false)
      : split_(split),
        weight_(weight),
        bias_(bias),
        whole_(weight.stride(1) == 1 && weight.size(1) % (kPairs ? 2 : 1) == 0),
        direct_((std::is_same_v<A, T> || kPairs) && !Of::kAreTiles && whole_ &&
                rows <= few(weight.size(1), one_step)),
        depth_(Of::words(weight.size(1))),
        count_(split.vectors * kGates * n * (direct_ ? 1 : depth_ + 1)) {
    const bool dense = weight.stride(1) == 1 && (!bias || bias.stride(0) == 1);
    if (keeps && !direct_ && dense && rows <= kFewEnough && count_ > 0) find(dev);
    if (kept_ == nullptr) memory_.emplace(dev.workspace<A>(count_));
    data_ = kept_ == nullptr ? memory_->data() : static_cast<A*>(kept_.get());
  }

  bool direct() const { return direct_; }  // whether weights are read as they lie

  // Makes a panel ready, by one thread before the first that multiplies with it: while its weights
  // are in that thread's caches.
  void make_ready(int64_t p) const {
    if (found_) return;
    for (int u = 0; u < split_.count(p); ++u) {
      for (int g = 0; g < kGates; ++g) prepare(p, u, g);
    }
  }
  void make_all_ready(Device& dev) const {
    const int64_t steps = direct_ || found_ ? 0 : split_.vectors * kGates * depth_;
    parallel_if_large(dev, split_.panels, steps, [&](int64_t p) { make_ready(p); });
  }
  // For other calls; to be called when all panels are ready. Weights that somebody wrote meanwhile
  // are not those of the fingerprint, which was taken before.
  void keep(Device& dev) const {
    if (kept_ == nullptr || found_) return;
    if (!(Fingerprint(dev, weight_, bias_) == *fingerprint_)) return;
    KeptWeights::of_process().keep(packing(), *fingerprint_, kept_, bytes());
  }

  // body(first, height) for blocks of rows to be multiplied, each at most `most`, a multiple of
  // four. Weights that are read as they lie are multiplied with four rows at a time; packed ones
  // with blocks of nearly equal height, `together` of them.
  template <class F>
  void for_some(int64_t rows, int64_t most, int64_t together, F&& body) const {
    if (!direct_) return for_blocks(rows, most / together, body, together);
    for (int64_t r = 0; r < rows; r += most) body(r, std::min(most, rows - r));
  }

  int64_t width(int64_t p) const { return split_.count(p) * kGates * n; }

  // The weights of a panel; null for those that do not exist, or are read as they lie.
  const A* panel(int64_t p) const {
    return direct_ || p < 0 || p >= split_.panels ? nullptr : bias(p) + width(p);
  }

  // sums[r] = rows[r] · weights + bias; alone, soon: as `multiply` has it
  void multiply(int64_t p, const A* const* rows, int64_t count, A* sums, bool alone,
                const A* soon = nullptr) const {
    if (!direct_) {
      return tuned::multiply<Of>(static_cast<int>(width(p) / n), rows, count, 0, depth_, panel(p),
                                 bias(p), 0, sums, width(p), alone, soon);
    }
    for (int u = 0; u < split_.count(p); ++u) {
      for (int g = 0; g < kGates; ++g) multiply_as_it_lies(p, u, g, rows, count, sums);
    }
  }

 private:
  A* bias(int64_t p) const {
    return data_ + split_.first(p) * kGates * n * (direct_ ? 1 : depth_ + 1);
  }
  int64_t units() const { return weight_.size(0) / kGates; }
  int64_t row(int64_t p, int u, int g) const { return g * units() + (split_.first(p) + u) * n; }
  int64_t count(int64_t p, int u) const {
    return std::min<int64_t>(n, units() - (split_.first(p) + u) * n);
  }

  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(A); }
  Packing packing() const {
    return {weight_.size(0), weight_.size(1), split_.panels, bias_ ? 1 : 0, &kWay};
  }

  // Weights that were packed before, or memory to keep them in: both in kept_, if any.
  void find(Device& dev) {
    fingerprint_.emplace(dev, weight_, bias_);
    const auto before = KeptWeights::of_process().find(packing(), *fingerprint_);
    found_ = before.memory != nullptr;
    kept_ = found_ ? before.memory : before.come_again ? KeptWeights::allocate(bytes()) : nullptr;
  }

  void prepare(int64_t p, int u, int g) const {
    const int64_t first = row(p, u, g), inside = count(p, u), column = (u * kGates + g) * n;
    simd::store(bias(p) + column,
                bias_ ? load_along(bias_, &bias_(first), inside) : simd::zero<A>());
    A* to = bias(p) + width(p) + column;
    if (direct_ || depth_ == 0) return;
    if constexpr (Of::kAreTiles) {
      const View<const T, 2> part{
          &weight_(first, 0), {weight_.size(1), inside}, {weight_.stride(1), weight_.stride(0)}};
      Of::pack(part, bias(p) + width(p), split_.count(p) * kGates, u * kGates + g, depth_);
    } else if constexpr (kPairs) {
      if (!whole_ || weight_.stride(0) % 2 != 0) return pack_pairs(first, inside, to, width(p));
      const auto* words = reinterpret_cast<const A*>(&weight_(first, 0));
      pack(View<const A, 2>{words, {depth_, inside}, {1, weight_.stride(0) / 2}}, to, width(p));
    } else {
      const View<const T, 2> part{
          &weight_(first, 0), {depth_, inside}, {weight_.stride(1), weight_.stride(0)}};
      pack(part, to, width(p));
    }
  }
  void pack_pairs(int64_t first, int64_t inside, A* to, int64_t width) const {
    for (int64_t k0 = 0; k0 < depth_; k0 += n) {
      simd::Vec<A> tile[n];
      for (int64_t i = 0; i < n; ++i) tile[i] = i < inside ? words(first + i, k0) : simd::zero<A>();
      simd::transpose(tile);
      for (int64_t k = k0; k < std::min(k0 + n, depth_); ++k) {
        simd::store(to + k * width, tile[k - k0]);
      }
    }
  }
  // A row of weights from the k-th word on.
  simd::Vec<A> words(int64_t row, int64_t k) const {
    const int64_t left = weight_.size(1) - 2 * k, stride = weight_.stride(1);
    const T* from = &weight_(row, 2 * k);
    if (left >= 2 * n && stride == 1) return simd::load(reinterpret_cast<const A*>(from));
    alignas(64) T lane[2 * n] = {};
    for (int64_t i = 0; i < std::min<int64_t>(left, 2 * n); ++i) lane[i] = from[i * stride];
    return simd::load(reinterpret_cast<const A*>(lane));
  }

  // The weights that are read after those of a gate, if they come from beyond the caches; null
  // where there are none, or fewer.
  const T* after(int64_t p, int u, int g) const {
    if (weight_.count() * static_cast<int64_t>(sizeof(T)) < kCaches) return nullptr;
    if (++g == kGates) g = 0, ++u;
    if (u == split_.count(p)) u = 0, ++p;
    return p < split_.panels && count(p, u) == n ? &weight_(row(p, u, g), 0) : nullptr;
  }
  void multiply_as_it_lies(int64_t p, int u, int g, const A* const* rows, int64_t height,
                           A* sums) const {
    const int64_t column = (u * kGates + g) * n;
    if constexpr (!Of::kAreTiles && (std::is_same_v<A, T> || kPairs)) {
      dots<Of>(rows, height, &weight_(row(p, u, g), 0), weight_.stride(0), count(p, u), depth_,
               sums + column, width(p), after(p, u, g));
    }
    for (int64_t r = 0; r < height; ++r) {
      A* sum = sums + r * width(p) + column;
      const int64_t inside = count(p, u);
      simd::store(sum, simd::load(sum, inside) + simd::load(bias(p) + column));
    }
  }

  const Split& split_;
  const In<T, 2> weight_;
  const In<T, 1> bias_;
  const bool whole_;  // rows of whole words without gaps
  const bool direct_;
  const int64_t depth_, count_;
  std::optional<Fingerprint> fingerprint_;
  KeptWeights::Memory kept_;
  bool found_ = false;  // kept_ was packed before
  std::optional<Workspace<A>> memory_;
  A* data_ = nullptr;
};

}  // namespace nativeops::tuned
