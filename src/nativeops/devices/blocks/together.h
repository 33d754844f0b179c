// SPDX-License-Identifier: Apache-2.0
// The product of a recurrent layer's step, in a kernel that runs all steps: each block keeps its
// rows of the weights in shared memory, reads the vectors that all blocks made in the step before,
// and meets the blocks of the same sequences once a step. tensor.h has that of matrix units.
#pragma once
#include <cstdint>

#include "nativeops/devices/kernel.h"

namespace nativeops::tuned {

constexpr int kWarps = 8, kTogetherThreads = 32 * kWarps;
// The lanes of half a warp stand in so many rows and columns; the other half takes other numbers.
constexpr int kLaneRows = 4, kLaneItems = 4, kWarpHalves = 2;
constexpr int kStages = 4;  // pieces of the vectors: one is used while the others are on their way
constexpr int kFewestPiece = 256, kMostPiece = 512;  // if the memory is enough

// How rows of weights and sequences are spread over blocks.
struct Spread {
  int64_t units = 0, items = 0;              // of a block
  int64_t unit_blocks = 0, item_blocks = 0;  // 0: the weights do not fit
  int piece = 0;                             // numbers of a vector that come together
  int64_t scratch_bytes = 0;
  int64_t work = 0;  // of a block in a step, roughly in cycles

  explicit operator bool() const { return unit_blocks > 0; }
};

// What a product of a block takes; no bytes: more than there are.
struct StepPlan {
  int piece = 0;
  int64_t scratch_bytes = 0, cycles = 0;
};

// A number as the sum of so many, each the nearest to what those before leave: `step` apart.
template <int Parts, class Number>
KERNEL void put_parts(Number* to, int64_t step, float number) {
  for (int p = 0; p < Parts; ++p) {
    to[p * step] = Number(number);
    number -= static_cast<float>(to[p * step]);
  }
}

// The vectors that the blocks make for one another, two of each sequence in turn, as a product
// reads them: behind the last number there are zeros.
template <class Product>
struct Exchange {
  using Number = typename Product::Number;
  static constexpr int kParts = Product::kParts;

  Number* data;
  int64_t batch, length;

  static int64_t count(int64_t batch, int64_t depth) {
    return 2 * batch * kParts * Product::padded(depth);
  }
  KERNEL Number* vector(int64_t turn, int64_t b) const {
    return data + ((turn & 1) * batch + b) * kParts * length;
  }
  KERNEL void put(int64_t turn, int64_t b, int64_t k, float number) const {
    put_parts<kParts>(vector(turn, b) + k, length, number);
  }
};

// A row in shared memory so long that rows which are read at once lie in different banks.
HOST_DEVICE inline int64_t spaced(int64_t length) { return round_up(length, 8) + 4; }

// Σ_k weights[row, k] · vector[item, k] for up to kRows rows of the block and up to kItems
// sequences: each half of a warp sums up some k for all of them.
template <int RowsPerLane, int ItemsPerLane>
struct StepProduct {
  using Number = float;  // of vectors
  static constexpr int kParts = 1;
  static constexpr int kRows = kLaneRows * RowsPerLane, kItems = kLaneItems * ItemsPerLane;

  float* staged;  // kStages pieces of kItems vectors; then sums [warp, row, item]
  float* weights;
  int rows;        // that are used, at most kRows
  int64_t w_step;  // from row to row
  int64_t depth;
  int piece;   // a multiple of 4
  int v_step;  // from vector to vector among those on their way

  HOST_DEVICE static int64_t staged_numbers(int piece) {
    return max2<int64_t>(kStages * kItems * spaced(piece), kWarps * kRows * kItems);
  }
  HOST_DEVICE static int64_t padded(int64_t depth) { return (depth + 3) / 4 * 4; }
  static StepPlan plan(int64_t rows, int64_t depth, int64_t count, int64_t most_bytes) {
    const int64_t quarter = ceil_div(depth, 16) * 4;
    int piece = static_cast<int>(min2<int64_t>(kMostPiece, max2<int64_t>(kFewestPiece, quarter)));
    const auto bytes = [=](int piece) {
      return (staged_numbers(piece) + rows * spaced(depth)) * int64_t{sizeof(float)};
    };
    while (piece > 32 && bytes(piece) > most_bytes) piece -= 4;
    if (bytes(piece) > most_bytes) return {};
    // Shared memory gives a warp 16 bytes per lane in four cycles, the second cache a block 48 a
    // cycle.
    constexpr int64_t kLoads = kRows / kLaneRows + kItems / kLaneItems;
    const int64_t cycles = max2(depth * kLoads / kWarpHalves, count * depth / 12);
    return {piece, bytes(piece), cycles + 300 * (depth / piece)};
  }

  KERNEL StepProduct(void* scratch, int rows, int64_t depth, int piece)
      : staged(static_cast<float*>(scratch)),
        weights(staged + staged_numbers(piece)),
        rows(rows),
        w_step(spaced(depth)),
        depth(depth),
        piece(piece),
        v_step(static_cast<int>(spaced(piece))) {}

  // weight(row, k) gives the block's own; behind the last k there are zeros. Neighbouring threads
  // read neighbouring k, or neighbouring rows.
  template <class F>
  KERNEL void load_weights(bool along_rows, F weight) const {
    const int64_t total = rows * w_step;
    for (int64_t e = threadIdx.x; e < total; e += kTogetherThreads) {
      const Divided place = divide(e, along_rows ? rows : w_step);
      const int64_t row = along_rows ? place.rest : place.whole;
      const int64_t k = along_rows ? place.whole : place.rest;
      weights[row * w_step + k] = k < depth ? weight(row, k) : 0.0f;
    }
    sync();
  }

  // Makes the sums(row, item). vector(item) points to the numbers of one of `count` sequences, at a
  // multiple of 16 bytes. The block must have met since it read sums.
  template <class F>
  KERNEL void run(int count, F vector) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane % kLaneRows, item = lane / kLaneRows % kLaneItems;
    const int half = lane / (kLaneRows * kLaneItems);
    const float* own[RowsPerLane];  // a lane without a row takes the last one's, for nobody
    NATIVEOPS_UNROLL
    for (int r = 0; r < RowsPerLane; ++r) {
      own[r] = weights + min2(row + r * kLaneRows, rows - 1) * w_step;
    }
    float sum[RowsPerLane][ItemsPerLane] = {};
    const int pieces = static_cast<int>(ceil_div(depth, piece));
    for (int p = 0; p < kStages - 1; ++p) fetch(p, count, vector);
    for (int p = 0; p < pieces; ++p) {
      await_copies<kStages - 2>();
      sync();  // this piece is there, and nobody uses the one before it any more
      fetch(p + kStages - 1, count, vector);
      const int64_t k0 = int64_t{p} * piece;
      const int fours = static_cast<int>((min2<int64_t>(piece, depth - k0) + 3) / 4);
      const float* here = stage(p) + item * v_step;
      for (int four = kWarpHalves * warp + half; four < fours; four += kWarpHalves * kWarps) {
        float v[ItemsPerLane][4];
        NATIVEOPS_UNROLL
        for (int i = 0; i < ItemsPerLane; ++i)
          load4(here + i * kLaneItems * v_step + 4 * four, v[i]);
        NATIVEOPS_UNROLL
        for (int r = 0; r < RowsPerLane; ++r) {
          float w[4];
          load4(own[r] + k0 + 4 * four, w);
          NATIVEOPS_UNROLL
          for (int i = 0; i < ItemsPerLane; ++i) {
            NATIVEOPS_UNROLL
            for (int k = 0; k < 4; ++k) sum[r][i] += w[k] * v[i][k];
          }
        }
      }
    }
    sync();
    NATIVEOPS_UNROLL
    for (int r = 0; r < RowsPerLane; ++r) {
      NATIVEOPS_UNROLL
      for (int i = 0; i < ItemsPerLane; ++i) {
        const float both = sum[r][i] + warp_exchange(sum[r][i], kLaneRows * kLaneItems);
        const int place = (warp * kRows + row + r * kLaneRows) * kItems + item + i * kLaneItems;
        if (half == 0) staged[place] = both;
      }
    }
    sync();
  }

  KERNEL float sums(int row, int item) const {
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      total += staged[(warp * kRows + row) * kItems + item];
    }
    return total;
  }

 private:
  KERNEL float* stage(int p) const { return staged + p % kStages * kItems * v_step; }

  // Sends a piece of the vectors on its way: a warp sends one vector after the other. Behind the
  // last piece there is nothing to send.
  template <class F>
  KERNEL void fetch(int p, int count, F vector) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t k0 = int64_t{p} * piece;
    const int length = static_cast<int>(min2<int64_t>(piece, depth - k0));
    for (int item = warp; length > 0 && item < count; item += kWarps) {
      const float* from = vector(item) + k0;
      float* to = stage(p) + item * v_step;
      for (int k = 4 * lane; k < length; k += 4 * 32) copy_early(to + k, from + k);
    }
    end_copies();
  }

  KERNEL static void load4(const float* from, float* to) {
    struct alignas(16) Four {
      float number[4];
    };
    const Four four = *reinterpret_cast<const Four*>(from);
    for (int k = 0; k < 4; ++k) to[k] = four.number[k];
  }
};

// The spread with the least work of a block, for layers with so many rows of weights per unit and
// so many numbers in each.
template <class Product>
Spread spread(Device& dev, int64_t units, int64_t gates, int64_t depth, int64_t batch) {
  const Together most = together(dev);
  Spread best;
  for (int64_t own = min2<int64_t>(units, Product::kRows / gates); own > 0; --own) {
    const int64_t unit_blocks = ceil_div(units, own), held = own * gates;
    if (own * Product::kItems > kTogetherThreads || unit_blocks > most.blocks) continue;
    const int64_t items = ceil_div(batch, most.blocks / unit_blocks);
    const StepPlan plan =
        Product::plan(held, depth, min2<int64_t>(items, Product::kItems), most.scratch_bytes);
    if (plan.scratch_bytes == 0) continue;
    const int64_t passes = ceil_div(items, Product::kItems);
    const int64_t work = (plan.cycles + 1500) * passes;
    if (best && work >= best.work) continue;
    best = {own, items, unit_blocks, ceil_div(batch, items), plan.piece, plan.scratch_bytes, work};
  }
  return best;
}

}  // namespace nativeops::tuned
