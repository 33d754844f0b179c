// SPDX-License-Identifier: Apache-2.0
// The product of a recurrent layer's step by the matrix units of a GPU, which multiply numbers of
// two bytes and sum them up in float. A float is the sum of two bf16, and a product of two floats
// that of three such products: what is left out is at most 3·2^-18 of it.
#pragma once
#include <cstdint>

#include "nativeops/devices/blocks/together.h"

namespace nativeops::tuned {

// Σ_k weights[row, k] · vector[item, k] for so many rows of weights and sequences, in tiles of a
// matrix unit. Each warp sums up some k for all of them, and reads the vectors from where the other
// blocks left them: nobody else in the block needs the same numbers.
template <class Half, int Parts, int RowTiles, int ItemTiles>
struct TensorProduct {
  using Number = Half;
  static constexpr int kParts = Parts, kRows = 16 * RowTiles, kItems = 8 * ItemTiles;
  static constexpr int kChunk = 32;  // numbers of a vector for four lanes, 16 bytes for each
  // Chunks whose numbers are on their way together: in 32 registers of a thread.
  static constexpr int kAtOnce = ItemTiles * Parts < 8 ? 8 / (ItemTiles * Parts) : 1;
  // From sequence to sequence: lanes that write or read sums at once do so in different banks.
  static constexpr int kSumStep = kRows + 4;

  float* partial;  // sums [warp, item, row]
  Half* weights;   // [row, part, k]
  int rows;
  int64_t depth;
  int chunks;
  int64_t w_step;  // from row to row

  // A vector with zeros behind its last number.
  HOST_DEVICE static int64_t padded(int64_t depth) { return round_up(depth, kChunk); }
  // A row of weights, so long that two rows which are read at once lie in different banks.
  HOST_DEVICE static int64_t row_step(int64_t depth) {
    const int64_t step = Parts * padded(depth);
    return step % 64 == 32 ? step : step + 32;
  }
  static StepPlan plan(int64_t rows, int64_t depth, int64_t count, int64_t most_bytes) {
    const int64_t bytes = kWarps * kItems * kSumStep * int64_t{sizeof(float)} +
                          rows * row_step(depth) * int64_t{sizeof(Half)};
    if (bytes > most_bytes) return {};
    // Four matrix units take some 8 cycles for a tile each, the second cache gives a block 32 bytes
    // a cycle, shared memory a warp 32 numbers, which are written and read.
    constexpr int64_t kProducts = Parts == 1 ? 1 : 3;
    const int64_t tiles = padded(depth) / 16 * RowTiles * ItemTiles * kProducts;
    const int64_t read = count * padded(depth) * Parts * int64_t{sizeof(Half)} / 32;
    return {0, bytes, max2(2 * tiles, read) + kRows * kItems * kWarps / 16};
  }

  KERNEL TensorProduct(void* scratch, int rows, int64_t depth, int)
      : partial(static_cast<float*>(scratch)),
        weights(reinterpret_cast<Half*>(partial + kWarps * kItems * kSumStep)),
        rows(rows),
        depth(depth),
        chunks(static_cast<int>(padded(depth) / kChunk)),
        w_step(row_step(depth)) {}

  // As StepProduct has them.
  template <class F>
  KERNEL void load_weights(bool along_rows, F weight) const {
    const int64_t length = int64_t{chunks} * kChunk, total = rows * length;
    for (int64_t e = threadIdx.x; e < total; e += kTogetherThreads) {
      const Divided place = divide(e, along_rows ? rows : length);
      const int64_t row = along_rows ? place.rest : place.whole;
      const int64_t k = along_rows ? place.whole : place.rest;
      const float number = k < depth ? static_cast<float>(weight(row, k)) : 0.0f;
      put_parts<Parts>(weights + row * w_step + k, length, number);
    }
    sync();
  }

  // As StepProduct's.
  template <class F>
  KERNEL void run(int count, F vector) const {
    const Vectors from(count, vector);
    const Half* own[RowTiles][2];  // a lane without a row takes the last one's, for nobody
    NATIVEOPS_UNROLL
    for (int r = 0; r < RowTiles; ++r) {
      NATIVEOPS_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * r + 8 * half + lane() / 4;
        own[r][half] = weights + min2(row, rows - 1) * w_step + 8 * (lane() % 4);
      }
    }
    Sums sum = {};
    for (int first = warp(); first < chunks; first += kAtOnce * kWarps) {
      const Fetched b = fetch(from, first);
      NATIVEOPS_UNROLL
      for (int c = 0; c < kAtOnce; ++c) {
        const int chunk = first + c * kWarps;
        if (chunk >= chunks) continue;
        NATIVEOPS_UNROLL
        for (int r = 0; r < RowTiles; ++r) {
          Words a[Parts][2];
          NATIVEOPS_UNROLL
          for (int p = 0; p < Parts; ++p) {
            NATIVEOPS_UNROLL
            for (int half = 0; half < 2; ++half) {
              const Half* const here = own[r][half] + p * length() + chunk * kChunk;
              a[p][half] = *reinterpret_cast<const Words*>(here);
            }
          }
          NATIVEOPS_UNROLL
          for (int i = 0; i < ItemTiles; ++i) multiply(sum.tile[r][i], a, b.words[c][i]);
        }
      }
    }
    put(sum);
    sync();
  }

  KERNEL float sums(int row, int item) const {
    float total = 0;
    NATIVEOPS_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      total += partial[(warp * kItems + item) * kSumStep + row];
    }
    return total;
  }

 private:
  KERNEL static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  KERNEL static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  KERNEL int length() const { return chunks * kChunk; }

  // Where a lane's numbers are; one without a sequence takes the last one's, for nobody.
  struct Vectors {
    const Half* from[ItemTiles];

    template <class F>
    KERNEL Vectors(int count, F vector) {
      NATIVEOPS_UNROLL
      for (int i = 0; i < ItemTiles; ++i) {
        from[i] = vector(min2(8 * i + lane() / 4, count - 1)) + 8 * (lane() % 4);
      }
    }
  };
  struct Fetched {
    Words words[kAtOnce][ItemTiles][Parts];
  };
  // Some chunks, all of which are on their way before one is waited for.
  KERNEL Fetched fetch(const Vectors& vectors, int first) const {
    Fetched to;
    NATIVEOPS_UNROLL
    for (int c = 0; c < kAtOnce; ++c) {
      const int chunk = first + c * kWarps;
      if (chunk >= chunks) continue;
      NATIVEOPS_UNROLL
      for (int i = 0; i < ItemTiles; ++i) {
        NATIVEOPS_UNROLL
        for (int p = 0; p < Parts; ++p) {
          to.words[c][i][p] = read_fresh_words(vectors.from[i] + p * length() + chunk * kChunk);
        }
      }
    }
    return to;
  }

  // Of a lane: as PTX has them in mma.m16n8k16.
  struct Sums {
    float tile[RowTiles][ItemTiles][4];
  };
  KERNEL void put(const Sums& sum) const {
    NATIVEOPS_UNROLL
    for (int r = 0; r < RowTiles; ++r) {
      NATIVEOPS_UNROLL
      for (int i = 0; i < ItemTiles; ++i) {
        NATIVEOPS_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int item = 8 * i + 2 * (lane() % 4) + e % 2,
                    row = 16 * r + 8 * (e / 2) + lane() / 4;
          partial[(warp() * kItems + item) * kSumStep + row] = sum.tile[r][i][e];
        }
      }
    }
  }

  // The products of all parts, the small ones first, without that of the smallest two.
  KERNEL static void multiply(float (&sum)[4], const Words (&a)[Parts][2],
                              const Words (&b)[Parts]) {
    if (Parts == 2) multiply(sum, a[Parts - 1], b[0]);
    if (Parts == 2) multiply(sum, a[0], b[Parts - 1]);
    multiply(sum, a[0], b[0]);
  }
  // A chunk is two tiles of 16 numbers. Which k a lane has in them does not matter as long as rows
  // and vectors agree: a lane's eight lie one beside the other.
  KERNEL static void multiply(float (&sum)[4], const Words (&a)[2], const Words& b) {
    NATIVEOPS_UNROLL
    for (int tile = 0; tile < 2; ++tile) {
      const uint32_t left[] = {a[0].word[2 * tile], a[1].word[2 * tile], a[0].word[2 * tile + 1],
                               a[1].word[2 * tile + 1]};
      const uint32_t right[] = {b.word[2 * tile], b.word[2 * tile + 1]};
      warp_multiply<Half>(sum, left, right);
    }
  }
};

}  // namespace nativeops::tuned
