// SPDX-License-Identifier: Apache-2.0
// The recurrent layer on the CPU, generic over its cell (ops/*_cpu.h). Weights are packed once per
// call, in the first step, or kept packed where nothing is kept for a gradient. In each step every
// thread multiplies the state with the panels of its own hidden units and applies the cell's
// formula to the sums while they are in the first cache; one barrier ends it. A cell with a second
// product has a second such half of a step. The input product of a few steps is taken together, so
// that a panel is read for many rows at once but no array grows with the number of steps; where a
// single step has many rows, it is taken block by block just before that of the state, and leaves
// the cache no more.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "nativeops/devices/cpu/gate_products.h"
#include "nativeops/devices/cpu/phases.h"
#include "nativeops/devices/cpu/progress.h"
#include "nativeops/devices/cpu/recurrent_rows.h"
#include "nativeops/devices/cpu/recurrent_step.h"
#include "nativeops/devices/cpu/sequences.h"
#if NATIVEOPS_LEVEL >= 3
#include "nativeops/devices/cpu/tile_products.h"
#endif
#include "nativeops/devices/recurrent.h"

namespace nativeops::tuned {

// Of: what rows and weights are multiplied as. As words of bf16, the state is kept in float too.
template <class Cell, class T, class Of = Numbers>
class Forward {
  using A = Accum<T>;
  using Place = typename StepFormulas<Cell, T, Of>::Place;
  template <int kCount>
  using Products = GateProducts<Gates<kCount>, T, Of>;
  static constexpr int n = simd::kLanes<A>, kGates = Cell::kGates, kStages = 1 + Cell::kSecond;
  static constexpr int kUnits = Products<kGates>::kUnits;
  // Where a formula needs both halves of a step, both have the same panels.
  static constexpr int kSecondUnits = Cell::kReadsState ? kUnits : kWidest;
  static constexpr bool kTiles = Of::kAreTiles, kWords = !std::is_same_v<Of, Numbers>;

 public:
  Forward(Device& dev, const Layer<T>& layer, const States<T>& to)
      : dev_(dev),
        layer_(layer),
        seq_(layer),
        formulas_(dev, layer, to, seq_),
        split_(ceil_div(layer.units(), n), kUnits, dev.num_threads()),
        out_split_(Cell::kSecond ? ceil_div(layer.width(), n) : 0, kSecondUnits, dev.num_threads()),
        input_(dev, split_, layer.w_ih, layer.b_ih, seq_.frames(), !to.gates, seq_.steps == 1),
        recurrent_(dev, split_, layer.w_hh, layer.b_hh, seq_.frames(), !to.gates, seq_.steps == 1),
        second_(dev, out_split_, layer.w_second, layer.b_second, seq_.frames(), !to.gates,
                seq_.steps == 1),
        items_(seq_.batch == 1 ? std::max(groups_of(split_), groups_of(out_split_))
                               : std::max(split_.panels, out_split_.panels)),
        chunk_(std::min(std::max<int64_t>(2, ceil_div(chunk_rows(), seq_.batch)), seq_.steps)),
        // Not with weights as they lie: those depend on how many rows are multiplied together.
        fused_(!Cell::kSecond && !layer.sums && seq_.batch >= kManyRows && !input_.direct() &&
               (layer.inputs() + layer.width()) * kWidest * simd::kVectorBytes <= kPanels),
        products_(dev.workspace<A>(fused_ ? 0 : chunk_ * seq_.batch * split_.vectors * kGates * n)),
        converts_(kTiles || (!std::is_same_v<A, T> && !kWords) || layer.x.stride(2) != 1 ||
                  layer.inputs() % (kWords ? 2 : 1) != 0),
        row_(Of::words(layer.inputs()) + (kTiles ? n : 0)),
        converted_(dev.workspace<A>(converts_ ? chunk_ * seq_.batch * row_ : 0)) {}

  void run() {
    formulas_.start();
    formulas_.clear_beyond_ends(dev_);
    const int64_t per_chunk = kStages * chunk_ + converts_,
                  chunks = ceil_div(seq_.longest(), std::max<int64_t>(chunk_, 1));
    const int64_t steps =
        seq_.frames() * (split_.vectors * kGates * (layer_.inputs() + layer_.width()) +
                         out_split_.vectors * layer_.units());
    run_phases<typename Of::Thread>(
        dev_, chunks * per_chunk, items_, steps,
        [&](int64_t, int64_t phase, int64_t item, int64_t next) {
          const int64_t first = phase / per_chunk * chunk_, stage = phase % per_chunk - converts_;
          if (dev_.before) dev_.before->wait_for(std::min(first + chunk_, seq_.longest()));
          if (stage < 0) return convert(first, item);
          const int64_t step = first + stage / kStages;
          if (step >= seq_.longest()) return;
          if (dev_.after) dev_.after->reach(step);
          if (stage % kStages == 1) {
            second_half(step, item, next);
          } else {
            before_step(step, first, item);
            first_half(step, step == first, item, next);
          }
          formulas_.settle();
        },
        kStages);
    if (dev_.after) dev_.after->reach(seq_.longest());
    if (seq_.longest() == 0) return;
    input_.keep(dev_), recurrent_.keep(dev_);
    if (Cell::kSecond) second_.keep(dev_);
  }

 private:
  // Tiles are so fast that weights from beyond the second cache must serve more rows.
  static constexpr int64_t kManyRows = 48, kChunkRows = kTiles ? 240 : kManyRows;
  // Where another layer is computed at the same time, who comes second waits for a chunk.
  static constexpr int64_t kRowsAtOnce = kTiles ? 32 : 6;
  static constexpr int64_t kPanels = int64_t{512} << 10;  // bytes of the second cache
  // Blocks of rows whose formulas follow one another: they overlap, but not with a product.
  static constexpr int kTogether = kTiles ? 1 : 4;

  // Panels of the only sequence whose formulas follow one another.
  static constexpr int64_t kGroup = 4;

  template <int kVectors>
  static constexpr int kMost = kTogether * Of::template kRows<kVectors>;

  template <int kWidth, class F>
  static void with_width(int units, F&& f) {
    if constexpr (kWidth == 1) return f(std::integral_constant<int, 1>());
    if (units == 1) return f(std::integral_constant<int, 1>());
    if (units == 2) return f(std::integral_constant<int, 2>());
    if (units == 3) return f(std::integral_constant<int, 3>());
    f(std::integral_constant<int, 4>());
  }

  // Of weights as they lie, sums depend on how many rows are multiplied together.
  int64_t chunk_rows() const {
    return (dev_.before || dev_.after) && !input_.direct() ? kRowsAtOnce : kChunkRows;
  }

  int64_t groups_of(const Split& split) const {
    return std::min(split.panels,
                    round_up(ceil_div(split.panels, kGroup), int64_t{dev_.num_threads()}));
  }
  template <class Some>
  const A* first_panel(const Some& weights, const Split& split, int64_t item) const {
    return item < 0 ? nullptr : weights.panel(split.of_item(item, items_).first);
  }

  A* products(int64_t panel) {
    return products_.data() + chunk_ * seq_.batch * split_.first(panel) * kGates * n;
  }
  int64_t frame_of_chunk(int64_t step, int64_t r) const {
    return seq_.frame(step, r) - seq_.frame(step / chunk_ * chunk_, 0);
  }
  // The sums of the inputs of a vector of units.
  A* input_sums(int64_t step, int64_t r, int64_t panel, int u) {
    return products(panel) + (frame_of_chunk(step, r) * split_.count(panel) + u) * kGates * n;
  }

  // The inputs of a chunk of steps in the type that is computed in; each item does a part.
  void convert(int64_t first, int64_t item) {
    int64_t row = 0;
    for_frames(first, [&](int64_t t, int64_t b) {
      if (row++ % items_ != item) return;
      A* words = converted_.data() + (row - 1) * row_;
      if constexpr (kTiles) {
        for (int64_t i = 0; i < layer_.inputs(); i += n) {
          const int64_t count = layer_.inputs() - i;
          Of::write(words, row_ - n, i, load_along(layer_.x, &layer_.x(t, b, i), count), count);
        }
      } else {
        using Number = std::conditional_t<kWords, T, A>;
        auto* to = reinterpret_cast<Number*>(words);
        if (kWords && layer_.x.stride(2) == 1) {
          std::copy_n(&layer_.x(t, b, 0), layer_.inputs(), reinterpret_cast<T*>(words));
        } else {
          for (int64_t i = 0; i < layer_.inputs(); ++i) to[i] = Number(layer_.x(t, b, i));
        }
        if (kWords && layer_.inputs() % 2 != 0) to[layer_.inputs()] = Number(A(0));
      }
    });
  }
  template <class F>
  void for_frames(int64_t first, F&& f) {
    for (int64_t s = first; s < std::min(first + chunk_, seq_.longest()); ++s) {
      for (int64_t r = 0; r < seq_.active(s); ++r) f(seq_.time(s, r), seq_.item(r));
    }
  }

  // The inputs of a frame, the next of its chunk, as the weights are multiplied with them.
  const A* input_row(int64_t t, int64_t b, int64_t frame) const {
    return converts_ ? converted_.data() + frame * row_
                     : reinterpret_cast<const A*>(&layer_.x(t, b, 0));
  }
  void multiply_input(int64_t first, int64_t panel) {
    if (layer_.sums) return copy_sums(first, panel);
    std::vector<const A*> rows;
    rows.reserve(static_cast<size_t>(chunk_ * seq_.batch));
    for_frames(first, [&](int64_t t, int64_t b) {
      rows.push_back(input_row(t, b, static_cast<int64_t>(rows.size())));
    });
    const auto count = static_cast<int64_t>(rows.size());
    input_.multiply(panel, rows.data(), count, products(panel), seq_.frames() == 1,
                    recurrent_.panel(panel));
  }

  // The sums that are given, in place of products.
  void copy_sums(int64_t first, int64_t panel) {
    A* to = products(panel);
    for_frames(first, [&](int64_t t, int64_t b) {
      for (int u = 0; u < split_.count(panel); ++u) {
        const int64_t unit = (split_.first(panel) + u) * n;
        for (int g = 0; g < kGates; ++g, to += n) {
          const T* from = &layer_.sums(t, b, g * layer_.units() + unit);
          simd::store(to, load_along(layer_.sums, from, layer_.units() - unit));
        }
      }
    });
  }

  // All rows of a step times a panel of weights; before(first, height) for each block of them,
  // body(rows, r, u, sums) for each vector of its units and one or two rows. soon: the weights that
  // are needed next.
  template <int kPanelUnits, bool kSecond, int kCount, class Before, class F>
  void multiply(int64_t step, int64_t panel, const Products<kCount>& weights, const A* soon,
                Before&& before, F&& body) {
    constexpr int kVectors = kPanelUnits * kCount;
    constexpr int kRows = kMost<kVectors>;
    alignas(64) A sums[kRows * kVectors * n];
    const auto multiply_some = [&](int64_t first, int64_t height) {
      const A* rows[kRows];
      before(first, height);
      for (int64_t r = 0; r < height; ++r) {
        rows[r] = kSecond ? formulas_.middle(first + r) : formulas_.state(step, first + r);
      }
      weights.multiply(panel, rows, height, sums, seq_.active(step) == 1,
                       first + height == seq_.active(step) ? soon : nullptr);
      for (int u = 0; u < kPanelUnits; ++u) {
        const auto at = [&](int64_t r) { return sums + (r * kPanelUnits + u) * kCount * n; };
        int64_t r = 0;
        for (; r + 2 <= height; r += 2) body(Two(), first + r, u, at(r));
        if (r < height) body(One(), first + r, u, at(r));
      }
    };
    weights.for_some(seq_.active(step), kRows, kTogether, multiply_some);
  }

  // What a step needs of the panels of an item: the weights, and of the first of a chunk the sums
  // of the inputs.
  void before_step(int64_t step, int64_t first, int64_t item) {
    const auto [begin, end] = split_.of_item(item, items_);
    for (int64_t panel = begin; panel < end; ++panel) {
      if (step == 0) input_.make_ready(panel), recurrent_.make_ready(panel);
      if (step == first && !fused_) multiply_input(first, panel);
    }
  }

  // One step of all sequences for the hidden units of an item.
  void first_half(int64_t step, bool begins, int64_t item, int64_t next) {
    const auto [first, end] = split_.of_item(item, items_);
    if (first == end) return;
    if (seq_.batch == 1) {
      if (seq_.active(step) == 1) step_of_one(step, first, end);
    } else {
      step_of_all(step, first,
                  begins || fused_ ? first_panel(input_, split_, next)
                                   : first_panel(recurrent_, split_, next));
    }
  }

  // The formulas come after all products, in pairs, so that weights arrive without a pause.
  void step_of_one(int64_t step, int64_t first, int64_t end) {
    alignas(64) A sums[kGroup * kUnits * Cell::kStateGates * n];
    Place at[kGroup * kUnits];
    int64_t places = 0;
    const A* const state = formulas_.state(step, 0);
    fetch_rows(&state, 1, Of::words(layer_.width()));
    for (int64_t panel = first; panel < end; ++panel) {
      A* to = sums + places * Cell::kStateGates * n;
      recurrent_.multiply(panel, &state, 1, to, true);
      for (int u = 0; u < split_.count(panel); ++u, to += Cell::kStateGates * n) {
        at[places++] = {0, (split_.first(panel) + u) * n, input_sums(step, 0, panel, u), to};
      }
    }
    int64_t p = 0;
    for (; p + 2 <= places; p += 2) formulas_.apply(Two(), step, at + p);
    if (p < places) formulas_.apply(One(), step, at + p);
  }

  void step_of_all(int64_t step, int64_t panel, const A* soon) {
    with_width<kUnits>(split_.count(panel), [&](auto units) {
      constexpr int kRows = kMost<units * Cell::kStateGates>;
      alignas(64) A inputs[kRows * units * kGates * n];
      int64_t block = 0;
      const auto multiply_inputs = [&](int64_t first, int64_t height) {
        if (!fused_) return;
        const A* rows[kRows];
        for (int64_t r = 0; r < height; ++r) {
          rows[r] = input_row(seq_.time(step, first + r), seq_.item(first + r),
                              converts_ ? frame_of_chunk(step, first + r) : 0);
        }
        input_.multiply(panel, rows, height, inputs, seq_.active(step) == 1,
                        first == 0 ? recurrent_.panel(panel) : nullptr);
        block = first;
      };
      this->template multiply<units, false>(
          step, panel, recurrent_, soon, multiply_inputs,
          [&](auto rows, int64_t r, int u, const A* sums) {
            A* from_input = fused_ ? inputs + ((r - block) * units + u) * kGates * n
                                   : input_sums(step, r, panel, u);
            const int64_t unit = (split_.first(panel) + u) * n, width = int64_t{units} * n;
            const Place at[] = {
                {r, unit, from_input, sums},
                {r + 1, unit, from_input + kGates * width, sums + Cell::kStateGates * width}};
            formulas_.apply(rows, step, at);
          });
    });
  }
  void second_half(int64_t step, int64_t item, int64_t next) {
    if constexpr (Cell::kSecond) {
      const auto [first, end] = out_split_.of_item(item, items_);
      if (first == end) return;
      for (int64_t panel = first; panel < end; ++panel) {
        second_half_of(
            step, panel,
            panel + 1 < end ? second_.panel(panel + 1) : first_panel(second_, out_split_, next));
      }
    }
  }
  void second_half_of(int64_t step, int64_t panel, const A* soon) {
    if (step == 0) second_.make_ready(panel);
    with_width<kSecondUnits>(out_split_.count(panel), [&](auto units) {
      this->template multiply<units, true>(
          step, panel, second_, soon, [](int64_t, int64_t) {},
          [&](auto rows, int64_t r, int u, const A* sums) {
            rows.each([&](auto i) {
              formulas_.apply_second(
                  step, r + i, (out_split_.first(panel) + u) * n, simd::load(sums + i * units * n),
                  Cell::kReadsState ? input_sums(step, r + i, panel, u) : nullptr);
            });
          });
    });
  }
  Device& dev_;
  const Layer<T>& layer_;
  const Sequences<T> seq_;
  StepFormulas<Cell, T, Of> formulas_;
  const Split split_, out_split_;  // of the units; with a second product, of the state
  const Products<kGates> input_;
  const Products<Cell::kStateGates> recurrent_;
  const Products<1> second_;
  const int64_t items_, chunk_;
  const bool fused_;
  const Workspace<A> products_;
  const bool converts_;
  const int64_t row_;  // of converted inputs, in words; tiles in a row are no power of two apart
  const Workspace<A> converted_;
};

// Tiles cost more than they save for up to so many rows in all.
constexpr int64_t kFewForTiles = 48;

template <class Cell, class T>
void recurrent_layer(Device& dev, const Layer<T>& layer, const States<T>& to) {
  recurrence::check_lengths(layer);
#if NATIVEOPS_LEVEL >= 3
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, float>) {
    using Of = Tiles<std::is_same_v<T, float> ? 2 : 1>;
    const bool few = layer.steps() * layer.batch() <= kFewForTiles;
    if (!few && (Of::kParts == 1 || layer.high)) return Forward<Cell, T, Of>(dev, layer, to).run();
  }
#endif
#if NATIVEOPS_LEVEL >= 2
  if constexpr (std::is_same_v<T, bf16>) {
    if (simd::has_pairs()) return Forward<Cell, T, Pairs>(dev, layer, to).run();
  }
#endif
  Forward<Cell, T>(dev, layer, to).run();
}

}  // namespace nativeops::tuned
